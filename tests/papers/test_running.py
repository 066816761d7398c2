"""Runs of cells: what is missing, how they end, and what is recorded of them."""

import os
import signal
import threading
import time

import pytest

from papers import records, running
from papers.catalogue import cells
from tests.papers.conftest import CATALOGUE

A = "paper/T1/a/2"


def asked(folder):
    return (folder / "asked").read_text().splitlines()


def test_only_what_is_missing_is_run(small, tmp_path):
    folder = tmp_path / "results" / A
    assert small("run", "paper.T1.a", "--seeds=1") == (
        0,
        "paper.T1.a.2: 61.00 (1)\npaper.T1.a.3: 61.00 (1)\n",
    )
    for _ in range(2):
        assert "paper.T1.a.2: 61.50 ± 0.50 (2)" in small("run", "paper.T1")[1]
    assert asked(folder) == ["['1']", "['2']"]
    record = records.collect(tmp_path / "results", cells())["paper.T1.a.2"]
    assert record.flags == ("--mechanism=dpsgd", "--epsilon=2")
    assert record.seeds[2]["code"]["commit"] == "abc" and record.seeds[2]["lost_steps"] == 5


def test_a_fine_tuning_starts_from_weights_that_are_trained_first(small, tmp_path):
    assert small("run", "paper.T2.fine", "--seeds=1")[0] == 0
    found = records.collect(tmp_path / "results", cells())
    assert {*found} == {"paper.T2.public.-", "paper.T2.fine.-"}
    assert "--initial_weights=paper.T2.public.-" in found["paper.T2.fine.-"].flags


def test_a_seed_that_fails_keeps_the_others(small, use, tmp_path):
    use(CATALOGUE.replace("0.3", "0"))
    status, said = small("run", "paper.T2")
    assert status == 2 and "paper.T2.fine.-: failed: train.py: error: It diverged." in said
    assert "paper.T2.public.-: 61.00 (1)" in said
    found = records.collect(tmp_path / "results", cells())
    assert {*found["paper.T2.fine.-"].seeds} == {1}


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
    assert (folder / "saved").exists()
    assert "fine.-: the paper prints nothing; here 61.00 (1)" in small("list", "paper.T2.fine")[1]


def test_results_with_other_flags_are_neither_shown_nor_continued(results, small, use):
    kept = records.collect(results, cells())
    use(CATALOGUE.replace("dpsgd", "sgld").replace("weights = 20", "weights = 21"))
    a, computed = cells(["paper.T1.a.2", "paper.F1.laplace.1"])
    for cell in (a, computed):
        assert not records.runs_of(cell, kept) and cell.name not in records.collect(
            results, cells()
        )
        status, said = small("run", cell.name)
        assert status == 2 and "other flags" in said
    # New runs replace all that have other flags.
    new = {a.name: records.Record(a.flags, {1: {"test_accuracy": 0.5}})}
    assert records.merge(kept, new)[a.name] == new[a.name]


def test_what_is_recorded_can_be_left_out(results, small, tmp_path):
    records.write(tmp_path / "kept/paper.json", records.collect(results, cells()))
    (results / A / "record.json").unlink()
    assert small("run", "paper", "--skip_recorded") == (0, "")


def test_records_are_read_as_they_were_written(tmp_path):
    run = {"test_accuracy": 0.5, "claimed": {"epsilon": "inf"}, "curve": [[1.0, 0.5]]}
    some = {
        "a.T.r.1": records.Record(("--x=1",), {1: run, 10: run}),
        "a.T.r.0.5": records.Record((), {2: {"values": {"v": [1.0]}, "seconds": 0.5}}),
    }
    path = tmp_path / "a.json"
    records.write(path, some)
    assert records.read(path) == some


def test_what_is_recorded_is_of_the_catalogue():
    known = {cell.source: cell for cell in cells()}
    for name, record in records.read().items():
        assert {*records.runs_of(known[name], {name: record})} == {*record.seeds}


def test_a_command_trains_a_cell_alone(tmp_path):
    (cell,) = cells(["batch_norm.T6.ln.4"])
    words = running.command(cell, [2, 3], tmp_path)
    start = tmp_path / "batch_norm/pretraining/ln/accuracy/seed=1/model.keras"
    assert {"--sweep=seed=2,3", f"--initial_weights={start}"} < {*words}
