"""A Run refuses values that have no meaning in any accounting."""

import copy
import dataclasses
import json
import math
import pickle

import pytest

from tfdp.accounting import Contribution, Run, describe, sampling_names, steps_for

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
        ("lot_size", 0),
        ("lot_size", 1001),
        ("steps", -1),
        ("taken", -1),
        ("sampling", "bernoulli"),
        ("noise_multiplier", -1.0),
        ("noise_multiplier", math.nan),
        ("l2_norm_clip", 0.0),
        ("microbatch_size", 0),
        ("views", 0),
        ("learning_rates", (0.1,) * 19),
        ("learning_rates", -0.1),
        ("momentum", -0.5),
        ("release", "weights"),
        ("start", "private"),
        ("noise_multiplier", (1.0,) * 19),
    ],
)
def test_bad_fields_are_refused(field, value):
    with pytest.raises(ValueError, match="Expected"):
        describe(**(GOOD | {"mechanism": "si_dpsgd", field: value}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("release", "mu"),
        ("momentum", 0.9),
        ("learning_rates", (0.1,) * 20),
        ("groups", 3),
        ("composition", "ac"),
    ],
)
def test_fields_of_other_parts_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        describe(**GOOD, **{field: value})


@pytest.mark.parametrize("part", ["mechanism", "sampling", "contribution"])
def test_the_parts_of_a_run_are_objects(part):
    with pytest.raises(ValueError, match=part):
        dataclasses.replace(describe(**GOOD), **{part: "poisson"})


def test_a_run_is_equal_to_its_copies_and_to_its_parts():
    run = describe(**GOOD)
    parts = dict(mechanism=run.mechanism, sampling=run.sampling, contribution=run.contribution)
    assert Run(steps=20, **parts) == run
    for again in (copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        assert again == run
        assert hash(again) == hash(run)


def test_other_steps_count_as_taken():
    ended_early = dataclasses.replace(describe(**GOOD), taken=7)
    assert ended_early.with_noise(2.0).taken == 7
    assert ended_early.with_steps(30).taken is None
    assert ended_early.with_steps(30, 9).taken == 9


def test_a_run_is_frozen_and_takes_keywords_only():
    with pytest.raises(TypeError):
        Run("dpsgd", 1000, 100, 20, "poisson", 1.0)
    run = describe(**GOOD)
    with pytest.raises(AttributeError):
        run.steps = 3
    with pytest.raises(ValueError, match="microbatch_size"):
        dataclasses.replace(run, contribution=Contribution(microbatch_size=101))


def test_schedules_may_be_longer_than_the_run():
    run = describe(**(GOOD | {"mechanism": "si_dpsgd"}), learning_rates=tuple(range(1, 101)))
    assert run.described_steps == 100
    assert list(run.schedule("learning_rates")) == list(range(1, 21))
    assert run.with_steps(0).schedule("momentum").size == 0


def test_round_trip_through_json_is_exact_and_short():
    rates = tuple(0.1 * 0.9 ** (t // 500) for t in range(5000))
    run = describe(
        **(GOOD | {"mechanism": "si_dpsgd", "steps": 5000}),
        learning_rates=rates,
        momentum=(0.5,) * 4999 + (0.9,),
        views=16,
    )
    text = json.dumps(run.to_dict())
    assert len(text) < 1200
    assert Run.from_dict(json.loads(text)) == run


def test_unreadable_descriptions_are_refused():
    with pytest.raises(ValueError, match="surprise"):
        Run.from_dict(describe(**GOOD).to_dict() | {"surprise": 1})
    with pytest.raises(ValueError, match="Expected"):
        Run.from_dict({"mechanism": "dpsgd"})
    with pytest.raises(ValueError, match="3"):
        Run.from_dict(describe(**GOOD).to_dict() | {"version": 3})
    fields = describe(**GOOD).to_dict()
    fields["mechanism"]["noise_multiplier"] = {"values": [1], "counts": []}
    with pytest.raises(ValueError, match="schedule"):
        Run.from_dict(fields)


@pytest.mark.parametrize(
    ("epochs", "sampling", "steps"),
    [
        (10, "cyclic", 2340),
        (10, "poisson", 2343),
    ],
)
def test_steps_for(epochs, sampling, steps):
    assert steps_for(epochs, 60000, 256, sampling) == steps


def test_a_seed_for_lots_matters_where_guarantees_rest_on_chance():
    matters = {
        name: describe(**(GOOD | {"sampling": name})).sampling.random_lots
        for name in sampling_names()
    }
    free = {name for name, does in matters.items() if not does}
    assert free == {"cyclic", "shuffle", "unknown", "once_per_epoch"}


@pytest.mark.parametrize(
    "arguments",
    [(0, 10, 1, "poisson"), (math.nan, 10, 1, "poisson"), (1, 10, 11, "poisson"), (1, 10, 1, "x")],
)
def test_steps_for_refuses(arguments):
    with pytest.raises(ValueError, match="Expected"):
        steps_for(*arguments)
