"""Runs by their keywords: epochs in place of steps, and searches that need no invented number."""

import pytest

from tests.accounting.varying import vary
from tfdp.accounting import (
    Contribution,
    Run,
    Strategy,
    describe,
    max_steps,
    noise_for,
    proven,
    steps_for,
)
from tfdp.accounting.mechanisms import DPSGD, SIDPSGD
from tfdp.accounting.sampling import Poisson

DELTA = 1e-5
DATA = {"mechanism": "dpsgd", "num_examples": 5000, "lot_size": 64}
RUN = describe(**DATA, sampling="poisson", noise_multiplier=1.0, steps=10)


def test_epochs_are_steps_for():
    for sampling, epochs in (("poisson", 2.5), ("cyclic", 0.1)):
        run = describe(**DATA, sampling=sampling, noise_multiplier=1.0, epochs=epochs)
        assert run.steps == steps_for(epochs, 5000, 64, sampling)
    assert vary(RUN, epochs=2).steps == steps_for(2, 5000, 64, "poisson") == 156
    assert vary(RUN, epochs=2, sampling="cyclic").steps == 156
    assert vary(RUN, epochs=2, lot_size=50).steps == 200
    with pytest.raises(ValueError, match="both"):
        vary(RUN, epochs=2, steps=3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "neither"),
        ({"steps": 1, "epochs": 1}, "both"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": float("nan")}, "epochs"),
        ({"epochs": 0.001}, "one step"),
    ],
)
def test_a_run_has_one_length(change, words):
    with pytest.raises(ValueError, match=words):
        describe(**DATA, sampling="poisson", noise_multiplier=1.0, **change)


def test_noise_for_a_description_is_that_of_the_run():
    found = noise_for(2.0, DELTA, **DATA, epochs=3)
    assert found == noise_for(2.0, DELTA, vary(RUN, epochs=3))
    assert proven(vary(RUN, epochs=3, noise_multiplier=found), DELTA).epsilon <= 2.0
    cyclic = noise_for(2.0, DELTA, **DATA, epochs=3, sampling="cyclic", kind="claimed")
    assert cyclic == noise_for(2.0, DELTA, vary(RUN, sampling="cyclic", epochs=3), "claimed")


def test_noise_for_a_mechanism_object():
    mechanism = DPSGD(noise_multiplier=(1.0, 2.0))
    fields = dict(num_examples=5000, lot_size=64, steps=2, sampling="cyclic")
    found = noise_for(2.0, DELTA, mechanism=mechanism, **fields)
    run = describe(mechanism=mechanism, **fields)
    assert found == noise_for(2.0, DELTA, run)


def test_max_steps_for_a_description_is_that_of_the_run():
    run = vary(RUN, sampling="cyclic", noise_multiplier=8.0)
    found = max_steps(2.0, DELTA, **DATA, noise_multiplier=8.0, sampling="cyclic")
    assert found == max_steps(2.0, DELTA, run) > 0
    earlier = [vary(run, epochs=1)]
    fewer = max_steps(2.0, DELTA, **DATA, noise_multiplier=8.0, sampling="cyclic", earlier=earlier)
    assert 0 < fewer < found


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (DATA | {"epochs": 3, "noise_multiplier": 1.0}, "noise_multiplier"),
        (DATA | {"epochs": 3, "run": RUN}, "Run"),
        ({}, "neither"),
        (DATA | {"epoch": 3}, "'epochs'"),
    ],
)
def test_bad_descriptions_are_refused(fields, words):
    with pytest.raises((TypeError, ValueError), match=words):
        noise_for(2.0, DELTA, **fields)


def test_max_steps_finds_the_length():
    for length in ({"steps": 3}, {"epochs": 3}):
        with pytest.raises(TypeError, match="steps"):
            max_steps(2.0, DELTA, **DATA, noise_multiplier=1.0, **length)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mecanism": "dpsgd"}, "'mechanism'"),
        ({"batch_size": 1}, "lot_size"),
        ({"max_grad_norm": 1}, "l2_norm_clip"),
        ({"surprise": 1}, "'surprise'"),
    ],
)
def test_misspelt_keywords_are_named_with_what_was_meant(change, words):
    right = DATA | {"sampling": "poisson", "noise_multiplier": 1.0, "steps": 10}
    for fields in (change, right | change):
        with pytest.raises(ValueError, match=words):
            describe(**fields)


def test_missing_fields_are_named():
    with pytest.raises(TypeError, match="num_examples"):
        describe("dpsgd", "poisson", noise_multiplier=1.0, steps=1)
    with pytest.raises(TypeError, match="noise_multiplier"):
        describe(**DATA, sampling="poisson", steps=1)


def test_each_keyword_goes_to_its_part():
    run = describe(
        "si_dpsgd", "poisson", num_examples=100, lot_size=10, nominal=True, steps=5,
        noise_multiplier=2.0, momentum=0.9, l2_norm_clip=0.5, start="public", insecure_seed=True,
    )  # fmt: skip
    assert run == Run(
        mechanism=SIDPSGD(noise_multiplier=2.0, momentum=0.9),
        sampling=Poisson(num_examples=100, lot_size=10, nominal=True),
        steps=5,
        contribution=Contribution(l2_norm_clip=0.5),
        start="public",
        insecure_seed=True,
    )


def test_an_object_has_its_fields_already():
    lots = Poisson(num_examples=100, lot_size=10)
    assert describe(DPSGD(noise_multiplier=2.0), lots, steps=5).sampling is lots
    with pytest.raises(ValueError, match="noise_multiplier"):
        describe(DPSGD(noise_multiplier=2.0), lots, steps=5, noise_multiplier=1.0)


def test_the_usual_sampling_is_that_of_the_mechanism():
    assert describe(**DATA, steps=1, noise_multiplier=1.0).sampling.name == "poisson"
    plan = {"mechanism": "matrix", "strategy": Strategy(name="identity")}
    run = describe(**(DATA | plan), steps=1, noise_multiplier=1.0)
    assert run.sampling.name == "cyclic_poisson"
