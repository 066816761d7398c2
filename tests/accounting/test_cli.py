"""The command line `python -m tfdp.accounting`."""

import json
import subprocess
import sys
import time

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
DPSGD = ["--mechanism=dpsgd", "--num_examples=5000", "--lot_size=100", "--steps=100"]


def test_golden_json_in_a_fresh_process():
    start = time.monotonic()
    command = [sys.executable, "-m", "tfdp.accounting", *MNIST, "--epochs=10", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.monotonic() - start
    answer = json.loads(result.stdout)
    assert answer["proven"]["mu"] == pytest.approx(119.66651738, rel=1e-8)
    assert answer["proven"]["epsilon"] == pytest.approx(7669.41975, rel=1e-6)
    assert answer["proven"]["vacuous"] is True
    assert answer["proven"]["assumptions"]
    assert answer["claimed"]["epsilon"] == pytest.approx(0.0500362885, rel=1e-6)
    assert answer["run"]["steps"] == 18750
    assert result.stderr == ""
    # Three seconds are promised. The limit is higher, because the machine may be busy.
    assert seconds < 8


def test_nothing_imports_tensorflow():
    code = (
        "import sys; from tfdp.accounting.__main__ import main\n"
        f"main({[*DPSGD, '--noise_multiplier=2', '--json']!r})\n"
        "heavy = {'tensorflow', 'keras', 'tensorflow_datasets'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.endswith("heavy: []\n")


def test_steps_stand_for_epochs(capsys):
    assert main([*MNIST, "--steps=18750", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["proven"]["epsilon"] == pytest.approx(7669.41975)


def test_words(capsys):
    assert main([*MNIST, "--epochs=10"]) == 0
    text = capsys.readouterr().out
    assert "vacuous (epsilon = 7669)" in text
    assert "0.05004" in text


@pytest.mark.parametrize("kind", ["proven", "claimed"])
def test_budget_prints_the_noise(capsys, kind):
    assert main([*DPSGD, "--epsilon=2", f"--guarantee={kind}", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer[kind]["epsilon"] == pytest.approx(2.0, rel=1e-3)
    assert answer[kind]["epsilon"] <= 2.0
    assert answer["run"]["mechanism"]["noise_multiplier"] == answer["noise_multiplier"] > 0
    words = [*DPSGD, "--sampling=cyclic", "--epsilon=2", f"--guarantee={kind}"]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("Noise multiplier")


def test_every_flag_reaches_the_run(capsys):
    flags = [
        "--mechanism=si_dpsgd",
        "--num_examples=100",
        "--lot_size=10",
        "--epochs=2",
        "--noise_multiplier=50",
        "--sampling=cyclic",
        "--learning_rate=0.5",
        "--learning_rate_decay=0.5",
        "--momentum=0.5",
        "--nesterov",
        "--draws=2",
        "--release=theta",
        "--microbatch_size=2",
        "--batch_statistics",
        "--optimizer=nesterov",
        "--insecure_seed",
        "--start=public",
        "--json",
    ]
    assert main(flags) == 0
    run = json.loads(capsys.readouterr().out)["run"]
    mechanism, contribution = run["mechanism"], run["contribution"]
    assert mechanism["learning_rates"] == {"values": [0.5, 0.25], "counts": [10, 10]}
    assert (mechanism["draws"], mechanism["momentum"], mechanism["nesterov"]) == (2, 0.5, True)
    assert (contribution["microbatch_size"], contribution["batch_statistics"]) == (2, True)
    assert (run["insecure_seed"], run["start"]) == (True, "public")


def test_nominal(capsys):
    flags = [*DPSGD, "--noise_multiplier=2", "--adjacency=add_or_remove_one", "--json"]
    assert main(flags) == 2
    assert "nominal" in capsys.readouterr().err
    assert main([*flags, "--nominal"]) == 0
    assert 0 < json.loads(capsys.readouterr().out)["proven"]["epsilon"] < 10


def test_infinite_is_valid_json(capsys):
    assert main([*MNIST, "--epochs=1", "--release=mu", "--json"]) == 0
    text = capsys.readouterr().out
    assert "Infinity" not in text
    assert json.loads(text)["proven"]["epsilon"] == "inf"


@pytest.mark.parametrize(
    "flags",
    [
        [*DPSGD, "--epsilon=-1"],
        [*DPSGD, "--epsilon=nan"],
        [*DPSGD, "--epsilon=2", "--delta=0"],
        [*DPSGD, "--epsilon=2", "--delta=1.5"],
        [*DPSGD, "--epsilon=2", "--mechanism=surprise"],
        [*DPSGD, "--epsilon=2", "--lot_size=5001"],
        [*DPSGD, "--epsilon=2", "--noise_multiplier=1"],
        [*DPSGD, "--epsilon=2", "--sampling=surprise"],
        [*DPSGD, "--epsilon=2", "--sampling=cyclic", "--adjacency=add_or_remove_one"],
        [*DPSGD, "--epsilon=2", "--mechanism=none"],
        [*DPSGD, "--noise_multiplier=nan"],
        [*DPSGD, "--noise_multiplier=two"],
        [*DPSGD],
        [*MNIST],
        [*MNIST, "--epochs=-1"],
        [*MNIST, "--epochs=nan"],
        [*MNIST, "--steps=0"],
        [*MNIST, "--epochs=1", "--learning_rate=-1"],
    ],
)
def test_bad_input_is_one_sentence_and_a_bad_exit_code(flags, capsys):
    try:
        code = main(flags)
    except SystemExit as stop:
        code = stop.code
    output = capsys.readouterr()
    assert code == 2
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1


ENCODING = [
    "--mechanism=discrete_sgd",
    "--num_examples=60000",
    "--lot_size=256",
    "--steps=14062",
    "--noise_scale=1.0",
    "--delta=1e-5",
    "--json",
]


def test_golden_gradient_encoding_in_a_fresh_process():
    start = time.monotonic()
    flags = [*ENCODING, "--noise=student_t", "--degrees_of_freedom=9", "--num_weights=26010"]
    result = subprocess.run(
        [sys.executable, "-m", "tfdp.accounting", *flags],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.monotonic() - start
    answer = json.loads(result.stdout)
    assert answer["claimed"]["epsilon"] == pytest.approx(3.030005, rel=1e-6)
    assert answer["proven"]["epsilon"] == pytest.approx(2.615133, rel=1e-6)
    assert answer["proven"]["details"]["K_2"] == pytest.approx(0.83331637, rel=1e-7)
    assert result.stderr == ""
    assert seconds < 8


@pytest.mark.parametrize(
    "flags",
    [
        ["--mechanism=dp_dropout", "--composition=zcdp", "--clip_groups=2"],
        ["--mechanism=sgld"],
        ["--mechanism=matrix", "--strategy=sqrt_toeplitz", "--sampling=cyclic"],
        ["--mechanism=matrix", "--strategy=banded_toeplitz", "--bands=4", "--objective=max",
         "--sampling=cyclic_poisson", "--groups=4"],
        ["--mechanism=discrete_sgd", "--num_weights=50", "--noise=sech", "--largest_entry=0.5"],
    ],
)  # fmt: skip
def test_every_mechanism(flags, capsys):
    common = [*DPSGD[1:], "--noise_multiplier=4", "--json"]
    assert main([*flags, *common]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert 0 < answer["proven"]["epsilon"] < 50
    assert 0 < answer["claimed"]["epsilon"] < 50


@pytest.mark.parametrize(
    "flags",
    [
        ["--mechanism=discrete_sgd"],
        ["--mechanism=discrete_sgd", "--num_weights=5", "--noise=student_t"],
        ["--mechanism=matrix"],
        ["--mechanism=matrix", "--strategy=banded_toeplitz"],
        ["--mechanism=dpsgd", "--composition=ac"],
        ["--mechanism=dpsgd", "--groups=3"],
    ],
)
def test_missing_or_foreign_flags(flags, capsys):
    assert main([*flags, *DPSGD[1:], "--noise_multiplier=4"]) == 2
    assert capsys.readouterr().err.startswith("error: Expected")
