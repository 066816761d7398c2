"""A sitting on a GPU: its plan, its clock and its report, with answers that no GPU gave."""

import argparse
import threading

import pytest

from benchmarks import gpu, gpu_report, results, subjects
from benchmarks.peers import protocol

CARD = "Some GPU, driver 1.2"


@pytest.fixture
def sheet(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "_gpu", lambda: CARD)
    return results.Results(tmp_path / "gpu.json", {"steps": 5}, device="gpu")


def flags(**changes):
    known = {
        "models": ["tutorial_cnn", "resnet18"],
        "lots": list(gpu.LOTS),
        "repeats": 1,
        "minutes": None,
    }
    return argparse.Namespace(**{**known, "timeout": 300.0, "memory_gib": 64.0, **changes})


def answer(points):
    """Steps of one microsecond for each example, twice that if private."""
    for point in points:
        times = 2 if point["subject"] in subjects.PEERS else 1
        step = times * point["lot"] / 1000
        yield {"step_ms": step, "first_step_seconds": 1.0, "peak_mib": 100.0 * times}


@pytest.fixture
def asked(monkeypatch):
    """Replaces the processes by `answer`; returns the list of the points of each."""
    processes = []

    def measured(python, family, spec, points, **limits):
        assert spec["device"] == "gpu"
        processes.append(points)
        return list(answer(points))

    monkeypatch.setattr(gpu, "measure", measured)
    return processes


def test_a_sitting_measures_all_and_nothing_twice(sheet, asked):
    gpu.sit(flags(), {}, sheet)
    count = len(sheet.content["gpu"])
    planned = [p for task in gpu.plan(1, ["tutorial_cnn", "resnet18"]) for p in task.points]
    assert count == len(planned) == len({tuple(p.items()) for p in planned})
    del asked[:]
    gpu.sit(flags(), {}, sheet)
    assert not asked
    assert len(sheet.content["gpu"]) == count


def test_a_kill_at_the_end_of_the_sitting_is_no_result(sheet, monkeypatch):
    killed = [{"skipped": "not done within 30 s, compilation included"}]
    monkeypatch.setattr(gpu, "measure", lambda *a, **k: killed)
    gpu.sit(flags(minutes=0.5), {}, sheet)
    assert not sheet.content.get("gpu")


def test_the_report_has_times_and_ratios(sheet, asked):
    gpu.sit(flags(), {}, sheet)
    text = "\n".join(gpu_report.lines(sheet.content))
    assert CARD in text
    row = next(line for line in text.splitlines() if line.startswith("| resnet18 | 4,096"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:5] == ["4.1", "8.19", "2"]
    assert cells[8] == "1.5"


def waits(turn):
    """Starts to wait for a turn in a thread; returns the thread if it still waits."""
    thread = threading.Thread(target=turn, daemon=True)
    thread.start()
    thread.join(0.2)
    return thread if thread.is_alive() else None


def test_processes_prepare_side_by_side_and_time_alone(tmp_path):
    one, other = (protocol.Turn(tmp_path / "turns") for _ in range(2))
    assert not waits(other.prepare) and not waits(one.prepare)
    early = waits(one.time)  # until the other has prepared
    assert early
    wants = waits(other.time)
    early.join(5)
    assert early.is_alive() != (wants is not None and wants.is_alive())  # one of them times


def test_who_wants_to_time_goes_before_who_wants_to_prepare(tmp_path):
    one, other, third = (protocol.Turn(tmp_path / "turns") for _ in range(3))
    one.time()
    wants, late = waits(other.time), waits(third.prepare)
    again = waits(one.prepare)
    wants.join(5)
    assert not wants.is_alive()
    assert late.is_alive() and again.is_alive()
