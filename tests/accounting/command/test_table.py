"""`--table` has one row for each value, and `--plot` draws it."""

import json

import pytest

from tests.accounting.varying import vary
from tfdp.accounting import Run, claimed, describe, noise_for, proven, steps_for
from tfdp.accounting.__main__ import main
from tfdp.accounting.command import flags, plot

DATA = ["--mechanism=dpsgd", "--num_examples=5000", "--sampling=cyclic", "--delta=1e-5"]
RUN = describe(
    mechanism="dpsgd", num_examples=5000, lot_size=100, steps=100, sampling="cyclic",
    noise_multiplier=6.0,
)  # fmt: skip


def rows(capsys, *arguments):
    assert main([*DATA, *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["table"]["rows"]


@pytest.mark.parametrize(
    ("arguments", "name", "runs"),
    [
        (
            ["--lot_size=100", "--noise_multiplier=6", "--table=epochs=1,2.5"],
            "epochs",
            {e: vary(RUN, steps=steps_for(e, 5000, 100, "cyclic")) for e in (1.0, 2.5)},
        ),
        (
            ["--epochs=2", "--noise_multiplier=6", "--table=batch_size=50,100"],
            "lot_size",
            {n: vary(RUN, lot_size=n, epochs=2) for n in (50, 100)},
        ),
    ],
)
def test_rows_have_both_guarantees(arguments, name, runs, capsys):
    found = rows(capsys, *arguments)
    assert [row[name] for row in found] == list(runs)
    for row, run in zip(found, runs.values(), strict=True):
        assert Run.from_dict(row["run"]) == run
        assert row["noise_multiplier"] == run.mechanism.noise_multiplier
        assert row["proven"]["epsilon"] == proven(run, 1e-5).epsilon
        assert row["claimed"]["epsilon"] == claimed(run, 1e-5).epsilon


@pytest.mark.parametrize("kind", ["proven", "claimed"])
def test_rows_of_a_budget_have_the_noise_that_each_needs(kind, capsys):
    found = rows(
        capsys, "--lot_size=100", "--epsilon=2", "--table=epochs=1,4", f"--guarantee={kind}"
    )
    for row, epochs in zip(found, (1, 4), strict=True):
        assert row["noise_multiplier"] == noise_for(2.0, 1e-5, vary(RUN, epochs=epochs), kind)
        assert row[kind]["epsilon"] <= 2.0
    assert found[0]["noise_multiplier"] < found[1]["noise_multiplier"]


def test_the_text_is_aligned_and_its_longest_bar_is_the_largest_epsilon(capsys):
    assert main([*DATA, "--lot_size=100", "--epochs=2", "--table=noise_multiplier=3,6,60"]) == 0
    body = [line for line in capsys.readouterr().out.splitlines() if "#" in line]
    bars = [line.count("#") for line in body]
    assert bars == sorted(bars, reverse=True) and bars[0] > bars[2] >= 1
    assert len({line.index("#") for line in body}) == 1
    for line, noise in zip(body, (3.0, 6.0, 60.0), strict=True):
        value, theirs, ours, _ = line.split()
        run = RUN.with_noise(noise)
        assert float(value) == noise
        assert float(ours) == pytest.approx(proven(run, 1e-5).epsilon, rel=1e-3)
        assert float(theirs) == pytest.approx(claimed(run, 1e-5).epsilon, rel=1e-3)


def test_infinite_rows_have_no_bar_and_a_reason(capsys):
    assert main([*DATA, "--lot_size=100", "--epochs=2", "--table=noise_multiplier=0,4,8"]) == 0
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if line.split()[:1] == ["0"])
    assert "infinite" in row and "#" not in row


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("epochs=1..100", [1, 1.8, 3.2, 5.6, 10, 18, 32, 56, 100]),
        ("lot_size=1..3", [1, 2, 3]),
        ("batch-size=3,2", [3, 2]),
    ],
)
def test_values_and_ranges(text, values):
    name, found = flags.table_of(flags.parse([f"--table={text}"]))
    assert found == pytest.approx(values)
    assert name in flags.TABLES


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--table=epoch=1"], "'epochs'"),
        (["--table=momentum=1"], "--table"),
        (["--table=epochs="], "values"),
        (["--table=epochs=1,x"], "'x'"),
        (["--table=steps=1.5"], "'1.5'"),
        (["--table=epochs=2,2"], "differ"),
        (["--table=epochs=5..1"], "range"),
        (["--table=epochs=1,2", "--steps=3"], "--steps"),
        (["--table=epochs=1,-2"], "--epochs=-2"),
        (["--epochs=1", "--plot=a.png"], "--table"),
        (["--table=epochs=1,2", "--curve"], "--curve"),
        (["--table=epochs=1,2", "--plot=a.txt"], ".png"),
    ],
)
def test_bad_tables_are_refused_in_one_line(arguments, words, capsys):
    assert main([*DATA, "--lot_size=100", "--noise_multiplier=6", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ") and output.err.count("\n") == 1
    assert words in output.err


def test_a_plot_needs_matplotlib(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    file = tmp_path / "a.png"
    size = [*DATA, "--lot_size=100", "--noise_multiplier=6", "--table=epochs=1,2"]
    assert main([*size, f"--plot={file}"]) == 2
    assert "tfdp[plot]" in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.parametrize("budget", [False, True])
def test_the_plot_has_labelled_axes_and_both_curves(budget, monkeypatch, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is in the extra 'plot'")
    from matplotlib.figure import Figure

    kept, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda *a, **k: (kept.append(a[0]), save(*a, **k)))
    file = tmp_path / "a.png"
    size = [*DATA, "--lot_size=100", "--table=epochs=1,2,4", f"--plot={file}"]
    assert main([*size, "--epsilon=2" if budget else "--noise_multiplier=6"]) == 0
    assert str(file) in capsys.readouterr().out
    assert file.read_bytes().startswith(b"\x89PNG")
    (axis,) = kept[0].axes
    assert axis.get_xlabel() == "epochs"
    assert ("noise multiplier" if budget else "epsilon") in axis.get_ylabel()
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert len(labels) == (1 if budget else 2)
    runs = [vary(RUN, epochs=epochs) for epochs in (1, 2, 4)]
    expected = [proven(run, 1e-5).epsilon for run in runs]
    if budget:
        expected = [noise_for(2.0, 1e-5, run) for run in runs]
    assert list(axis.lines[0].get_ydata()) == pytest.approx(expected)
