"""Trainings of cells: what is missing, what is collected, and which figures the pages show."""

import json
import math
import shutil
from pathlib import Path

import pytest
from tfdp.experiments.partial_folder import ResultError

from tests.papers.small_catalogue import CATALOGUE, STARTS, use
from tfdp.experiments import __main__ as command
from tfdp.experiments.result_folder import ResultFolder
from tfdp.papers import pages, records, running
from tfdp.papers.catalogue import cells, named

A = "paper/T1/a/2"


def main(capsys, *arguments, status=0):
    """Runs the command; returns what it printed, without line ends."""
    capsys.readouterr()
    assert command.main([*map(str, arguments)]) == status
    said = capsys.readouterr()
    return " ".join((said.out + said.err).replace("│", " ").split())


def accuracy(folder):
    return 100 * json.loads((folder / "run.json").read_text())["test_accuracy"]


def change(folder, **changes):
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# -- run -----------------------------------------------------------------------------------------


def test_only_what_is_missing_is_trained(results):
    shutil.rmtree(results / A / "seed=2")
    fine, public, _ = cells(["paper.T2"])
    a, b = cells(["paper.T1.a"])
    assert running.missing([a, b], results) == [(a, (2,))]
    assert running.missing([fine, public], results) == [(fine, (2,))]
    before = (results / A / "seed=1" / "run.json").read_text()
    running.train(a, (1, 2), results, None)
    assert running.missing([a, b], results) == []
    assert (results / A / "seed=1" / "run.json").read_text() == before
    record = json.loads(before)
    assert (record["cell"], record["seed"]) == (a.name, 1)
    assert record["code"]["tfdp"] and "commit" in record["code"]


def test_a_run_tells_how_its_cells_ended(results, monkeypatch, capsys):
    """Trainings are answered by exit statuses in place of processes."""

    class Ended:
        def __init__(self, returncode):
            self.returncode = returncode

        def poll(self):
            return self.returncode

    def start(cell, seeds, results, data_dir, jobs):
        log = results / cell.folder / "log.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("It failed.\n")
        begun.append(cell.name)
        return running._Running(Ended(statuses.pop(0)), cell, seeds, 0.0, log)

    monkeypatch.setattr(running, "_start", start)
    begun, statuses = [], [1]
    run = ("run", "paper.T1", "paper.T2", f"--results={results}")
    assert "3 done, 1 failed" in main(capsys, *run, status=2)
    shutil.rmtree(results / A)
    statuses, begun = [running.BUSY, 1], []
    said = main(capsys, *run, status=2)
    assert "1 failed, 1 busy" in said and "seeds 1, 2" in said and "It failed." in said
    assert begun == ["paper.T1.a.2", "paper.T2.fine.-"]
    statuses = [-9, running.AGAIN, running.AGAIN]  # steps that were lost are trained again, once
    said = main(capsys, *run, status=2)
    assert "SIGKILL" in said and "2 failed" in said and statuses == []
    said = main(capsys, *run, "--budget_minutes=1e-9", status=75)
    assert "2 left" in said


def test_a_cell_that_another_process_makes_is_no_failure(results, capsys):
    shutil.rmtree(results / A)
    (cell,) = cells(["paper.T1.a.2"])
    with ResultFolder(records.place(results, cell, 1)):
        main(capsys, "train", cell.name, "--seeds=1,2", f"--results={results}", status=75)
    assert [records.done(results, cell, seed) is not None for seed in (1, 2)] == [False, True]


def test_what_is_recorded_can_be_left_out(results, small, monkeypatch, capsys):
    pages.write_pages(results, small / "pages")
    monkeypatch.setattr(command, "_PAGES", str(small / "pages"))
    arguments = ["run", "paper.T1.a", f"--results={small / 'new'}", "--skip_recorded"]
    assert "2 done" in main(capsys, *arguments)
    assert not (small / "new").exists()


@pytest.mark.slow
def test_a_process_computes_a_cell_that_is_compared_with_the_record(tmp_path, capsys):
    name, results = "dropout.F1_sigma_digits.ac.0.5", f"--results={tmp_path / 'results'}"
    main(capsys, "run", name, results)
    said = main(capsys, "compare", name, results)
    assert "ac.0.5: sigma" in said and "ac.0.5: proven epsilon" in said and "+0" in said


# -- which trainings are figures of a cell -------------------------------------------------------


def test_a_training_that_lost_steps_is_no_figure(results):
    a = cells(["paper.T1.a.2"])
    change(results / A / "seed=1", steps=1000, training={"lost_steps": 10})
    found, left = records.collect(results, a)
    assert len(found["paper.T1.a.2"]) == 2 and not left
    change(results / A / "seed=1", training={"lost_steps": 11})
    found, left = records.collect(results, a)
    assert {*found["paper.T1.a.2"]} == {"2"} and len(left) == 1
    with pytest.raises(ResultError, match="11 of 1,000"):
        running.missing(a, results)


def test_trainings_with_other_settings_are_not_shown(results, small, capsys):
    out = small / "pages"
    pages.write_pages(results, out)
    with use((CATALOGUE + STARTS).replace("multiplier=4", "multiplier=5")):
        (cell,) = cells(["paper.T1.a.2"])
        kept = records.read(out / "records.json")
        assert records.measured(cell, kept) is None
        main(capsys, "run", cell.name, f"--results={results}", status=2)
        said = main(capsys, "report", f"--results={small / 'none'}", f"--out={out}")
        assert "paper.T1: 4 recorded trainings are not shown" in said
        assert records.read(out / "records.json") == kept  # and they stay recorded


def test_a_training_belongs_to_the_weights_that_it_started_from(results, small):
    fine, public, _ = cells(["paper.T2"])
    moved = small / "moved"
    results.rename(moved)  # however the folder of all results is called
    kept, left = records.collect(moved, [fine, public])
    assert not left and records.seeds_in(kept, fine) == {1}
    # With other settings of the first training, the second is no figure of this cell any more.
    changed = STARTS.replace('label = "Public"', 'label = "Public"\nflags = "--learning_rate=0.7"')
    with use(CATALOGUE + changed):
        fine = named(fine.name)
        with pytest.raises(ResultError, match="--learning_rate=0"):
            records.done(moved, fine, 1)
        assert records.seeds_in(kept, fine) == set()
    # Other seeds would start from weights that are trained again.
    shutil.rmtree(records.place(moved, public, 1))
    with pytest.raises(ResultError, match="seed 1"):
        running.missing([fine], moved)
    shutil.rmtree(moved)
    assert running.missing([fine], moved) == [(public, (1,)), (fine, (1, 2))]
    assert running.missing([fine], moved, kept) == [(public, (1,)), (fine, (1, 2))]


def test_records_that_started_from_other_weights_are_no_repetitions(results):
    fine, public, _ = cells(["paper.T2"])
    kept, _ = records.collect(results, [fine, public])
    first = kept[fine.source]["1"]
    other = first | {"initial_weights_sha256": "other", "settings": first["settings"] | {"seed": 2}}
    mixed = {**kept, fine.source: {"1": first, "2": other}}
    assert records.seeds_in(mixed, fine) == {1}
    assert len(records.measured(fine, mixed).accuracies) == 1
    assert len(records.shown(mixed)[1]) == 1
    assert records.merge(kept, {fine.source: {"2": other}})[fine.source] == {"2": other}


# -- lists and pages -----------------------------------------------------------------------------


def test_the_list_shows_what_there_is(results, capsys):
    here = f"--results={results}"
    assert "paper.T2 fine-tuning 3 3 ? 0 2 ?" in main(capsys, "list", here)
    (results / "paper/T2/fine/-/seed=2.secret").mkdir()
    said = main(capsys, "list", "paper", here)
    assert "50.0 ± 0.5; seeds 1 to 2: 0 recorded, 2 here" in said and "1 unfinished" in said
    assert "not run: It would cost an hour." in said and "the paper quotes it" in said
    assert "'paper.T" in main(capsys, "run", "paper.T", status=2)


def test_a_training_here_is_compared_with_the_record(results, small, monkeypatch, capsys):
    pages.write_pages(results, small / "pages")
    monkeypatch.setattr(command, "_PAGES", str(small / "pages"))
    said = main(capsys, "compare", "paper.T1", f"--results={results}")
    assert "paper.T1.a.2" in said and "+0.00 +0.0" in said
    monkeypatch.setenv("COLUMNS", "40")  # a narrow terminal has lines in place of columns
    assert "difference +0.00" in main(capsys, "compare", "paper.T1", f"--results={results}")


def test_the_pages_have_the_figures_of_the_records(results, small, capsys):
    out = small / "pages"
    shutil.rmtree(results / "paper/T2/fine")
    main(capsys, "report", f"--results={results}", f"--out={out}")
    page = (out / "README.md").read_text()
    one, two = (accuracy(results / A / f"seed={seed}") for seed in (1, 2))
    assert f"| {(one + two) / 2:.2f} ± {abs(one - two) / 2:.2f} (2) | " in page
    assert "| **Row A: paper** | 50.00 ± 0.50 | NC |" in page
    assert "| **Row C: quoted** | 1.00 | 2.00 |" in page
    for remark in ("Row A: All of it.", "Not run: Row B at 2, Row B at 3.", "A note."):
        assert remark in page
    html = (out / "index.html").read_text()
    assert "data:image/png;base64," in html and 'src="http' not in html
    # They can be made again without the results.
    main(capsys, "report", f"--results={small / 'nothing'}", f"--out={out}")
    assert (out / "README.md").read_text() == page
    # What is missing has a cost by the time of others.
    kept = records.read(out / "records.json")
    kept["paper.T2.public.-"]["1"]["seconds"] = 300.0
    records.write(out / "records.json", kept)
    pages.write_pages(small / "nothing", out)
    said = "Fine-tuned at -; The same at -. All of them, one seed each, take about 5 minutes."
    assert said in (out / "README.md").read_text()


def test_yours_have_a_line_of_their_own_and_leave_the_recorded_pages(
    results, small, monkeypatch, capsys
):
    recorded = small / "recorded"
    pages.write_pages(results, recorded)
    (recorded / "findings.md").write_text("# Found\n\n## Of one\n\n[audits](../audits.md)\n")
    before = {path.name: path.read_bytes() for path in recorded.iterdir()}
    for seed in (1, 2):
        change(results / A / f"seed={seed}", test_accuracy=0.25)
    monkeypatch.setattr(command, "_PAGES", str(recorded))
    main(capsys, "report", f"--results={results}")
    out = results / "pages"
    assert "| &emsp;yours | 25.00 ± 0.00 (2) |" in (out / "README.md").read_text()
    assert not (out / "records.json").exists()
    assert (out / "findings.md").read_text().endswith("[audits](../../audits.md)\n")
    assert "<h3>Of one</h3>" in (out / "index.html").read_text()
    assert {path.name: path.read_bytes() for path in recorded.iterdir()} == before
    # With --out they join the records.
    main(capsys, "report", f"--results={results}", f"--out={small / 'joined'}")
    page = (small / "joined" / "README.md").read_text()
    assert "yours" not in page.split("## ")[1] and "| &emsp;here | 25.00 ± 0.00 (2) |" in page


def test_pages_of_something_else_are_not_written_over(small, capsys):
    (small / "project").mkdir()
    (small / "project" / "README.md").write_text("mine")
    main(capsys, "report", f"--results={small}/r", f"--out={small / 'project'}", status=2)
    assert [path.name for path in (small / "project").iterdir()] == ["README.md"]
    assert (small / "project" / "README.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("epsilon", "said"),
    [
        (2.00001, "2.001"), (50.5, "(51)"), (99_999.5, "(100000)"), (1.2e5, "(2e5)"),
        (9.5e5, "(1e6)"), (math.inf, "infinite"),
    ],
)  # fmt: skip
def test_epsilons_of_a_table_are_short_and_not_too_small(epsilon, said):
    found = records.Measured((60.0,), 1.0, epsilon, 1e-5, 1.0, ("0",))
    assert pages._epsilon(found, "proven") == said
    assert float(said.strip("()").replace("infinite", "inf")) >= epsilon


def test_the_recorded_collection_is_that_of_the_catalogue():
    kept = records.read(Path(__file__).parents[2] / "docs" / "papers" / "records.json")
    found, left = records.shown(kept)
    assert found.keys() == kept.keys() and not left
