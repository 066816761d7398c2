"""Trainings of cells: what is missing, what is collected, and which figures the pages show."""

import fcntl
import json
import math
import os
import shutil
import signal
import threading
import time

import pytest

from papers import pages, records, running
from papers.catalogue import cells
from papers.records import Guarantee, Measured, Record, Training, Values
from tests.papers.conftest import CATALOGUE

A = "paper/T1/a/2"
NOTHING = Guarantee(math.inf, 1e-5, "zero_out", "No noise.")
SOME = Training(0.5, 10, 100, 20, (2.0, 1.0), Guarantee(2.0, 1e-5, "zero_out"), NOTHING, 3.0)


def change(folder, **changes):
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def asked(folder):
    return (folder / "asked").read_text().split()


# -- run -----------------------------------------------------------------------------------------


def test_only_what_is_missing_is_trained(results, small):
    shutil.rmtree(results / A / "seed=2")
    a, b = cells(["paper.T1.a"])
    assert running.missing([a, b], results) == {a.name: (a, [2])}
    status, said = small("run", "paper.T1.a")
    assert status == 0 and "2 done" in said and "62.00%" in said
    assert asked(results / A) == ["1", "2", "2"]
    about = json.loads((results / A / "seed=2.json").read_text())
    assert (
        about["flags"] == ["--mechanism=dpsgd", "--epsilon=2"] and about["code"]["commit"] == "abc"
    )


def test_a_fine_tuning_starts_from_weights_that_are_trained_first(small, tmp_path):
    (cell,) = cells(["paper.T2.fine"])
    todo = running.missing([cell], tmp_path)
    assert {*todo} == {"paper.T2.public.-", "paper.T2.fine.-"}
    assert small("run", "paper.T2.fine", "--seeds=1")[0] == 0
    found = records.collect(tmp_path / "results", [cell])
    assert found["paper.T2.fine.-"].start == "paper.T2.public.-"


def test_a_run_tells_how_its_cells_ended(small, use, tmp_path):
    use(CATALOGUE.replace("0.3", "0"))
    status, said = small("run", "paper", "--seeds=1", "--jobs=2")
    assert status == 2 and "4 done, 1 failed" not in said and "It diverged." in said
    assert "3 done, 1 failed" in said
    use(CATALOGUE)
    status, said = small("run", "paper.T2", "--budget_minutes=1e-9")
    assert status == 75 and "1 left" in said
    with open(tmp_path / "results/paper/T2/fine/-/log.txt", "a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)  # as a process that makes it
        status, said = small("run", "paper.T2")
    assert status == 75 and "1 busy" in said


def test_an_interruption_lets_a_training_write_its_state(small, use, tmp_path):
    use(CATALOGUE.replace("0.3", "1"))
    folder = tmp_path / "results/paper/T2/fine/-"

    def interrupt():
        while not (folder / "waits").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        small("run", "paper.T2.fine")
    assert (folder / "saved").exists() and asked(folder) == ["1"]


def test_what_is_recorded_can_be_left_out(results, small, tmp_path):
    found = records.collect(results, cells())
    records.write(tmp_path / "kept", found)
    shutil.rmtree(results)
    status, said = small("run", "paper.T1.a", "--skip_recorded")
    assert status == 0 and "2 done" in said and not results.exists()


# -- records -------------------------------------------------------------------------------------


def test_records_are_read_as_they_were_written(tmp_path):
    some = {
        "a.T.r.1": Record(("--x=1",), {1: SOME, 10: SOME}, "a.T.s.1"),
        "b.T.r.0.5": Record((), {2: Values({"v": [1.0, 2.0]}, 0.5, {"commit": "abc"})}),
    }
    records.write(tmp_path, some)
    assert records.read(tmp_path) == some


def test_trainings_with_other_flags_are_not_shown(results, small, use):
    kept = records.collect(results, cells())
    use(CATALOGUE.replace("--mechanism=dpsgd", "--mechanism=sgld"))
    (cell,) = cells(["paper.T1.a.2"])
    assert records.measured(cell, kept) is None
    status, said = small("run", cell.name)
    assert status == 2 and "other flags" in said
    # New trainings replace all that have other flags.
    new = {cell.name: Record(cell.flags, {1: SOME})}
    assert records.merge(kept, new)[cell.name] == new[cell.name]


def test_what_is_recorded_is_of_the_catalogue():
    known = {cell.source: cell for cell in cells()}
    for name, record in records.read().items():
        assert {*records.runs_of(known[name], {name: record})} == {*record.seeds}


# -- lists and pages -----------------------------------------------------------------------------


def test_the_list_fits_80_columns(results, small):
    status, said = small("list")
    assert status == 0 and max(map(len, said.splitlines())) <= 80
    assert "paper.T2 3 3 0 3 ? 0 fine-tuning" in " ".join(said.split())
    (results / A / "seed=1" / "run.json").unlink()
    said = " ".join(small("list", "paper")[1].split())
    assert "50.0 ± 0.5; seeds 1 to 2: 0 recorded, 1 here, 1 unfinished" in said
    assert "not run: It would cost an hour." in said and "the paper quotes it" in said
    assert "'paper.T" in small("run", "paper.T")[1]


def test_the_pages_have_the_figures_of_the_records(results, small, tmp_path, monkeypatch):
    write_page(tmp_path, monkeypatch)
    shutil.rmtree(results / "paper/T2/fine")
    assert small("report", f"--out={tmp_path / 'out'}")[0] == 0
    page = (tmp_path / "out" / "p" / "page.md").read_text()
    assert "| &emsp;here | 61.50 ± 0.50 (2) | " in page
    assert "| **Row A: paper** | 50.00 ± 0.50 | NC |" in page
    assert "| **Row C: quoted** | 1.00 | 2.00 |" in page
    for remark in (
        "Row A: All of it.",
        "Not run: Row B at 2, Row B at 3.",
        "A note.",
        "commit abc",
    ):
        assert remark in page
    # What is missing has a cost by the time of others.
    assert "Fine-tuned at -; The same at -. All of them, one seed each, take about 1 minute" in page
    # They can be made again without the results.
    kept = records.RECORDS
    shutil.copytree(tmp_path / "out/papers/records", tmp_path / "kept")
    shutil.rmtree(results)
    assert small("report", f"--out={tmp_path / 'again'}")[0] == 0 and kept == records.RECORDS
    assert (tmp_path / "again" / "p" / "page.md").read_text() == page


def test_yours_have_a_line_of_their_own(results, small, tmp_path, monkeypatch):
    write_page(tmp_path, monkeypatch)
    found = records.collect(results, cells())
    records.write(tmp_path / "kept", found)
    for seed in (1, 2):
        change(results / A / f"seed={seed}", test_accuracy=0.25)
    small("report")
    page = (results / "pages" / "p" / "page.md").read_text()
    assert (
        "| &emsp;yours | 25.00 ± 0.00 (2) |" in page
        and not (results / "pages/papers/records").exists()
    )
    # With --out they join the records.
    small("report", f"--out={tmp_path / 'joined'}")
    page = (tmp_path / "joined" / "p" / "page.md").read_text()
    assert "yours" not in page and "| &emsp;here | 25.00 ± 0.00 (2) |" in page


def write_page(folder, monkeypatch):
    """Makes one page of the small catalogue."""
    path = folder / "pages.toml"
    path.write_text(
        '[[pages]]\npath = "p/page.md"\ntitle = "A page"\npapers = ["paper"]\nintroduction = "Read."\n'
    )
    monkeypatch.setattr(pages, "_PAGES", path)


@pytest.mark.parametrize(
    ("epsilon", "said"),
    [
        (2.00001, "2.001"), (50.5, "(51)"), (99_999.5, "(100000)"), (1.2e5, "(2e5)"),
        (9.5e5, "(1e6)"), (math.inf, "infinite"),
    ],
)  # fmt: skip
def test_epsilons_of_a_table_are_short_and_not_too_small(epsilon, said):
    proven = Guarantee(epsilon, 1e-5, "zero_out")
    found = Measured((Training(0.6, 1, 1, 1, 1.0, proven, proven, 1.0),))
    assert pages._epsilon(found, "proven") == said
    assert float(said.strip("()").replace("infinite", "inf")) >= epsilon
