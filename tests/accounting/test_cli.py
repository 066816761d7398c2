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
    # Three seconds are promised, and one is usual. A machine may be slow and busy.
    assert seconds < 60


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
    assert "vacuous (epsilon = 7670)" in text
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
    assert seconds < 60


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
        ["--mechanism=discrete_sgd", "--noise=laplace", "--degrees_of_freedom=3"],
        ["--mechanism=matrix", "--strategy=sqrt_toeplitz"],
        ["--mechanism=matrix", "--sampling=shuffle"],
        ["--mechanism=dpsgd", "--composition=ac"],
        ["--mechanism=dpsgd", "--groups=3"],
    ],
)
def test_flags_that_do_not_go_together(flags, capsys):
    assert main([*flags, *DPSGD[1:], "--noise_multiplier=4"]) == 2
    assert capsys.readouterr().err.startswith("error: Expected")


# -- what is left open ---------------------------------------------------------------------------------


def answer(capsys, *flags):
    assert main([*flags, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_discrete_sgd_chooses_what_its_optimizer_chooses(capsys):
    found = answer(capsys, "--mechanism=discrete_sgd", *DPSGD[1:], "--noise_multiplier=4")
    encoding = found["run"]["mechanism"]["encoding"]
    assert (encoding["noise"], encoding["degrees_of_freedom"]) == ("student_t", 9.0)
    assert (encoding["num_weights"], encoding["largest_entry"]) == (None, 1.0)
    assert found["chosen"]["noise"] == "student_t"
    # Any length costs at least as much as a certain one.
    for size in (10, 1000):
        some = answer(
            capsys, "--mechanism=discrete_sgd", *DPSGD[1:], "--noise_multiplier=4",
            f"--num_weights={size}", f"--largest_entry={0.9 if size == 10 else 0.1}",
        )  # fmt: skip
        assert some["proven"]["epsilon"] <= found["proven"]["epsilon"]


def test_the_optimizer_has_the_same_defaults():
    import inspect

    from tfdp.accounting.mechanisms.discrete_sgd import USUAL_DEGREES_OF_FREEDOM, USUAL_NOISE
    from tfdp.optimizers import DiscreteSGDOptimizer
    from tfdp.optimizers.discrete_sgd import DiscreteOptimizer

    defaults = inspect.signature(DiscreteOptimizer.__init__).parameters
    assert defaults["noise"].default == USUAL_NOISE == "student_t"
    made = DiscreteSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    assert made.family.degrees_of_freedom == USUAL_DEGREES_OF_FREEDOM == 9.0


def test_matrix_chooses_what_train_py_chooses(capsys):
    from tfdp.experiments.correlation import complete
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
    # With the noise given there is no budget to choose for, so that of train.py's default is taken.
    given = answer(capsys, "--mechanism=matrix", *size, "--noise_multiplier=5")
    assert given["run"]["sampling"]["groups"] == expected.groups


def test_what_was_chosen_is_printed(capsys):
    assert main([*DPSGD[1:], "--noise_multiplier=2"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "Not set, and so chosen: --mechanism=dpsgd --delta=1e-05 --sampling=poisson"
    everything = ["--mechanism=dpsgd", "--delta=1e-6", "--sampling=poisson", *DPSGD[1:]]
    assert main([*everything, "--noise_multiplier=2"]) == 0
    assert capsys.readouterr().out.startswith("Privacy statement")


@pytest.mark.parametrize("how", [[], ["--table=epochs=1,2"]])
def test_a_delta_that_is_too_large_is_warned_of(how, capsys):
    length = [] if how else ["--epochs=1"]
    size = ["--num_examples=1000", "--lot_size=10", "--noise_multiplier=2", *length, *how]
    assert main([*size, "--delta=1e-3"]) == 0
    assert "Warning: delta = 0.001 is not below 1/N" in capsys.readouterr().out
    assert main([*size, "--delta=1e-4"]) == 0
    assert "Warning" not in capsys.readouterr().out


# -- spelling ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--mechanism=dpsdg"], "Did you mean 'dpsgd'?"),
        (["--sampling=poison"], "Did you mean 'poisson'?"),
        (["--noise=1.1"], "Did you mean --noise_multiplier"),
        (["--noise_multiplyer=1"], "Unknown flag --noise_multiplyer. Did you mean '--noise_mult"),
        (["--noise_mult=1"], "Unknown flag --noise_mult."),
        (["--l2_norm_clip=1"], "It cancels in every guarantee"),
        (["--surprise"], "Unknown flag --surprise. See --help."),
        (["mnist"], "Expected flags only"),
        (["--epochs"], "Expected --epochs to have a value"),
        (["--lot_size=2.5"], "Expected --lot_size to be a whole number. Received '2.5'."),
        (["--batch_size=2.5"], "Expected --batch_size to be a whole number. Received '2.5'."),
        (["--batch-size=2.5"], "Expected --batch_size to be a whole number. Received '2.5'."),
        (["--nominal=maybe"], "Expected --nominal to be true or false. Received 'maybe'."),
        (
            ["--N=10", "--batch_size=20", "--epochs=1", "--epsilon=2"],
            "Expected --batch_size to be at most --N (10). Received 20.",
        ),
        ([*DPSGD, "--target_epsilon=-1"], "Expected --target_epsilon to be a finite number above 0"),
        ([*DPSGD, "--epsilon=2", "--epochs=2"], "Expected one of --epochs and --steps. Received both"),
        (
            [],
            "Expected --num_examples, and --lot_size, and --epochs or --steps, and "
            "--noise_multiplier or --epsilon.",
        ),
    ],
)  # fmt: skip
def test_errors_name_the_flag_that_was_typed(flags, words, capsys):
    assert main(flags) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ") and output.err.count("\n") == 1
    assert words in output.err


def test_names_of_other_libraries(capsys):
    usual = [*DPSGD, "--noise_multiplier=2", "--delta=1e-6"]
    theirs = [
        "--N=5000", "--batch_size=100", "--num_epochs=2", "--noise_scale=2", "--target-delta=1e-6"
    ]  # fmt: skip
    assert answer(capsys, *theirs)["run"] == answer(capsys, *usual)["run"]


def test_help_is_grouped_and_says_the_effective_defaults(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "data and lots:", "settings of some mechanisms:", "Default: 1e-5", "Default: dpsgd",
        "Default: poisson; cyclic_poisson for matrix", "Default: student_t", "Default: zero_out",
    ):  # fmt: skip
        assert words in text
    assert "None" not in text


@pytest.mark.parametrize("flags", ["--help", "--json --epochs=1 --noise_multiplier=2"])
def test_a_reader_that_has_seen_enough_gets_no_traceback(flags):
    size = "--num_examples=1000 --lot_size=10"
    command = f"{sys.executable} -m tfdp.accounting {size} {flags}"
    # The reader ends before anything is written.
    process = subprocess.Popen(
        command.split(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    errors = process.stderr.read()
    process.wait()
    assert "Traceback" not in errors and "Exception" not in errors


def test_an_interruption_is_no_traceback(monkeypatch, capsys):
    def interrupted(flags):
        raise KeyboardInterrupt

    monkeypatch.setattr("tfdp.accounting.__main__._answer", interrupted)
    assert main(DPSGD) == 130
    assert capsys.readouterr().err == "Interrupted.\n"
