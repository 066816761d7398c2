"""The final table and the model card say what matters, and run.json holds no seed of the noise."""

import contextlib
import io
from unittest import mock

import pytest
from rich.console import Console

from tfdp.accounting import Statement, describe
from tfdp.accounting.guarantee import format_epsilon
from tfdp.experiments import Experiment
from tfdp.experiments.experiment import Result
from tfdp.experiments.report import card, one_line, print_table


def trained(run, delta=1e-5, **settings):
    """Returns a result as if `run` had been trained."""
    known = dict(batch_size=run.sampling.lot_size, steps=run.steps, mechanism=run.mechanism.name)
    return Result(
        experiment=Experiment(**known | {"epsilon": 2.0} | settings),
        model=mock.MagicMock(**{"optimizer.title": "DP-SGD"}),
        runs=(run,),
        test_accuracy=0.875,
        statement=Statement.of(run, delta, planned=False),
        seconds=1.5,
        history={},
    )


def a_run(**changes):
    fields = dict(
        mechanism="dpsgd",
        num_examples=1000,
        lot_size=100,
        steps=20,
        sampling="poisson",
        noise_multiplier=2.0,
        l2_norm_clip=0.5,
    )
    return describe(**fields | changes)


def printed(result, width=100, folder="runs/a"):
    """Returns the lines of the table, and their words without the frame."""
    console = Console(file=io.StringIO(), width=width)
    with contextlib.redirect_stdout(console.file):
        print_table(result, console, folder)
    text = console.file.getvalue()
    return text.splitlines(), " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize("mechanism", ["dpsgd", "si_dpsgd"])
def test_the_table_is_short_and_has_both_guarantees(mechanism):
    run = a_run(mechanism=mechanism, sampling="cyclic", noise_multiplier=20.0)
    result = trained(run, momentum=0.5)
    lines, words = printed(result, 80)
    assert len(lines) <= 20 and max(map(len, lines)) <= 80
    for guarantee in (result.proven, result.claimed):
        assert f"epsilon {format_epsilon(guarantee.epsilon)} at delta 1e-05 (zero_out)" in words
    for fact in ("87.50% of the released weights", "noise multiplier 20", "model.keras"):
        assert fact in words


def test_no_reason_is_dropped():
    result = trained(a_run(insecure_seed=True))
    _, words = printed(result)
    line = one_line(result)
    assert "\n" not in line and "87.50% test accuracy" in line
    for text in (words, line):
        assert " ".join(result.proven.reason.split()) in text


def test_a_vacuous_epsilon_is_called_so():
    result = trained(a_run(noise_multiplier=0.1))
    _, words = printed(result)
    assert result.proven.vacuous and "vacuous (epsilon = " in words
    assert "Do not call these weights private." in words
    assert "vacuous" in one_line(result)


def test_the_model_card_has_what_another_training_needs():
    settings = dict(normalization="layer", optimizer="adam", learning_rate=0.25, activation="tanh")
    text = card(trained(a_run(), **settings))
    for fact in ("train.py --flagfile=", "--activation=tanh", "--learning_rate=0.25"):
        assert fact in text
    for fact in ("Test accuracy: 87.50%", "## Privacy", "validation data"):
        assert fact in text
