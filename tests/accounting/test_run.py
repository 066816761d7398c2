"""A Run refuses what no accountant could mean."""

import json
import math

import pytest

from tfdp.accounting import Run, steps_for

GOOD = {
    "mechanism": "dpsgd",
    "num_examples": 1000,
    "lot_size": 100,
    "steps": 20,
    "sampling": "poisson",
    "noise_multiplier": 1.0,
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mechanism", ""),
        ("num_examples", 0),
        ("num_examples", 10.5),
        ("num_examples", True),
        ("lot_size", 0),
        ("lot_size", 1001),
        ("steps", -1),
        ("sampling", "bernoulli"),
        ("noise_multiplier", -1.0),
        ("noise_multiplier", math.nan),
        ("noise_multiplier", math.inf),
        ("l2_norm_clip", 0.0),
        ("l2_norm_clip", math.nan),
        ("microbatch_size", 0),
        ("microbatch_size", 101),
        ("learning_rates", (0.1,) * 19),
        ("learning_rates", -0.1),
        ("learning_rates", math.nan),
        ("learning_rates", ((0.1,) * 20,)),
        ("noise_learning_rates", math.inf),
        ("momentum", -0.5),
        ("momentum", None),
        ("draws", 0),
        ("draws", 1.5),
        ("optimizer", ""),
        ("release", "weights"),
        ("release", "mu"),
        ("max_lot_size", 99),
    ],
)
def test_bad_fields_are_refused(field, value):
    with pytest.raises(ValueError, match="Expected"):
        Run(**(GOOD | {field: value}))


def test_positional_arguments_and_changes_are_refused():
    with pytest.raises(TypeError):
        Run("dpsgd", 1000, 100, 20, "poisson", 1.0)
    run = Run(**GOOD)
    with pytest.raises(AttributeError):
        run.steps = 3
    with pytest.raises(ValueError, match="lot_size"):
        run.with_(lot_size=2000)


def test_schedules_may_be_longer_than_the_run():
    run = Run(**GOOD, learning_rates=tuple(range(1, 101)))
    assert list(run.schedule("learning_rates")) == list(range(1, 21))
    assert list(run.schedule("noise_learning_rates")) == list(range(1, 21))
    assert run.with_(steps=0).schedule("momentum").size == 0


def test_round_trip_through_json_is_exact_and_short():
    rates = tuple(0.1 * 0.9 ** (t // 500) for t in range(5000))
    run = Run(**(GOOD | {"steps": 5000}), learning_rates=rates, draws=(1,) * 4999 + (2,))
    text = json.dumps(run.to_dict())
    assert len(text) < 1000
    assert Run.from_dict(json.loads(text)) == run


def test_unreadable_descriptions_are_refused():
    with pytest.raises(ValueError, match="unknown"):
        Run.from_dict(GOOD | {"surprise": 1})
    with pytest.raises(ValueError, match="Expected"):
        Run.from_dict({"mechanism": "dpsgd"})
    with pytest.raises(ValueError, match="schedule"):
        Run.from_dict(GOOD | {"learning_rates": {"values": [1], "counts": []}})


@pytest.mark.parametrize(
    ("epochs", "sampling", "steps"),
    [
        (10, "cyclic", 2340),
        (10, "shuffle", 2340),
        (10, "poisson", 2343),
        (10, "with_replacement", 2343),
        (0.1, "poisson", 23),
    ],
)
def test_steps_for(epochs, sampling, steps):
    assert steps_for(epochs, 60000, 256, sampling) == steps


@pytest.mark.parametrize(
    "arguments",
    [(0, 10, 1, "poisson"), (math.nan, 10, 1, "poisson"), (1, 10, 11, "poisson"), (1, 10, 1, "x")],
)
def test_steps_for_refuses(arguments):
    with pytest.raises(ValueError, match="Expected"):
        steps_for(*arguments)


def test_steps_per_epoch_is_at_least_one():
    assert Run(**GOOD).steps_per_epoch == 10
    assert Run(**(GOOD | {"lot_size": 999})).steps_per_epoch == 1
    assert Run(**(GOOD | {"steps": 21})).epochs == 3
