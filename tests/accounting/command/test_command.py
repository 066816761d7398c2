"""The command line `python -m tfdp.accounting`."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tfdp.accounting.__main__ import main

MNIST = [
    "--mechanism=si_dpsgd",
    "--num_examples=60000",
    "--lot_size=32",
    "--noise_multiplier=7.1",
    "--sampling=cyclic",
    "--momentum=0",
    "--delta=1e-5",
    "--adjacency=zero_out",
]
SIZE = ["--num_examples=5000", "--lot_size=100", "--steps=100"]
DPSGD = ["--mechanism=dpsgd", *SIZE]


def answer(capsys, *flags):
    assert main([*flags, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_golden_json_in_a_fresh_process_without_tensorflow():
    code = (
        "import sys; from tfdp.accounting.__main__ import main\n"
        f"main({[*MNIST, '--epochs=10', '--json']!r})\n"
        "import tfdp; tfdp.compute_dp_sgd_privacy(2000, 50, 1.5, 1, 1e-5)\n"
        "sys.exit(bool({'tensorflow', 'keras', 'tensorflow_datasets'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    answer = json.loads(result.stdout)
    assert answer["proven"]["mu"] == pytest.approx(119.66651738, rel=1e-8)
    assert answer["proven"]["epsilon"] == pytest.approx(7669.41975, rel=1e-6)
    assert answer["proven"]["vacuous"] is True
    assert answer["proven"]["assumptions"]
    assert answer["claimed"]["epsilon"] == pytest.approx(0.0500362885, rel=1e-6)
    assert answer["run"]["steps"] == 18750
    assert result.stderr == ""


def test_the_text_has_both_figures(capsys):
    assert main([*MNIST, "--steps=18750"]) == 0
    text = capsys.readouterr().out
    assert "vacuous (epsilon = 7670)" in text
    assert "0.05004" in text


@pytest.mark.parametrize("kind", ["proven", "claimed"])
def test_a_budget_gives_the_noise(capsys, kind):
    found = answer(capsys, *DPSGD, "--epsilon=2", f"--guarantee={kind}")
    assert found[kind]["epsilon"] == pytest.approx(2.0, rel=1e-3)
    assert found[kind]["epsilon"] <= 2.0
    assert found["run"]["mechanism"]["noise_multiplier"] == found["noise_multiplier"] > 0
    assert main([*DPSGD, "--sampling=cyclic", "--epsilon=2", f"--guarantee={kind}"]) == 0
    assert capsys.readouterr().out.startswith("Noise multiplier")


def test_the_whole_curve_is_printed_and_drawn(capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is in the extra 'plot'")
    flags = [*DPSGD, "--noise_multiplier=1.5", "--curve"]
    curve = answer(capsys, *flags)["curve"]
    fprs, fnrs = curve["false_positive_rates"], curve["false_negative_rates"]
    assert fprs[0] == fnrs[-1] == 0 and fprs == sorted(fprs) and fnrs == sorted(fnrs)[::-1]
    file = tmp_path / "a.png"
    assert main([*flags, f"--plot={file}"]) == 0
    text = capsys.readouterr().out
    assert f"{np.interp(0.01, fprs, fnrs):.4f}" in text and str(file) in text
    assert file.read_bytes().startswith(b"\x89PNG")


def test_every_flag_reaches_the_run(capsys):
    run = answer(
        capsys, "--mechanism=si_dpsgd", "--num_examples=100", "--lot_size=10", "--epochs=2",
        "--noise_multiplier=50", "--sampling=cyclic", "--learning_rate=0.5",
        "--learning_rate_decay=0.5", "--momentum=0.5", "--nesterov", "--release=theta",
        "--microbatch_size=2", "--batch_statistics", "--optimizer=nesterov", "--insecure_seed",
        "--start=public", "--clip_groups=3", "--max_examples_per_user=4",
    )["run"]  # fmt: skip
    mechanism, contribution = run["mechanism"], run["contribution"]
    assert mechanism["learning_rates"] == {"values": [0.5, 0.25], "counts": [10, 10]}
    assert (mechanism["momentum"], mechanism["nesterov"]) == (0.5, True)
    assert (contribution["microbatch_size"], contribution["batch_statistics"]) == (2, True)
    assert (contribution["clip_groups"], contribution["max_examples_per_user"]) == (3, 4)
    assert (run["insecure_seed"], run["start"]) == (True, "public")


def test_adding_a_record_needs_a_nominal_number(capsys):
    flags = [*DPSGD, "--noise_multiplier=2", "--adjacency=add_or_remove_one"]
    assert main(flags) == 2
    assert "nominal" in capsys.readouterr().err
    assert 0 < answer(capsys, *flags, "--nominal")["proven"]["epsilon"] < 10


def test_infinite_is_valid_json(capsys):
    assert main([*MNIST, "--epochs=1", "--release=mu", "--json"]) == 0
    text = capsys.readouterr().out
    assert "Infinity" not in text
    assert json.loads(text)["proven"]["epsilon"] == "inf"


@pytest.mark.parametrize(
    "flags",
    [
        ["--mechanism=dp_dropout", "--composition=zcdp", "--clip_groups=2"],
        ["--mechanism=sgld"],
        ["--mechanism=matrix", "--strategy=sqrt_toeplitz", "--sampling=cyclic"],
        ["--mechanism=matrix", "--strategy=banded_toeplitz", "--bands=4", "--objective=max",
         "--sampling=cyclic_poisson", "--groups=4"],
        ["--mechanism=discrete_sgd", "--num_weights=50", "--noise=laplace", "--largest_entry=0.5"],
    ],
)  # fmt: skip
def test_every_mechanism(flags, capsys):
    found = answer(capsys, *flags, *SIZE, "--noise_multiplier=4")
    assert 0 < found["proven"]["epsilon"] < 50
    assert 0 < found["claimed"]["epsilon"] < 50


# -- defaults ----------------------------------------------------------------------------------------


def test_discrete_sgd_chooses_noise_and_the_worst_codebook(capsys):
    found = answer(capsys, "--mechanism=discrete_sgd", *SIZE, "--noise_multiplier=4")
    encoding = found["run"]["mechanism"]["encoding"]
    assert (encoding["noise"], encoding["degrees_of_freedom"]) == ("student_t", 9.0)
    assert (encoding["num_weights"], encoding["largest_entry"]) == (None, 1.0)
    # Any length costs at least as much as a certain one.
    known = ["--num_weights=1000", "--largest_entry=0.1"]
    some = answer(capsys, "--mechanism=discrete_sgd", *SIZE, "--noise_multiplier=4", *known)
    assert some["proven"]["epsilon"] <= found["proven"]["epsilon"]


def test_matrix_chooses_what_train_py_chooses(capsys):
    from tfdp.experiments.construction import complete
    from tfdp.experiments.settings import Experiment

    size = ["--num_examples=2001", "--lot_size=100", "--steps=40"]
    found = answer(capsys, "--mechanism=matrix", *size, "--epsilon=2")
    experiment = Experiment(
        mechanism="matrix", sampling="cyclic_poisson", batch_size=100, steps=40, epsilon=2.0
    )
    expected = complete(experiment, 2001)
    strategy = found["run"]["mechanism"]["strategy"]
    assert (strategy["name"], strategy["bands"]) == (expected.strategy, expected.bands)
    assert found["run"]["sampling"]["groups"] == expected.groups > 1
    assert found["run"]["sampling"]["num_examples"] == 2001 - 2001 % expected.groups
    assert found["proven"]["epsilon"] <= 2.0


def test_defaults_are_printed(capsys):
    assert main([*SIZE, "--noise_multiplier=2"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    for flag in ("--mechanism=dpsgd", "--delta=1e-05", "--sampling=poisson"):
        assert flag in first
    everything = [*DPSGD, "--delta=1e-6", "--sampling=poisson", "--noise_multiplier=2"]
    assert main(everything) == 0
    assert capsys.readouterr().out.startswith("Verdict")


def test_names_of_other_libraries(capsys):
    usual = [*DPSGD, "--noise_multiplier=2", "--delta=1e-6"]
    theirs = [
        "--N=5000", "--batch_size=100", "--num_epochs=2", "--noise_scale=2", "--target-delta=1e-6"
    ]  # fmt: skip
    assert answer(capsys, *theirs)["run"] == answer(capsys, *usual)["run"]


@pytest.mark.parametrize("length", [["--epochs=1"], ["--table=epochs=1,2"]])
def test_a_large_delta_is_warned_of(length, capsys):
    size = ["--num_examples=1000", "--lot_size=10", "--noise_multiplier=2", *length]
    assert main([*size, "--delta=1e-3"]) == 0
    assert "delta = 0.001 is not below 1/N" in capsys.readouterr().out
    assert main([*size, "--delta=1e-4"]) == 0
    assert "is not below" not in capsys.readouterr().out


# -- errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (DPSGD, "--noise_multiplier or --epsilon"),
        (MNIST, "--epochs or --steps"),
        ([*DPSGD, "--epsilon=2", "--noise_multiplier=1"], "both"),
        ([*DPSGD, "--epsilon=2", "--mechanism=none"], "private"),
        ([*DPSGD, "--noise_multiplier=nan"], "noise_multiplier"),
        ([*DPSGD, "--target_epsilon=-1"], "epsilon"),
        ([*MNIST, "--epochs=1", "--learning_rate=-1"], "learning_rate"),
        ([*DPSGD, "--noise_multiplier=4", "--composition=ac"], "composition"),
        (["--mechanism=dpsdg"], "'dpsgd'"),
        (["--noise_multiplyer=1"], "--noise_mult"),
        (["--l2_norm_clip=1"], "cancels"),
        (["--surprise"], "--surprise"),
        (["mnist"], "mnist"),
        (["--batch-size=2.5"], "--lot_size"),
        (["--nominal=maybe"], "'maybe'"),
        (["--N=10", "--batch_size=20", "--epochs=1", "--epsilon=2"], "num_examples (10)"),
    ],
)
def test_errors_are_one_line_and_name_the_flag(flags, words, capsys):
    try:
        code = main(flags)
    except SystemExit as stop:
        code = stop.code
    output = capsys.readouterr()
    assert code == 2
    assert output.out == ""
    assert output.err.startswith("error: ") and output.err.count("\n") == 1
    assert words in output.err
