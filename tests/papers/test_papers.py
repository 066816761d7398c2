"""The catalogue of what the papers print, the commands that run it, and its pages."""

import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags

from tfdp.experiments import __main__ as command
from tfdp.experiments import command_line, console
from tfdp.experiments.partial_folder import ResultError
from tfdp.experiments.result_folder import ResultFolder
from tfdp.papers import catalogue, pages, records, running
from tfdp.papers.catalogue import UnknownName, cells, merged, tables

ROOT = Path(__file__).resolve().parents[2]
CELLS = [cell for table in tables() for cell in table.cells]
TRAINED = [cell for cell in CELLS if cell.seeds and not cell.computed]


def test_names_are_unique():
    names = [cell.name for cell in CELLS]
    assert len(set(names)) == len(names) and len({t.name for t in tables()}) == len(tables())


@pytest.mark.parametrize("cell", TRAINED, ids=lambda cell: cell.name)
def test_the_settings_of_a_cell_are_valid(cell):
    experiment = cell.experiment(seed=7, data_dir=".")
    assert experiment.seed == 7
    assert (experiment.data_dir is None) == (experiment.dataset == "digits")
    (table,) = [table for table in tables() if table.name == cell.table]
    # The column says which epsilon the training is calibrated to.
    if table.guarantee and cell.column != "inf":
        assert experiment.guarantee == table.guarantee
        assert experiment.epsilon == float(cell.column)
    if cell.column == "inf":
        assert not experiment.private


@pytest.mark.parametrize(
    "cell", [*TRAINED[::5], *(c for c in TRAINED[1::5] if c.needs)], ids=lambda cell: cell.name
)
def test_the_command_that_is_listed_trains_the_cell(cell, tmp_path, monkeypatch):
    python, program, *words = shlex.split(cell.command(7, tmp_path))
    assert (python, program) == ("python", "train.py")
    start = None
    if cell.needs:
        start = tmp_path / catalogue.initial_weights(cell.needs)
        start.parent.mkdir(parents=True)
        start.touch()
        start = str(start)
    values = flags.FlagValues()
    command_line.define(values)
    monkeypatch.chdir(ROOT)
    command_line.parse(["train.py", *words], values)
    # With the recipes that train.py has for a data set and a mechanism.
    (point,) = command_line.points(["train.py", *words], ROOT / "flags" / "defaults", values)
    assert point.experiment == cell.experiment(7, start=start)


def test_quoted_rows_are_never_run():
    quoted = [cell for cell in CELLS if cell.quoted]
    assert quoted and not any(cell.seeds for cell in quoted)


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("si_dpsgd.T4.si_bn_lenet5", [99.20, 99.17, 99.17, 99.15, 99.18, 99.14, 99.12, 98.58]),
        ("si_dpsgd.T4.dpsgd_ln_lenet5", [99.20, 97.35, 97.05, 96.68, 94.81, 87.45, 75.76, 49.53]),
        ("batch_norm.T5.bn", [99.20, 98.68, 98.18, 97.61, 96.83, 90.68, 88.15]),
        ("dropout.T1_mnist.zcdp", [97.18, 94.70, 92.05]),
        ("dropout.T1_digits.sgld", [94.03, 91.87, 88.21]),
    ],
)
def test_the_figures_are_those_that_the_papers_print(name, figures):
    assert [cell.printed for cell in cells([name])] == figures


def test_rows_with_the_trainings_of_others():
    for cell in CELLS:
        if cell.source != cell.name and cell.seeds:
            (other,) = [each for each in CELLS if each.name == cell.source]
            assert cell.flags == other.flags and cell.folder == other.folder
    (ours,) = cells(["batch_norm.T5.ln.0.5"])
    assert ours.source == "si_dpsgd.T4.dpsgd_ln_lenet5.0.5" and ours.printed == 94.81
    assert catalogue.named("batch_norm.T5.ln.0.5") == ours
    other, ours = cells(["dropout.F2_clip.zcdp.2", "dropout.F2_clip.zcdp.3"])  # one cell of a row
    assert other.source == other.name and ours.source == "dropout.F2_epochs.zcdp.50"
    assert {*ours.flags} == {f.replace("norm_clip=2", "norm_clip=3") for f in other.flags}
    with pytest.raises(UnknownName, match="the name of a cell"):
        catalogue.named("batch_norm.T5.ln")


def test_names_of_tables_rows_and_cells():
    assert len(cells(["dropout.T1_digits"])) == 12
    assert [c.column for c in cells(["dropout.T1_digits.ac"])] == ["10", "1", "0.5"]
    assert [c.column for c in cells(["dropout.T1_digits.ac.0.5"])] == ["0.5"]
    assert [c.column for c in cells(["dropout.digits_noise.gamma_0.0"])] == ["0"]
    twice = cells(["dropout.T1_digits.ac", "dropout.T1_digits.ac.1"])
    assert len(twice) == 3
    with pytest.raises(UnknownName, match=r"Did you mean 'si_dpsgd\.T4'"):
        cells(["si_dpsg.T4"])


def test_a_name_that_is_no_cell_is_no_column():
    with pytest.raises(UnknownName):
        cells(["si_dpsgd.T4.dpsgd_lenet5.0"])  # 0.5, 0.1, 0.05 and 0.025 begin with it


def _effective(cell):
    """The settings that a cell trains with; those of its optimizer's defaults where it names none."""
    settings = {**cell.experiment(1).recorded()}
    if settings["mechanism"] == "discrete_sgd":
        for name in ("encode", "denoise"):  # both are True by default
            settings[name] = settings[name] is not False
    return json.dumps(settings, sort_keys=True, default=str)


@pytest.mark.parametrize("table", tables(), ids=lambda table: table.name)
def test_no_two_cells_of_a_table_are_the_same_training(table):
    trained = [c for c in table.cells if c.seeds and not c.computed and c.source == c.name]
    found = {}
    for cell in trained:
        found.setdefault(_effective(cell), []).append(cell.name)
    alike = [names for names in found.values() if len(names) > 1 and "inf" not in names[0]]
    assert not alike


def test_later_flags_replace_earlier_ones():
    assert merged("--a=1 --b=2", "--a=3", "--b= --c") == ("--a=3", "--c")


CATALOGUE = """
paper = "A paper"
[[tables]]
name = "T1"
title = "a table"
axis = "steps"
columns = ["2", "3"]
flags = "--mechanism=dpsgd --model=linear --sampling=cyclic --batch_size=479 --noise_multiplier=4"
column_flags = {"2" = "--steps=2", "3" = "--steps=3"}
note = "A note."
[[tables.rows]]
name = "a"
label = "Row A"
paper = [50.0, "NC"]
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
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    (tmp_path / "paper.toml").write_text(CATALOGUE)
    monkeypatch.setattr(catalogue, "_FOLDER", tmp_path)
    catalogue.tables.cache_clear()
    yield tmp_path
    catalogue.tables.cache_clear()


def train_here(monkeypatch, fail=()):
    """Cells are trained in this process in place of processes of their own."""

    class Ended:
        def __init__(self, code):
            self.returncode = code

        def poll(self):
            return self.returncode

    def start(cell, seeds, results, data_dir, jobs):
        log = results / cell.folder / "log.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("It failed.\n" if cell.name in fail else "")
        if cell.name not in fail:
            running.train(cell, seeds, results, data_dir)
        return running._Running(Ended(int(cell.name in fail)), cell, seeds, 0.0, log)

    monkeypatch.setattr(running, "_start", start)


def test_what_is_finished_is_not_run_again_and_what_failed_is(small, monkeypatch, capsys):
    results = small / "results"
    arguments = ["run", "paper.T1", f"--results={results}"]
    train_here(monkeypatch, fail=["paper.T1.a.3"])
    assert command.main(arguments) == 2
    said = capsys.readouterr().out
    assert "paper.T1.a.3: failed" in said and "It failed." in said and "1 done, 1 failed" in said
    before = (results / "paper/T1/a/2/seed=1/run.json").read_text()
    train_here(monkeypatch)
    assert command.main(arguments) == 0
    assert "2 done" in capsys.readouterr().out
    assert (results / "paper/T1/a/2/seed=1/run.json").read_text() == before
    record = json.loads(before)
    assert (record["cell"], record["seed"]) == ("paper.T1.a.2", 1)
    assert record["code"]["tfdp"] and "commit" in record["code"]
    # The pages have figures of these records only.
    out = small / "pages"
    assert command.main(["report", f"--results={results}", f"--out={out}"]) == 0
    page = (out / "README.md").read_text()
    accuracies = [
        100 * json.loads((results / f"paper/T1/a/2/seed={s}/run.json").read_text())["test_accuracy"]
        for s in (1, 2)
    ]
    error = abs(accuracies[0] - accuracies[1]) / 2
    assert f"| {sum(accuracies) / 2:.2f} ± {error:.2f} (2) |" in page
    assert "| **Row A** | 50.00 | NC |" in page and "| **Row C (quoted)** | 1.00 | 2.00 |" in page
    assert "Row A: All of it." in page and "Not run: Row B at 2, Row B at 3. It would cost" in page
    html = (out / "index.html").read_text()
    assert (
        'name="viewport"' in html and "data:image/png;base64," in html and 'src="http' not in html
    )
    # They can be made again without the results.
    again = small / "again"
    again.mkdir()
    (again / "records.json").write_text((out / "records.json").read_text())
    command.main(["report", f"--results={small / 'nothing'}", f"--out={again}"])
    assert (again / "README.md").read_text() == page


def test_records_of_other_settings_are_not_shown(small, monkeypatch):
    results, out = small / "results", small / "pages"
    train_here(monkeypatch)
    command.main(["run", "paper.T1.a.2", f"--results={results}"])
    pages.write_pages(results, out)
    (small / "paper.toml").write_text(
        CATALOGUE.replace("--noise_multiplier=4", "--noise_multiplier=5")
    )
    catalogue.tables.cache_clear()
    (cell,) = cells(["paper.T1.a.2"])
    assert records.measured(cell, records.read(out / "records.json")) is None
    assert command.main(["run", "paper.T1.a.2", f"--results={results}"]) == 2  # it says so


STARTS = """
paper = "A paper"
[[tables]]
name = "T2"
title = "fine-tuning"
columns = ["-"]
flags = "--model=linear --sampling=cyclic --batch_size=479 --steps=3"
[[tables.rows]]
name = "fine"
label = "Fine-tuned"
flags = "--mechanism=dpsgd --noise_multiplier=4"
needs = "paper.T2.public.-"
seeds = 1
[[tables.rows]]
name = "public"
label = "Public"
flags = "--mechanism=none"
seeds = 1
[[tables.rows]]
name = "same"
label = "The same"
same_as = "paper.T2.fine"
"""


def test_a_training_starts_from_another_one(tmp_path, monkeypatch, capsys):
    (tmp_path / "paper.toml").write_text(STARTS)
    monkeypatch.setattr(catalogue, "_FOLDER", tmp_path)
    catalogue.tables.cache_clear()
    fine, public, same = (cell for table in tables() for cell in table.cells)
    results, begun = tmp_path / "r", []
    assert running.missing([same, fine], results) == [(public, (1,)), (same, (1,))]

    class Ended:
        returncode = 0

        def poll(self):
            return 0

    def start(cell, seeds, folder, data_dir, jobs):
        begun.append(cell.row)
        for seed in seeds:
            path = records.place(folder, cell, seed)
            path.mkdir(parents=True)
            (path / "run.json").write_text("{}")
        return running._Running(Ended(), cell, seeds, 0.0, path / "log.txt")

    def done(folder, cell, seed):
        there = (records.place(folder, cell, seed) / "run.json").exists()
        return {"test_accuracy": 0.5} if there else None

    monkeypatch.setattr(running, "_start", start)
    monkeypatch.setattr(running, "done", done)
    assert command.main(["run", "paper.T2", "--jobs=2", f"--results={results}"]) == 0
    assert begun == ["public", "fine"]
    monkeypatch.undo()
    catalogue.tables.cache_clear()


def test_a_cell_that_another_process_makes_is_no_failure(small, monkeypatch, capsys):
    results = small / "results"
    (cell,) = cells(["paper.T1.a.2"])
    with ResultFolder(records.place(results, cell, 1)):
        assert command.main(["train", cell.name, "--seeds=1", f"--results={results}"]) == 75
    train_here(monkeypatch)
    start = running._start

    def busy(*arguments):
        each = start(*arguments)
        each.process.returncode = running.BUSY
        return each

    monkeypatch.setattr(running, "_start", busy)
    capsys.readouterr()
    assert command.main(["run", cell.name, f"--results={results}"]) == 0
    said = capsys.readouterr().out
    assert "another process is making it" in said and "1 busy" in said


def test_some_seeds_only_and_what_is_unfinished(small, monkeypatch, capsys):
    results = small / "results"
    train_here(monkeypatch)
    assert command.main(["run", "paper.T1.a.2", "--seeds=1", f"--results={results}"]) == 0
    said = capsys.readouterr().out
    assert "To train: 1 of 1" in said
    assert sorted(p.name for p in (results / "paper/T1/a/2").glob("seed=*")) == ["seed=1"]
    (results / "paper/T1/a/2/seed=2.secret").mkdir()
    command.main(["list", "paper.T1.a.2", f"--results={results}"])
    assert "0 recorded, 1 here, 1 unfinished" in capsys.readouterr().out


def test_what_is_recorded_is_left_out(small, monkeypatch, capsys):
    results = small / "results"
    train_here(monkeypatch)
    command.main(["run", "paper.T1.a.2", f"--results={results}"])
    monkeypatch.setattr(command, "_PAGES", str(small / "pages"))
    pages.write_pages(results, small / "pages")
    capsys.readouterr()
    arguments = ["run", "paper.T1.a.2", f"--results={small / 'new'}"]
    assert command.main([*arguments, "--skip_recorded"]) == 0
    assert "1 done" in capsys.readouterr().out and not (small / "new").exists()
    assert command.main(arguments) == 0
    assert (small / "new/paper/T1/a/2/seed=2/run.json").exists()


def test_no_training_begins_after_the_budget(small, monkeypatch, capsys):
    train_here(monkeypatch)
    clock = iter([0.0, *[1e6] * 1000])
    monkeypatch.setattr(running.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(running.time, "sleep", lambda seconds: None)
    assert command.main(["run", "paper.T1", "--budget_minutes=1", f"--results={small}/r"]) == 0
    assert "2 left" in capsys.readouterr().out


def test_the_list_says_what_there_is(small, monkeypatch, capsys):
    assert command.main(["list", f"--results={small}/r"]) == 0
    assert "paper.T1" in capsys.readouterr().out
    assert command.main(["list", "paper.T1", f"--results={small}/r"]) == 0
    said = capsys.readouterr().out
    assert "paper.T1.a.2: the paper prints 50.0; seeds 1 to 2: 0 recorded, 0 here" in said
    assert "not run: It would cost an hour." in said and "not run, as the paper quotes it" in said
    assert command.main(["run", "nothing"]) == 2
    assert "`list` shows all" in capsys.readouterr().err


def test_what_is_not_measured_yet_stands_there_with_its_cost(small, monkeypatch):
    train_here(monkeypatch)
    results, out = small / "results", small / "pages"
    pages.write_pages(results, out)
    page = (out / "README.md").read_text()
    assert "| not yet | not yet |" in page
    assert (
        "* Not measured yet: Row A at 2, 3. What they take was not measured.\n" in page
    )  # nothing is known of its cost
    command.main(["run", "paper.T1.a.2", f"--results={results}"])
    pages.write_pages(results, out)
    kept = records.read(out / "records.json")
    for record in kept["paper.T1.a.2"].values():
        record["seconds"] = 300.0
    records.write(out / "records.json", kept)
    pages.write_pages(small / "nothing", out)
    said = "* Not measured yet: Row A at 3. All of them, one seed each, take about 5 minutes.\n"
    assert said in (out / "README.md").read_text()


def test_a_training_here_is_compared_with_the_record(small, monkeypatch, capsys):
    results = small / "results"
    train_here(monkeypatch)
    arguments = ["run", "paper.T1.a.2", f"--results={results}"]
    assert command.main(arguments) == 0
    monkeypatch.setattr(command, "_PAGES", str(small / "pages"))
    pages.write_pages(results, small / "pages")
    capsys.readouterr()
    assert command.main(["compare", "paper.T1", f"--results={results}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "paper.T1.a.2" in said and "+0.00" in said and "│ +0.0│" in said
    assert command.main(["compare", "paper.T1", f"--results={small / 'other'}"]) == 0
    assert "None of these cells was trained" in capsys.readouterr().out


def test_the_page_of_findings_is_in_the_report(small):
    out = small / "pages"
    out.mkdir()
    (out / "findings.md").write_text(
        "# Found\n\nIn [the tables](README.md).\n\n## Of one\n\n* **It holds** (`paper.T1`).\n"
    )
    pages.write_pages(small / "none", out)
    html = (out / "index.html").read_text()
    assert '<a href="#findings">' in html and '<section id="findings">' in html
    assert "<h2>Found</h2>" in html and "<h3>Of one</h3>" in html
    assert '<a href="#overview">the tables</a>' in html and 'id="overview"' in html
    assert "<li><strong>It holds</strong> (<code>paper.T1</code>).</li>" in html


def test_the_recorded_pages_are_not_written_over(small, monkeypatch, capsys):
    results = small / "results"
    train_here(monkeypatch)
    assert command.main(["run", "paper.T1.a.2", f"--results={results}"]) == 0
    (small / "docs").mkdir()
    (small / "docs" / "findings.md").write_text("Found.")
    monkeypatch.setattr(command, "_PAGES", str(small / "docs"))
    assert command.main(["report", f"--results={results}"]) == 0
    assert sorted(path.name for path in (small / "docs").iterdir()) == ["findings.md"]
    assert (results / "pages" / "findings.md").read_text() == "Found."
    assert "**Row A**" in (results / "pages" / "README.md").read_text()


def test_a_training_that_lost_steps_is_no_figure(small, monkeypatch):
    results = small / "results"
    train_here(monkeypatch)
    assert command.main(["run", "paper.T1.a.2", f"--results={results}"]) == 0
    every = cells(["paper.T1.a.2"])
    path = results / "paper/T1/a/2/seed=1/run.json"
    record = json.loads(path.read_text()) | {"steps": 1000}
    finished = records.finished
    for lost, kept in ((0, 2), (10, 2), (11, 1)):
        record["training"]["lost_steps"] = lost
        monkeypatch.setattr(
            records,
            "finished",
            lambda folder, *a: record if folder.name == "seed=1" else finished(folder, *a),
        )
        found, left = records.collect(results, every)
        assert len(found["paper.T1.a.2"]) == kept and len(left) == 2 - kept
        assert found["paper.T1.a.2"].get("1", {}).get("lost_steps", 0) == (lost if kept == 2 else 0)
    with pytest.raises(ResultError, match="were lost by a crash"):
        running.missing(every, results)  # `run` says so, too


def test_a_training_belongs_to_the_weights_that_it_started_from(tmp_path, monkeypatch):
    def catalogue_of(text):
        (tmp_path / "paper.toml").write_text(text)
        catalogue.tables.cache_clear()
        fine, public, _ = (cell for table in tables() for cell in table.cells)
        return fine, public

    monkeypatch.setattr(catalogue, "_FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path)
    # Without privacy, since private training refuses weights that were trained on the same data.
    text = STARTS.replace("dpsgd --noise_multiplier=4", "none --learning_rate=0.3")
    text = text.replace("seeds = 1", "seeds = 2", 1)
    fine, public = catalogue_of(text)
    results = Path("r")
    running.train(public, [1], results, None)
    running.train(fine, [1], results, None)
    # However the folder of all results is written, and wherever it is moved.
    assert running.missing([fine], tmp_path / "r") == [(fine, (2,))]
    Path("r").rename("moved")
    kept, left = records.collect(Path("moved"), [fine, public])
    assert set(kept) == {fine.name, public.name} and not left
    assert records.seeds_in(kept, fine) == {1}
    # With other settings of the first training, the second is no figure of this cell any more.
    fine, public = catalogue_of(
        text.replace('flags = "--mechanism=none"', 'flags = "--mechanism=none --learning_rate=0.7"')
    )
    with pytest.raises(ResultError, match="settings of this point"):
        records.done(Path("moved"), fine, 1)
    assert records.seeds_in(kept, fine) == set()
    # Nor are other seeds begun from weights that are trained again.
    fine, public = catalogue_of(text)
    shutil.rmtree(records.place(Path("moved"), public, 1))
    with pytest.raises(ResultError, match="not there any more"):
        running.missing([fine], Path("moved"))
    catalogue.tables.cache_clear()


def test_a_terminal_interrupts_no_training_itself(small):
    """Ctrl-C goes to all processes of a terminal's group, and a training takes a second as an order."""
    (cell,) = cells(["paper.T1.a.2"])
    each = running._start(cell, (1,), small / "results", None, 1)
    try:
        assert os.getpgid(each.process.pid) == each.process.pid != os.getpgid(0)
    finally:
        each.process.kill()
        each.process.wait()


def test_each_training_gets_one_signal(small):
    script = (
        "import signal, sys, time\n"
        "seen = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: seen.append(1))\n"
        "print('ready', flush=True)\n"
        "while not seen: time.sleep(0.01)\n"
        "time.sleep(0.5)\n"
        "sys.exit(len(seen))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    running._stop([running._Running(process, None, (), 0.0, None)])
    assert process.returncode == 1


def test_a_damaged_result_is_not_counted(small, monkeypatch, capsys):
    results = small / "results"
    train_here(monkeypatch)
    command.main(["run", "paper.T1.a.2", f"--results={results}"])
    path = results / "paper/T1/a/2/seed=1/run.json"
    record = json.loads(path.read_text())
    del record["proven"]["epsilon"], record["seconds"]
    path.write_text(json.dumps(record))
    capsys.readouterr()
    for arguments in (["list"], ["list", "paper.T1"], ["compare", "paper.T1"]):
        assert command.main([*arguments, f"--results={results}"]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "without seconds" in said
    record["seconds"] = 1.0
    path.write_text(json.dumps(record))
    assert command.main(["list", "paper.T1.a.2", f"--results={results}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "0 recorded, 1 here" in said and "without epsilon" in said


def test_what_the_system_ends_is_said_with_its_signal(small, monkeypatch, capsys):
    train_here(monkeypatch)
    start = running._start

    def killed(*arguments):
        each = start(*arguments)
        each.log.write_text("Epoch 3/20\n")
        each.process.returncode = -9
        return each

    monkeypatch.setattr(running, "_start", killed)
    assert command.main(["run", "paper.T1.a.2", f"--results={small}/r"]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "SIGKILL ended it, as the system does where memory runs out" in said


@pytest.mark.parametrize("arguments", [["paper.T1.a.2", "--seeds=a"], ["paper.T1", "--seeds=1"]])
def test_one_cell_is_trained_by_numbers_of_seeds(small, capsys, arguments):
    try:
        status = command.main(["train", *arguments])
    except SystemExit as end:
        status = end.code
    assert status == 2 and "xpected" in capsys.readouterr().err


def test_an_interrupted_run_ends_with_the_status_of_its_signal(small, monkeypatch):
    def terminated(*_, **__):
        raise console.Terminated(signal.SIGTERM)

    monkeypatch.setattr(running, "run", terminated)
    with pytest.raises(console.Terminated) as caught:
        command.main(["run", "paper.T1", f"--results={small}/r"])
    assert caught.value.__notes__ == ["The same command goes on from there."]


def test_a_truncated_record_is_told_and_blocks_no_other_cell(small, monkeypatch, capsys):
    results = small / "results"
    train_here(monkeypatch)
    command.main(["run", "paper.T1.a.2", f"--results={results}"])
    path = results / "paper/T1/a/2/seed=1/run.json"
    whole = path.read_text()
    for damage in (whole[:-40], "", "[]"):
        path.write_text(damage)
        for arguments in (["list", "paper.T1"], ["compare", "paper.T1"], ["report"]):
            capsys.readouterr()
            assert command.main([*arguments, f"--results={results}"]) == 0
            assert "Found it damaged" in " ".join(capsys.readouterr().out.split())
    assert command.main(["run", "paper.T1", f"--results={results}"]) == 2
    said = capsys.readouterr().out
    assert "Found it damaged" in " ".join(said.split()) and "1 done, 1 failed" in said
    assert (results / "paper/T1/a/3/seed=1/run.json").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("test_accuracy", 7), ("test_accuracy", None), ("steps", "2"), ("settings", []),
        ("code", None), ("training", None), ("seed", 2), ("cell", "paper.T1.a.3"),
        ("test_accuracy", "0.5"), ("seconds", "12"), ("curve", 3), ("curve", [[1]]), ("steps", 0),
        ("noise_multiplier", []), ("num_examples", "x"),
        ("proven", {"epsilon": "none", "delta": 1e-5, "adjacency": "zero_out"}),
    ],
)  # fmt: skip
def test_records_of_other_content_are_told(small, monkeypatch, capsys, name, value):
    results = small / "results"
    train_here(monkeypatch)
    command.main(["run", "paper.T1.a.2", f"--results={results}"])
    path = results / "paper/T1/a/2/seed=1/run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    capsys.readouterr()
    assert command.main(["compare", "paper.T1.a.2", f"--results={results}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "(1)" in said and ("Found something else" in said or "Found it without" in said)


def test_a_damaged_collection_is_told(small, capsys):
    out = small / "pages"
    pages.write_pages(small / "none", out)
    path = out / "records.json"
    whole = json.loads((ROOT / "docs/papers/records.json").read_text())["dropout.T1_digits.ac.1"]
    other = [whole["1"] | change for change in ({"settings": 0}, {"seconds": "x"}, {"claimed": {}})]
    del whole["1"]["test_accuracy"]
    changed = [json.dumps({"a": {"1": record}}) for record in (*other, whole["1"])]
    for damage in (
        "{",
        "[]",
        '{"a": {"x": {}}}',
        '{"a": {"01": {"settings": 0}}}',
        '{"a": 3}',
        *changed,
    ):
        path.write_text(damage)
        assert command.main(["report", f"--results={small / 'none'}", f"--out={out}"]) == 2
        assert "to hold a collection of records" in capsys.readouterr().err
        assert path.read_text() == damage


def test_yours_have_a_line_of_their_own(small, monkeypatch):
    results, recorded = small / "results", small / "recorded"
    train_here(monkeypatch)
    command.main(["run", "paper.T1.a.2", f"--results={results}"])
    pages.write_pages(results, recorded)
    (recorded / "findings.md").write_text("# Found\n\n[audits](../audits.md)\n")
    for seed in (1, 2):
        path = results / f"paper/T1/a/2/seed={seed}/run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"test_accuracy": 0.25}))
    monkeypatch.setattr(command, "_PAGES", str(recorded))
    assert command.main(["report", f"--results={results}"]) == 0
    out = results / "pages"
    page = (out / "README.md").read_text()
    assert "| &emsp;yours | 25.00 ± 0.00 (2) |" in page and page.count("&emsp;here") >= 1
    assert not (out / "records.json").exists()
    assert "](../../recorded/../audits.md)" not in (out / "findings.md").read_text()
    assert (out / "findings.md").read_text().endswith("[audits](../../audits.md)\n")
    # With --out they join the records.
    assert command.main(["report", f"--results={results}", f"--out={small / 'joined'}"]) == 0
    page = (small / "joined" / "README.md").read_text()
    assert "yours" not in page.split("## ")[1] and "| &emsp;here | 25.00 ± 0.00 (2) |" in page


def test_a_training_that_lost_steps_is_made_anew(small, monkeypatch, capsys):
    results = small / "results"
    (cell,) = cells(["paper.T1.a.2"])
    crashed, real = [], records._check_content

    def check(record, *others):
        if not crashed:
            crashed.append(record["training"].update(lost_steps=1))
        real(record, *others)

    monkeypatch.setattr(records, "_check_content", check)
    assert command.main(["train", cell.name, "--seeds=1", f"--results={results}"]) == running.AGAIN
    assert "steps were lost by a crash" in capsys.readouterr().err
    assert not records.place(results, cell, 1).exists()
    # `run` begins another process, once.
    train_here(monkeypatch)
    start, ends = running._start, []

    def again(*arguments):
        each = start(*arguments)
        each.process.returncode = ends.pop(0)
        return each

    monkeypatch.setattr(running, "_start", again)
    ends += [running.AGAIN, 0]
    assert command.main(["run", cell.name, f"--results={results}"]) == 0 and not ends
    assert "a crash cost too many steps" in capsys.readouterr().out
    shutil.rmtree(results)
    ends += [running.AGAIN, running.AGAIN, 0]
    assert command.main(["run", cell.name, f"--results={results}"]) == 2 and ends == [0]


def test_what_cannot_start_ends_no_other_cell(tmp_path, monkeypatch, capsys):
    other = CATALOGUE.replace("a paper", "a paper").split("[[tables]]")[1]
    (tmp_path / "paper.toml").write_text(STARTS + "[[tables]]" + other)
    monkeypatch.setattr(catalogue, "_FOLDER", tmp_path)
    catalogue.tables.cache_clear()
    results = tmp_path / "r"
    train_here(monkeypatch)
    start = running._start

    def spoiled(cell, seeds, *others):
        each = start(cell, seeds, *others)
        if cell.row == "public":
            (records.place(results, cell, 1) / "run.json").write_text("{}")
        return each

    monkeypatch.setattr(running, "_start", spoiled)
    names = ["paper.T2.fine", "paper.T1.a.2"]
    assert command.main(["run", *names, "--seeds=1", f"--results={results}"]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "paper.T2.fine.-: Expected" in said and "1 done, 2 failed" in said
    catalogue.tables.cache_clear()


def test_fine_tunings_of_one_cell_start_from_the_same_weights(tmp_path, monkeypatch):
    public_only = STARTS.replace("--mechanism=dpsgd --noise_multiplier=4", "--mechanism=none")
    (tmp_path / "paper.toml").write_text(public_only.replace("seeds = 1", "seeds = 3"))
    monkeypatch.setattr(catalogue, "_FOLDER", tmp_path)
    catalogue.tables.cache_clear()
    fine, public, _ = (cell for table in tables() for cell in table.cells)
    results = tmp_path / "r"
    running.train(public, (1,), results, None)
    running.train(fine, (1,), results, None)
    kept, left = records.collect(results, [fine, public])
    assert not left and records.seeds_in(kept, fine) == {1}
    # The others of a cell that is recorded would start from weights that are made again.
    shutil.rmtree(results)
    assert running.missing([fine], results, kept) == [(public, (1,)), (fine, (1, 2, 3))]
    assert running.missing([fine, public], results, kept)[0] == (public, (1, 2, 3))
    fewer = [dataclasses.replace(cell, seeds=(1, 2)) for cell in (fine, public)]
    assert running.missing(fewer, results, kept)[0] == (public, (1, 2))
    running.train(public, (1,), results, None)  # the weights are here, and others than those
    assert running.missing([fine], results, kept) == [(fine, (1, 2, 3))]
    shutil.rmtree(results)
    other = {"2": kept[fine.source]["1"] | {"initial_weights_sha256": "of another file"}}
    assert records.merge(kept, {fine.source: other}) == {**kept, fine.source: other}
    settings = other["2"]["settings"] | {"seed": 2}
    mixed = {**kept, fine.source: {**kept[fine.source], "2": other["2"] | {"settings": settings}}}
    assert (
        records.seeds_in(mixed, fine) == {2} and len(records.measured(fine, mixed).accuracies) == 1
    )
    # Where one of them is here without these weights, no other is begun, whatever is named beside it.
    running.train(public, (1,), results, None)
    running.train(fine, (1,), results, None)
    shutil.rmtree(records.place(results, public, 1))
    for chosen in ([fine], [public, fine]):
        with pytest.raises(ResultError, match="which are not there any more"):
            running.missing(chosen, results)
    catalogue.tables.cache_clear()
