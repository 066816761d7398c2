"""The table of docs/mnist.md can be resumed, and shows which runs are missing."""

import json

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


def test_what_is_published_was_trained_with_the_flags_of_today():
    table = Table()
    current = [(r.name, e) for r in ROWS for e in r.epsilons if table.find(r, e, 1) is not None]
    assert len(current) == sum(len(row.epsilons) for row in ROWS)


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
    # Other flags make a run stale.
    path.write_text(path.read_text().replace("--momentum=0.9", "--momentum=0.8"))
    assert command(*flags)[1][5:] == trained[:4]


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
    write_plot(*REPORTED, tmp_path / "table.png")
    assert (tmp_path / "table.png").stat().st_size > 10_000
