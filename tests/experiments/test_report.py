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


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_is_short_and_has_both_guarantees(width):
    result = trained(a_run(), momentum=0.5, l2_norm_clip=0.5)
    lines, words = printed(result, width)
    assert len(lines) <= (40 if width == 80 else 35) and max(map(len, lines)) <= width
    for guarantee in (result.proven, result.claimed):
        epsilon = format_epsilon(guarantee.epsilon)
        assert f"{epsilon}, delta = 1e-05, adjacency: zero_out" in words
    for fact in ("87.50% of the released weights", "--l2_norm_clip=0.5", "model_card.md"):
        assert fact in words


def test_no_warning_and_no_reason_is_dropped():
    run = a_run(insecure_seed=True)
    result = trained(run, delta=0.5)
    _, words = printed(result)
    warnings = result.statement.warnings
    assert len(warnings) == 3
    for sentence in (*warnings, f"infinite: {result.proven.reason}"):
        assert " ".join(sentence.split()) in words
    line = one_line(result)
    assert "\n" not in line
    for sentence in (*warnings, result.proven.reason, "87.50% test accuracy"):
        assert sentence in line


def test_a_vacuous_epsilon_is_called_so():
    result = trained(a_run(noise_multiplier=0.1))
    _, words = printed(result)
    assert result.proven.vacuous and "vacuous (epsilon = " in words
    assert "Do not call them private." in words
    assert "vacuous" in one_line(result)


def test_the_model_card_has_what_another_training_needs():
    settings = dict(normalization="layer", optimizer="adam", learning_rate=0.25, activation="tanh")
    text = card(trained(a_run(), **settings))
    for fact in ("train.py --flagfile=", "--activation=tanh", "--learning_rate=0.25"):
        assert fact in text
    for fact in ("Test accuracy: 87.50%", "## Privacy", "validation data"):
        assert fact in text
