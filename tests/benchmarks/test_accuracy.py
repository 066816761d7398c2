"""The table of docs/mnist.md can be resumed, and shows which runs are missing."""

import json
import pathlib
import subprocess

import pytest

from benchmarks import accuracy
from benchmarks.accuracy import ROWS, Row, Table
from benchmarks.accuracy_report import write_plot, write_text


def record(row, epsilon, seed, **changes):
    return {
        "row": row.name,
        "epsilon": epsilon,
        "seed": seed,
        "test_accuracy": 0.9 + seed / 100,
        "steps": 10,
        "lot_size": 64,
        "sampling": "poisson",
        "noise_multiplier": 1.5,
        "seconds": 3.0,
        "claimed": 1.25,
        "proven": epsilon,
        "reason": None,
        "flags": row.flags(epsilon),
    } | changes


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Runs main() with a results file of its own, and records trainings instead of training."""
    trained = []

    def train(row, epsilon, seed, data_dir, threads):
        trained.append((row.name, epsilon, seed))
        if seed == 13:
            raise RuntimeError("train.py: error: unlucky")
        return record(row, epsilon, seed)

    path = tmp_path / "docs" / "mnist.json"
    monkeypatch.setattr(accuracy, "train", train)
    monkeypatch.setattr(accuracy, "Table", lambda: Table(path))
    monkeypatch.setattr(accuracy, "write_plot", lambda *_: None)  # drawing needs matplotlib
    return lambda *flags: (accuracy.main(list(flags)), trained, path)


def test_every_row_has_its_flag_files_for_mnist():
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        for epsilon in row.epsilons:
            flags = row.flags(epsilon)
            assert "--dataset=mnist" in flags
            assert not any(flag.startswith("--sweep") for flag in flags)
        assert set(row.paper) <= set(row.epsilons)


def test_a_row_is_the_chosen_points_of_its_file():
    row = Row("SGLD", "frontier/mnist_langevin", ("mechanism", "sgld"))
    assert row.name == "frontier/mnist_langevin --mechanism=sgld"
    assert row.epsilons == (0.5, 1.0, 2.0, 3.0, 7.0)
    assert {"--mechanism=sgld", "--epsilon=2"} <= set(row.flags(2.0))
    assert "--mechanism=dp_dropout" not in row.flags(2.0)
    with pytest.raises(ValueError, match="one point for each epsilon"):
        _ = Row("both", "frontier/mnist_langevin").points


def test_what_is_published_was_trained_with_the_flags_of_today():
    table = Table()
    current = [(r.name, e) for r in ROWS for e in r.epsilons if table.find(r, e, 1) is not None]
    assert len(current) == sum(len(row.epsilons) for row in ROWS)


def test_a_training_gets_the_flags_of_its_point_and_no_recipe(monkeypatch):
    seen = []

    def run(command, **_):
        path = pathlib.Path(command[2].removeprefix("--flagfile="))
        seen.append((path.read_text().splitlines(), command[3:]))
        (path.parent / "run").mkdir()
        sums = {"epsilon": 1.0, "reason": None}
        names = ("test_accuracy", "steps", "lot_size", "sampling", "noise_multiplier", "seconds")
        made = dict.fromkeys(names, 1) | {"claimed": sums, "proven": sums}
        (path.parent / "run" / "run.json").write_text(json.dumps(made))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(accuracy.subprocess, "run", run)
    made = accuracy.train(PROVEN, 3.0, 7, "data", 1)
    ((flags, others),) = seen
    assert flags == PROVEN.flags(3.0) == made["flags"]
    assert "--epsilon=3" in flags and "--seed=7" in others and "--data_dir=data" in others


def test_what_was_trained_is_not_trained_again(command):
    flags = ["--rows=frontier/mnist_dpsgd", "--epsilons=1,2", "--seeds=2"]
    code, trained, path = command(*flags)
    name = "frontier/mnist_dpsgd"
    assert code == 0
    assert trained == [(name, 1.0, 1), (name, 2.0, 1), (name, 1.0, 2), (name, 2.0, 2)]
    content = json.loads(path.read_text())
    del content["runs"][0]
    path.write_text(json.dumps(content))
    assert command(*flags)[1][4:] == [(name, 1.0, 1)]
    command(*flags)
    assert len(trained) == 5


def test_other_flags_make_a_run_stale(command):
    flags = ["--rows=frontier/mnist_dpsgd", "--epsilons=1", "--seeds=1"]
    _, trained, path = command(*flags)
    path.write_text(path.read_text().replace("--momentum=0.9", "--momentum=0.8"))
    command(*flags)
    assert len(trained) == 2
    assert len(json.loads(path.read_text())["runs"]) == 1


def test_a_failed_training_is_reported_and_not_recorded(command, capsys):
    flags = ["--rows=frontier/mnist_dpsgd", "--epsilons=1", "--seeds=13"]
    code, trained, path = command(*flags)
    assert code == 1
    assert len(trained) == 13
    assert len(json.loads(path.read_text())["runs"]) == 12
    assert "unlucky" in capsys.readouterr().err
    assert command("--minutes=0")[1] == trained and len(trained) == 13
    with pytest.raises(SystemExit):
        command("--rows=magic")


PROVEN = Row("DP-SGD", "frontier/mnist_dpsgd")
NOTHING = Row("No privacy", "frontier/mnist_none")
WEAK = Row(
    "SI-DPSGD",
    "papers/mnist_si_dpsgd_claimed",
    ("normalization", "layer"),
    paper={0.5: "98.56% (Table 4)"},
)
REPORTED = (
    [NOTHING, PROVEN, WEAK],
    [
        *((PROVEN, 1.0, record(PROVEN, 1.0, seed)) for seed in (1, 2, 3)),
        (NOTHING, None, record(NOTHING, None, 1, proven="inf")),
        (WEAK, 0.5, record(WEAK, 0.5, 1, proven=3.9e8)),
    ],
)


def test_the_report(tmp_path):
    path = tmp_path / "table.md"
    write_text(*REPORTED, path)
    text = path.read_text()
    assert (
        "| DP-SGD | `frontier/mnist_dpsgd` | not run | 92.00 ± 0.58 (3) [1.25] | not run |" in text
    )
    assert "No privacy: 91.00 (1)." in text
    assert "| 0.5 | vacuous (390,000,000) | 91.00 (1) | 98.56% (Table 4) |" in text


def test_the_plot(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is in the extra 'dev'")
    write_plot(*REPORTED, tmp_path / "table.png")
    assert (tmp_path / "table.png").stat().st_size > 10_000
