"""Runs by their keywords: epochs in place of steps, and searches that need no invented number."""

import pytest

from tfdp.accounting import Run, max_steps, noise_for, proven, steps_for
from tfdp.accounting.mechanisms.dpsgd import DPSGD

DELTA = 1e-5
DATA = {"mechanism": "dpsgd", "num_examples": 5000, "lot_size": 64}
RUN = Run(**DATA, sampling="poisson", noise_multiplier=1.0, steps=10)


def test_epochs_are_steps_for():
    for sampling, epochs in (("poisson", 2.5), ("cyclic", 0.1)):
        run = Run(**DATA, sampling=sampling, noise_multiplier=1.0, epochs=epochs)
        assert run.steps == steps_for(epochs, 5000, 64, sampling)
    assert RUN.with_(epochs=2).steps == steps_for(2, 5000, 64, "poisson") == 156
    assert RUN.with_(epochs=2, sampling="cyclic").steps == 156
    assert RUN.with_(epochs=2, lot_size=50).steps == 200
    with pytest.raises(ValueError, match="both"):
        RUN.with_(epochs=2, steps=3)


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
        Run(**DATA, sampling="poisson", noise_multiplier=1.0, **change)


def test_noise_for_a_description_is_that_of_the_run():
    found = noise_for(2.0, DELTA, **DATA, epochs=3)
    assert found == noise_for(2.0, DELTA, RUN.with_(epochs=3))
    assert proven(RUN.with_(epochs=3, noise_multiplier=found), DELTA).epsilon <= 2.0
    cyclic = noise_for(2.0, DELTA, **DATA, epochs=3, sampling="cyclic", kind="claimed")
    assert cyclic == noise_for(2.0, DELTA, RUN.with_(sampling="cyclic", epochs=3), "claimed")


def test_noise_for_a_mechanism_object():
    mechanism = DPSGD(noise_multiplier=(1.0, 2.0))
    fields = dict(num_examples=5000, lot_size=64, steps=2, sampling="cyclic")
    found = noise_for(2.0, DELTA, mechanism=mechanism, **fields)
    run = Run(mechanism=mechanism, **fields)
    assert found == noise_for(2.0, DELTA, run)


def test_max_steps_for_a_description_is_that_of_the_run():
    run = RUN.with_(sampling="cyclic", noise_multiplier=8.0)
    found = max_steps(2.0, DELTA, **DATA, noise_multiplier=8.0, sampling="cyclic")
    assert found == max_steps(2.0, DELTA, run) > 0
    earlier = [run.with_(epochs=1)]
    fewer = max_steps(2.0, DELTA, **DATA, noise_multiplier=8.0, sampling="cyclic", earlier=earlier)
    assert 0 < fewer < found


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (DATA | {"epochs": 3, "noise_multiplier": 1.0}, "noise multiplier"),
        (DATA | {"epochs": 3, "run": RUN}, "Run"),
        ({}, "neither"),
        ({"num_examples": 10, "lot_size": 2, "epochs": 1}, "mechanism"),
        (DATA | {"epoch": 3}, "'epochs'"),
    ],
)
def test_bad_descriptions_are_refused(fields, words):
    with pytest.raises(TypeError, match=words):
        noise_for(2.0, DELTA, **fields)


def test_max_steps_finds_the_length():
    for length in ({"steps": 3}, {"epochs": 3}):
        with pytest.raises(TypeError, match="number of steps"):
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
        with pytest.raises(TypeError, match=words):
            Run(**fields)
    with pytest.raises(TypeError, match=words):
        RUN.with_(**change)


def test_missing_fields_are_named():
    with pytest.raises(ValueError, match="num_examples"):
        Run(mechanism="dpsgd", sampling="poisson", noise_multiplier=1.0, steps=1)
    with pytest.raises(ValueError, match="noise_multiplier"):
        Run(**DATA, sampling="poisson", steps=1)
