"""The table of docs/mnist.md: resumable, and honest about what was not run."""

import json

import pytest

from benchmarks import accuracy
from benchmarks.accuracy import ROWS, Row, Table, settings
from benchmarks.accuracy_report import mean_and_error, write_plot, write_text


def record(row, epsilon, seed, **changes):
    return {
        "row": row.flag_file,
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
        "flags": settings(row.flags(epsilon)),
    } | changes


@pytest.fixture
def command(tmp_path, monkeypatch):
    """main() on a file of its own, with trainings that are only noted down."""
    trained = []

    def train(row, epsilon, seed, data_dir, threads):
        trained.append((row.flag_file, epsilon, seed))
        if seed == 13:
            raise RuntimeError("train.py: error: unlucky")
        return record(row, epsilon, seed)

    path = tmp_path / "docs" / "mnist.json"
    monkeypatch.setattr(accuracy, "train", train)
    monkeypatch.setattr(accuracy, "Table", lambda: Table(path))
    monkeypatch.setattr(accuracy, "write_plot", lambda *_: None)  # needs matplotlib
    return lambda *flags: (accuracy.main(list(flags)), trained, path)


def test_every_row_has_its_flag_files_for_mnist():
    assert len({row.flag_file for row in ROWS}) == len(ROWS)
    for row in ROWS:
        for epsilon in row.epsilons:
            assert "--dataset=mnist" in settings(row.flags(epsilon))
            assert set(row.paper) <= set(row.epsilons)


def test_what_was_trained_is_not_trained_again(command):
    flags = ["--rows=mnist_table_dpsgd", "--epsilons=1,2", "--seeds=2"]
    code, trained, path = command(*flags)
    name = "mnist_table_dpsgd"
    assert code == 0
    assert trained == [(name, 1.0, 1), (name, 2.0, 1), (name, 1.0, 2), (name, 2.0, 2)]
    content = json.loads(path.read_text())
    del content["runs"][0]
    path.write_text(json.dumps(content))
    assert command(*flags)[1][4:] == [(name, 1.0, 1)]
    command(*flags)
    assert len(trained) == 5


def test_other_flags_make_a_run_stale(command):
    flags = ["--rows=mnist_table_dpsgd", "--epsilons=1", "--seeds=1"]
    _, trained, path = command(*flags)
    path.write_text(path.read_text().replace("--momentum=0.9", "--momentum=0.8"))
    command(*flags)
    assert len(trained) == 2
    assert len(json.loads(path.read_text())["runs"]) == 1


def test_a_failed_training_is_reported_and_not_recorded(command, capsys):
    flags = ["--rows=mnist_table_dpsgd", "--epsilons=1", "--seeds=13"]
    code, trained, path = command(*flags)
    assert code == 1
    assert len(trained) == 13
    assert len(json.loads(path.read_text())["runs"]) == 12
    assert "unlucky" in capsys.readouterr().err


def test_no_training_begins_after_the_time_is_up(command):
    code, trained, _ = command("--minutes=0")
    assert (code, trained) == (0, [])


def test_an_unknown_row_is_refused(command):
    with pytest.raises(SystemExit):
        command("--rows=mnist_table_magic")


def test_mean_and_standard_error():
    mean, error = mean_and_error([1.0, 2.0, 3.0])
    assert (mean, error) == (2.0, pytest.approx(3**-0.5))


PROVEN = Row("DP-SGD", "mnist_table_dpsgd", (1.0, 2.0))
NOTHING = Row("No privacy", "mnist_table_none", (None,))
WEAK = Row("SI-DPSGD", "mnist_si_dpsgd_claimed", (0.5,), paper={0.5: "98.56% (Table 4)"})
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
    assert "| DP-SGD | `mnist_table_dpsgd` | 92.00 ± 0.58 (3) [1.25] | not run |" in text
    assert "No privacy: 91.00 (1)." in text
    assert "| 0.5 | vacuous (390,000,000) | 91.00 (1) | 98.56% (Table 4) |" in text


def test_the_plot(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is in the extra 'dev'")
    write_plot(*REPORTED, tmp_path / "table.png")
    assert (tmp_path / "table.png").stat().st_size > 10_000
