"""The benchmark harness: flags, order, resuming, limits and report, and one tiny measurement."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import overhead, report, results, scale, subjects, summary
from benchmarks.measure import measure, measure_all

STORED = Path(__file__).parent / "results.json"
SPEC = {"steps": 5, "warmup": 2, "seconds": 1.0, "max_step_seconds": 20.0, "timeout": 90.0}


def program(tmp_path, text):
    """Returns a family whose program is `text` and runs with this Python."""
    path = tmp_path / "program.py"
    path.write_text(text)
    return subjects.Family("other", "plain", str(path), own_environment=False)


def run(tmp_path, text, timeout=20.0, memory_gib=4.0):
    family = program(tmp_path, text)
    return measure(Path(sys.executable), family, SPEC, timeout=timeout, memory_gib=memory_gib)


class TestFlags:
    def test_lists(self):
        arguments = ["--models=mlp,lenet5,mlp", "--lots=8", "--peers=opacus_ghost,tfdp"]
        flags = command.parser().parse_args(arguments)
        assert (flags.models, flags.lots) == (["mlp", "lenet5"], [8])
        assert flags.peers == ["opacus_ghost", "tfdp"]
        assert command.parser().parse_args([]).models == list(subjects.MODELS)

    @pytest.mark.parametrize("argument", ["--models=vgg", "--lots=0", "--peers=me", "--repeats=0"])
    def test_refuses(self, argument, capsys):
        with pytest.raises(SystemExit):
            command.parser().parse_args([argument])
        assert argument.split("=")[0] in capsys.readouterr().err


class TestPlan:
    def test_baseline_and_private_follow_each_other_in_changing_order(self):
        order = list(command.plan(["mlp"], [8], ["tfdp", "opacus_ghost", "opacus_hooks"], 2))
        names = [subject for _, _, _, subject in order]
        assert names == [
            *["keras_tf", "tfdp", "pytorch", "opacus_ghost", "opacus_hooks"],
            *["tfdp", "keras_tf", "opacus_hooks", "opacus_ghost", "pytorch"],
        ]

    def test_a_round_is_whole_before_the_next(self):
        order = list(command.plan(["mlp", "lenet5"], [8, 16], ["tfdp"], 3))
        rounds = [number for number, *_ in order]
        assert rounds == sorted(rounds)
        assert len(order) == 2 * 2 * 2 * 3

    def test_every_subject_has_family_and_label(self):
        for subject in (*subjects.PEERS, *(f.baseline for f in subjects.FAMILIES.values())):
            assert subjects.family_of(subject).path.exists()
            assert subject in subjects.LABELS


class TestMeasure:
    def test_record(self, tmp_path):
        answer = {"durations": [0.004, 0.002, 0.003], "first_step_seconds": 1, "start_mib": 9}
        answer |= {"peak_mib": 12, "versions": {"a": "1"}}
        record = run(tmp_path, f"print('noise'); print({json.dumps(json.dumps(answer))})")
        assert record["step_ms"] == 3.0
        assert (record["min_ms"], record["max_ms"], record["times"]) == (2.0, 4.0, 3)
        assert record["peak_mib"] == 12
        assert record["versions"] == {"a": "1"}

    @pytest.mark.parametrize("kind", results.REASONS)
    def test_reasons(self, tmp_path, kind):
        text = f'print(\'{{"{kind}": "because of a/b/c.py here\\\\nand more"}}\')'
        assert run(tmp_path, text)[kind] == "because of c.py here"

    def test_crash(self, tmp_path):
        assert "exit code 3" in run(tmp_path, "import sys; sys.exit(3)")["failed"]

    def test_no_time(self, tmp_path):
        record = run(tmp_path, "import time; time.sleep(60)", timeout=0.5)
        assert "not done within" in record["skipped"]

    def test_no_memory(self, tmp_path):
        text = "import time; block = bytearray(200 << 20); time.sleep(60)"
        assert "needs more than" in run(tmp_path, text, memory_gib=0.1)["skipped"]

    def test_a_process_answers_point_after_point(self, tmp_path):
        text = (
            "import json, sys\n"
            "for point in json.loads(sys.argv[1])['points']:\n"
            "    if point['n'] == 2: sys.exit(3)\n"
            "    print(json.dumps({'parts': point}))\n"
        )
        points = [{"n": n} for n in range(4)]
        limits = {"timeout": 20.0, "memory_gib": 4.0}
        found = measure_all(sys.executable, program(tmp_path, text), {}, points, **limits)
        assert [record.get("parts") for record in found] == [{"n": 0}, {"n": 1}, None]
        assert found[2]["failed"].startswith("exit code 3")


class TestClock:
    @pytest.fixture
    def protocol(self, monkeypatch):
        monkeypatch.syspath_prepend(str(subjects.HERE / "peers"))
        import protocol

        self.now = 0.0
        monkeypatch.setattr(protocol.time, "perf_counter", lambda: self.now)
        return protocol

    def tick(self, clock, *elapsed):
        for seconds in elapsed:
            self.now += seconds
            clock.tick()

    def test_counts_after_the_warmup(self, protocol):
        clock = protocol.Clock(SPEC)  # 5 timed steps after 2 for warm-up
        self.tick(clock, 9.0, 0.1, 0.01, 0.02, 0.03, 0.04)
        with pytest.raises(protocol.Enough):
            self.tick(clock, 0.05)
        assert clock.first == pytest.approx(9.0)
        assert clock.durations == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05])

    def test_slow_steps_are_fewer(self, protocol):
        clock = protocol.Clock({**SPEC, "warmup": 10})
        self.tick(clock, 9.0, 6.0, 7.0, 7.0)
        with pytest.raises(protocol.Enough):
            self.tick(clock, 7.0)
        assert clock.durations == pytest.approx([7.0, 7.0, 7.0])

    def test_too_slow(self, protocol):
        clock = protocol.Clock(SPEC)
        with pytest.raises(protocol.TooSlow, match="25 s"):
            self.tick(clock, 100.0, 25.0)

    def test_epochs(self, protocol):
        clock = protocol.Clock({**SPEC, "seconds": 10.0})
        self.tick(clock, 9.0)
        for seconds in (5.0, 0.8, 0.4):  # 4 steps each; the first of them warms up
            self.now += seconds
            clock.tick(4)
        self.now += 0.6
        with pytest.raises(protocol.Enough):
            clock.tick(4)
        assert clock.durations == pytest.approx([0.2, 0.1, 0.15])
        assert clock.first == pytest.approx(9.0)


class TestResults:
    def test_resumes(self, tmp_path):
        path = tmp_path / "results.json"
        first = results.Results(path)
        first.add("mlp", 8, "tfdp", 0, {"step_ms": 1.0, "versions": {"tfdp": "x"}})
        first.add("mlp", 8, "tf_privacy", 0, {"failed": "no"})
        again = results.Results(path)
        assert again.done("mlp", 8, "tfdp", 0)
        assert not again.done("mlp", 8, "tfdp", 1)
        assert again.done("mlp", 8, "tf_privacy", 4)  # a failed measurement is not repeated
        assert again.content["versions"] == {"tfdp": {"tfdp": "x"}}

    def test_refuses_another_machine(self, tmp_path):
        path = tmp_path / "results.json"
        first = results.Results(path)
        first.content["machine"]["processor"] = "Z80"
        first.save()
        with pytest.raises(ValueError, match="another machine"):
            results.Results(path)


class TestSummary:
    def rows(self):
        return {(r.lot, r.subject): r for r in summary.rows(results.load(STORED))}

    def test_ratios_are_within_rounds(self):
        row = self.rows()[64, "tfdp"]
        # The ratios of the rounds are 1.5 / 1.0, 3.0 / 2.0 and 1.2 / 1.0.
        assert row.ratio == summary.Spread(1.5, 1.2, 1.5)
        assert row.step_ms == summary.Spread(1.5, 1.2, 3.0)
        assert row.memory_ratio.median == pytest.approx(1.1)

    def test_reasons_stay(self):
        assert self.rows()[64, "tf_privacy"].reason == "skipped: a step takes 31 s"
        assert self.rows()[64, "tf_privacy_fast"].reason == "not supported: no rule"

    def test_a_round_without_its_baseline_has_no_ratio(self):
        assert self.rows()[64, "opacus_ghost"].ratio is None


class TestReport:
    def test_writes_readme_and_plot(self, tmp_path):
        pytest.importorskip("matplotlib")
        assert report.main([str(STORED), f"--folder={tmp_path}"]) == 0
        text = (tmp_path / "README.md").read_text()
        assert (tmp_path / "benchmarks.png").stat().st_size > 10_000
        assert "| 64 | **tfdp** | 1.5 (1.2 to 3) | 1.5 (1.2 to 1.5) | 660 | 1.10 |" in text
        assert "| mlp | 64 | 1.5 | 1.5 (1.2 to 1.5) | 1.1 | 1 | 1 | 1.10 |" in text
        assert "| mlp | 64 | 1.5 | Opacus, ghost clipping | 4.5 |  | 3 |" in text
        assert "not supported: no rule" in text


class TestCommand:
    def arguments(self, tmp_path, *more):
        arguments = ["--models=mlp", "--lots=8", "--peers=tfdp", "--repeats=2", *more]
        return [*arguments, f"--json={tmp_path / 'r.json'}", f"--cache={tmp_path / 'cache'}"]

    @pytest.fixture
    def measured(self, monkeypatch):
        seen = []

        def pretend(python, family, spec, **bounds):
            seen.append(spec["subject"])
            times = {"step_ms": 1.0 + len(seen), "first_step_seconds": 1.0, "peak_mib": 5.0}
            return times | {"versions": {"a": "1"}}

        monkeypatch.setattr(command, "measure", pretend)
        return seen

    def test_measures_once(self, tmp_path, measured):
        for _ in range(2):
            assert command.main(self.arguments(tmp_path)) == 0
            assert measured == ["keras_tf", "tfdp", "tfdp", "keras_tf"]
        assert (tmp_path / "cache" / ".gitignore").read_text() == "*\n"

    def test_minutes(self, tmp_path, measured):
        assert command.main(self.arguments(tmp_path, "--minutes=1e-9")) == 0
        assert measured == []

    def test_refuses_to_mix_settings(self, tmp_path, measured, capsys):
        assert command.main(self.arguments(tmp_path)) == 0
        assert command.main(self.arguments(tmp_path, "--steps=7")) == 2
        assert "Expected the same flags" in capsys.readouterr().err
        assert command.main(self.arguments(tmp_path, "--timeout=7")) == 0


class TestScale:
    def records(self):
        return [
            {
                "round": 0,
                "subject": s,
                "lot": lot,
                "step_ms": 2 + lot / 100,
                "peak_mib": 700 + lot / 64,
            }
            for s, lot in scale.POINTS
        ]

    def test_a_line_is_found_and_what_is_no_line_is_seen(self):
        line = [(lot, 2 + 0.01 * lot) for lot in scale.LOTS]
        assert scale.line_through(line) == pytest.approx((2, 0.01, 0), abs=1e-9)
        bent = [(lot, 2 + 1e-5 * lot**2) for lot in scale.LOTS]
        assert scale.line_through(bent)[2] > 0.2

    def test_section(self):
        text = "\n".join(scale.lines({"scale": self.records()}))
        assert "| tfdp | 16,384 | 166 | 10.1 | 956 | 252 | 49.1 |" in text
        assert "2.00 ms + 10.00 us per example; no point is off that line by more than 0.0%" in text
        assert scale.lines({}) == []

    def test_command_measures_each_point_once(self, tmp_path, monkeypatch):
        seen = []

        def pretend(python, family, spec, **bounds):
            seen.append((spec["subject"], spec["lot"], spec.get("physical"), spec["examples"]))
            return {"step_ms": 1.0, "peak_mib": 5.0}

        monkeypatch.setattr(command, "measure", pretend)
        arguments = ["--scale", "--repeats=1", f"--json={tmp_path / 'r.json'}"]
        for _ in range(2):
            assert command.main([*arguments, f"--cache={tmp_path / 'cache'}"]) == 0
        assert [lot for _, lot, *_ in seen] == [256, *scale.LOTS]
        assert [physical for _, _, physical, _ in seen] == [None, *[256] * 4]


class TestOverhead:
    def test_section(self):
        times = {"fit": 11.0, "fit_plain": 10.5, "fit_cyclic": 10.2, "step": 10.0, "lots": 0.5}
        parts = times | {f"{name}_cpu": 2 * value for name, value in times.items()}
        text = "\n".join(overhead.lines({"overhead": [{"round": 0, "parts": parts}]}))
        assert "| `fit` with Poisson lots and accuracy | 11 | 10.0% | 22 | 10.0% |" in text
        assert overhead.lines({}) == []

    @pytest.mark.slow
    def test_measures(self):
        spec = {**SPEC, **overhead.SPEC, "model": "mlp", "examples": 600, "lot": 16}
        record = measure(Path(sys.executable), overhead.FAMILY, spec, timeout=90.0, memory_gib=4.0)
        assert record["parts"].keys() == {n + k for n in overhead.PARTS for k in ("", "_cpu")}
        assert min(record["parts"].values()) > 0


@pytest.mark.slow
def test_memory_is_that_of_the_physical_batch():
    """A lot of 2,048 needs more memory than one of 256 for its inputs, but not for activations."""

    def peak(lot, physical):
        spec = {**SPEC, "model": "tutorial_cnn", "lot": lot, "subject": "tfdp", "examples": 8192}
        spec["physical"] = physical
        family = subjects.FAMILIES["tfdp"]
        return measure(Path(sys.executable), family, spec, timeout=200.0, memory_gib=8.0)[
            "peak_mib"
        ]

    one = peak(256, 128)
    # Two lots wait in the queue, one is gathered, and one trains and is padded and cut: ten copies
    # of 2,300 padded rows at 3.1 KiB are 70 MiB. The allocator may take as much again.
    allowed = 2 * 10 * 2300 * scale.BYTES_PER_EXAMPLE / 2**20
    assert peak(2048, 128) - one < allowed
    assert peak(2048, None) - one > 2 * allowed  # the same check fails without physical batches


@pytest.mark.slow
@pytest.mark.parametrize("model", subjects.MODELS)
def test_every_model_is_measured_in_a_process(model):
    family = subjects.FAMILIES["tfdp"]
    # However slow the machine, the time is enough for three epochs.
    spec = {**SPEC, "seconds": 100.0, "model": model, "lot": 4, "subject": "tfdp"}
    record = measure(Path(sys.executable), family, spec, timeout=300.0, memory_gib=8.0)
    assert record.get("step_ms", 0) > 0 and record["times"] >= 3, record
    assert record["peak_mib"] >= record["start_mib"] > 50
    assert record["versions"].keys() == {"tensorflow", "keras", "tfdp"}
