"""A sitting on a GPU: its plan, its clock and its report, with answers that no GPU gave."""

import argparse

import pytest

from benchmarks import gpu, gpu_report, results, subjects

CARD = "Some GPU, driver 1.2"


@pytest.fixture
def sheet(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "_gpu", lambda: CARD)
    return results.Results(tmp_path / "gpu.json", {"steps": 5}, device="gpu")


def flags(**changes):
    known = {"models": ["mlp", "resnet18"], "lots": list(gpu.LOTS), "repeats": 1, "minutes": None}
    return argparse.Namespace(**{**known, "timeout": 300.0, "memory_gib": 64.0, **changes})


def answer(family, spec, points):
    """Steps of one microsecond for each example, twice that if private; 16,384 rows fill the memory."""
    for point in points:
        if family.name == "floor":
            device = point["subject"] == "device"
            names = ("tflop_per_s", "gb_per_s") if device else ("gflop", "gbyte")
            yield {
                "parts": dict(zip(names, (50.0, 3000.0) if device else (100.0, 1.5), strict=True))
            }
        elif point["subject"] == "opacus_hooks" and point["lot"] >= 2048:
            yield {"skipped": "out of memory"}
        else:
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
        return list(answer(family, spec, points))

    monkeypatch.setattr(gpu, "measure_all", measured)
    return processes


def test_a_sitting_measures_all_and_nothing_twice(sheet, asked):
    gpu.sit(flags(), {}, sheet)
    count = len(sheet.content["gpu"])
    planned = [p for _, _, points in gpu.plan(1, ["mlp", "resnet18"]) for p in points]
    assert count == len(planned) == len({tuple(p.items()) for p in planned})
    del asked[:]
    gpu.sit(flags(), {}, sheet)
    assert not asked
    assert len(sheet.content["gpu"]) == count


def test_a_kill_at_the_end_of_the_sitting_is_no_result(sheet, monkeypatch):
    killed = [{"skipped": "not done within 30 s, compilation included"}]
    monkeypatch.setattr(gpu, "measure_all", lambda *a, **k: killed)
    gpu.sit(flags(minutes=0.5), {}, sheet)
    assert not sheet.content.get("gpu")


def test_the_report_has_ratios_floor_and_the_largest_lot(sheet, asked):
    gpu.sit(flags(), {}, sheet)
    text = "\n".join(gpu_report.lines(sheet.content))
    assert CARD in text
    row = next(line for line in text.splitlines() if line.startswith("| resnet18 | 4,096"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    # 100 GFLOP and 1.5 GB for 1,024 rows: 2 ms at 50 TFLOP/s, 0.5 ms at 3 TB/s.
    assert cells[2:6] == ["4.1", "4.1", "8.19", "2"]
    assert cells[6:9] == ["1.4", "500,000", "200"]
    assert cells[-1] == "8"
    assert "tfdp 32,768; Opacus, hooks 1,024" in text
