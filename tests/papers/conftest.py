"""A small catalogue and a quick train.py instead of the real ones."""

import pytest

from papers import __main__ as command
from papers import catalogue, pages, records, running

CATALOGUE = """
paper = "A paper"
[[tables]]
name = "T1"
title = "a table"
axis = "claimed epsilon"
columns = ["2", "3"]
figure = "columns"
flags = {mechanism = "dpsgd"}
column_flags = {"2" = {epsilon = 2}, "3" = {epsilon = 3}}
note = "A note."
[[tables.rows]]
name = "a"
label = "Row A"
paper = [50.0, "NC"]
paper_error = [0.5, ""]
seeds = 2
differs = "All of it."
[[tables.rows]]
name = "b"
label = "Row B"
paper = [51.0, 52.0]
absent = "It would cost an hour."
[[tables.rows]]
name = "c"
label = "Row C"
paper = [1.0, 2.0]
quoted = true
[[tables]]
name = "T2"
title = "fine-tuning"
columns = ["-"]
flags = {mechanism = "none"}
[[tables.rows]]
name = "fine"
label = "Fine-tuned"
flags = {learning_rate = 0.3, initial_weights = "paper.T2.public.-"}
seeds = 2
[[tables.rows]]
name = "public"
label = "Public"
seeds = 1
[[tables.rows]]
name = "same"
label = "The same"
same_as = "paper.T2.fine"
[[tables]]
name = "F1"
title = "a figure"
axis = "divergence"
computed = "noise_distance"
seeds = 1
columns = ["0.5", "1"]
flags = {codebook_size = 2, num_weights = 20}
column_flags = {"0.5" = {divergence = 0.5}, "1" = {divergence = 1}}
[[tables.rows]]
name = "laplace"
label = "Laplace"
paper = ["", 0.8]
flags = {noise = "laplace"}
"""

# Writes what train.py writes, as far as it is read. It fails where the rate is 0, waits where it is 1.
TRAIN = """
import json, pathlib, signal, sys, time
flags = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
place, seeds = pathlib.Path(flags["model_dir"]), flags["sweep"].removeprefix("seed=").split(",")
place.joinpath("asked").open("a").write(f"{seeds}\\n")
assert "initial_weights" not in flags or pathlib.Path(flags["initial_weights"]).exists()
epsilon = float(flags.get("epsilon", "inf"))
guarantee = {"epsilon": epsilon if epsilon < 9 else "inf", "delta": 1e-5, "adjacency": "zero_out"}
for seed in map(int, seeds):
    if seed == 2 and flags.get("learning_rate") == "0":
        sys.exit("train.py: error: It diverged.")
    if seed == 2 and flags.get("learning_rate") == "1":
        signal.signal(signal.SIGTERM, lambda *_: (place / "saved").touch() or sys.exit(143))
        (place / "waits").touch()
        time.sleep(60)
    (place / f"seed={seed}").mkdir()
    (place / f"seed={seed}" / "model.keras").touch()
    (place / f"seed={seed}" / "run.json").write_text(json.dumps({
        "test_accuracy": 0.6 + seed / 100, "steps": 1000, "num_examples": 100, "lot_size": 10,
        "noise_multiplier": 1.5, "claimed": guarantee, "proven": guarantee, "seconds": 30.0,
        "curve": [[1.0, 0.5]], "training": {"lost_steps": 5, "restarts": 0},
    }))
"""


@pytest.fixture
def use(tmp_path, monkeypatch):
    """A function that makes a text the whole catalogue, of a paper that is called `paper`."""

    def use(text):
        (tmp_path / "tables").mkdir(exist_ok=True)
        (tmp_path / "tables" / "paper.toml").write_text(text)
        monkeypatch.setattr(catalogue, "TABLES", tmp_path / "tables")
        catalogue.tables.cache_clear()

    yield use
    monkeypatch.undo()
    catalogue.tables.cache_clear()


@pytest.fixture
def small(use, tmp_path, monkeypatch, capsys):
    """A function that runs a command on the small catalogue; returns its status and what it printed."""
    use(CATALOGUE)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "page.md").write_text(f"# A page\n\nBy hand.\n\n{pages._LINE}\n\nOld.\n")
    monkeypatch.setattr(pages, "_BY_HAND", tmp_path)
    monkeypatch.setattr(pages, "PAGES", {"p/page.md": ["paper"]})
    monkeypatch.setattr(running, "ROOT", tmp_path)
    monkeypatch.setattr(running, "code_version", lambda: {"tfdp": "1", "commit": "abc"})
    kept = records.read
    here = tmp_path / "kept" / "paper.json"
    monkeypatch.setattr(
        records, "read", lambda *paths: kept(*paths) if paths or not here.exists() else kept(here)
    )

    def run(*arguments):
        capsys.readouterr()
        status = command.main([*arguments, f"--results={tmp_path / 'results'}"])
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


@pytest.fixture
def results(small, tmp_path):
    """The results of all cells."""
    assert small("run", "paper")[0] == 0
    return tmp_path / "results"
