"""TensorFlow Privacy's accounting functions state what is proven only for what was sampled."""

import math
import re

import pytest

import tfdp
from tfdp.accounting import claimed, describe, proven
from tfdp.accounting.guarantee import format_epsilon
from tfdp.accounting.numerics.gaussian import epsilon_of_mu

MNIST = dict(number_of_examples=60000, batch_size=256, delta=1e-5)
SMALL = dict(number_of_examples=2000, batch_size=50, num_epochs=3, noise_multiplier=1.5, delta=1e-5)
# The tutorial of TensorFlow Privacy: noise, epochs, published epsilon, and the one proven if lots were
# really drawn by Poisson sampling (2026-11, by the bounds of this package).
TUTORIAL = [(1.3, 15, 1.19, 0.8646), (1.1, 60, 3.01, 2.3818), (0.7, 45, 7.10, 5.6397)]
POISSON = "proven if lots were drawn by Poisson sampling:"
EPOCHS = "proven if each epoch took every example at most once:"
UNKNOWN = "proven if every example may have been in every lot:"
CLAIMED = "claimed (formula of 2020, any lots):"


def run(sampling, **changes):
    fields = dict(num_examples=2000, lot_size=50, steps=120, noise_multiplier=1.5) | changes
    return describe(mechanism="dpsgd", sampling=sampling, **fields)


def figures(text):
    """The tables at the start of a statement: for examples, and for users if there is one."""
    head = text.partition("Privacy statement")[0]
    return [
        dict(re.findall(r"^  (\w.+?:) +(\S.*)$", part, re.M)) for part in head.split("For all ")
    ]


@pytest.mark.parametrize(("noise", "epochs", "published", "by_poisson"), TUTORIAL)
def test_the_settings_of_the_tutorial(noise, epochs, published, by_poisson):
    text = tfdp.compute_dp_sgd_privacy_statement(
        **MNIST, num_epochs=epochs, noise_multiplier=noise, used_microbatching=False
    )
    (found,) = figures(text)
    # The claim is the formula of that time, with a few other orders.
    assert float(found[CLAIMED]) == pytest.approx(published, rel=5e-3)
    assert float(found[POISSON]) == pytest.approx(by_poisson, rel=1e-3)
    # Without amplification: epochs Gaussian mechanisms.
    by_epochs = epsilon_of_mu(math.sqrt(epochs) / noise, 1e-5)
    assert found[EPOCHS] == format_epsilon(by_epochs)
    assert by_epochs > 10 * by_poisson
    assert found[UNKNOWN].startswith("vacuous")
    epsilon, order = tfdp.compute_dp_sgd_privacy(60000, 256, noise, epochs, 1e-5)
    assert epsilon == pytest.approx(by_poisson, rel=1e-3)
    assert order is None  # the bound by privacy loss distributions is smaller


def test_the_table_is_that_of_the_runs():
    (found,) = figures(tfdp.compute_dp_sgd_privacy_statement(**SMALL, used_microbatching=False))
    for label, sampling in ((POISSON, "poisson"), (EPOCHS, "shuffle"), (UNKNOWN, "unknown")):
        assert found[label] == format_epsilon(proven(run(sampling), 1e-5).epsilon)
    assert found[CLAIMED] == format_epsilon(claimed(run("poisson"), 1e-5).epsilon)


def test_microbatches_cost_twice():
    text = tfdp.compute_dp_sgd_privacy_statement(**SMALL)
    (found,) = figures(text)
    for label, sampling in ((POISSON, "poisson"), (EPOCHS, "shuffle"), (UNKNOWN, "unknown")):
        some = run(sampling, microbatch_size=2)
        assert found[label] == format_epsilon(proven(some, 1e-5).epsilon)
        larger = run(sampling, microbatch_size=10)
        assert proven(larger, 1e-5).epsilon == proven(some, 1e-5).epsilon
    assert found[EPOCHS] == format_epsilon(epsilon_of_mu(2 * math.sqrt(3) / 1.5, 1e-5))
    assert "with microbatches" in text and "used_microbatching=False" in text
    assert float(found[POISSON]) > 1.5 * proven(run("poisson"), 1e-5).epsilon


@pytest.mark.parametrize(("epochs", "poisson", "whole"), [(2.51, 101, 3), (0.1, 4, 1)])
def test_steps_and_epochs_are_rounded_up(epochs, poisson, whole):
    text = tfdp.compute_dp_sgd_privacy_statement(
        **(SMALL | {"num_epochs": epochs}), used_microbatching=False
    )
    (found,) = figures(text)
    assert f"dpsgd, {poisson} steps with Poisson lots" in text
    assert found[EPOCHS] == format_epsilon(epsilon_of_mu(math.sqrt(whole) / 1.5, 1e-5))


# tensorflow/privacy at commit 03035d5d, analysis/compute_dp_sgd_privacy_test.py,
# test_dp_sgd_privacy_statement_...: 10,000 examples, lots of 64, 5 epochs, noise 2.0 and delta 1e-6.
THEIRS = dict(
    number_of_examples=10000, batch_size=64, num_epochs=5.0, noise_multiplier=2.0, delta=1e-6
)


def test_golden_statement_of_microbatches():
    """..._no_user_dp_with_pld: 12.595 for whole epochs, and 1.199 for Poisson lots."""
    (found,) = figures(tfdp.compute_dp_sgd_privacy_statement(**THEIRS))
    assert float(found[EPOCHS]) == pytest.approx(12.595, abs=6e-3)
    (single,) = figures(tfdp.compute_dp_sgd_privacy_statement(**THEIRS, used_microbatching=False))
    # A mean that moves from -1 to 1 is harder to tell from noise than one that moves from 0 to 2.
    assert 0.3 < float(single[POISSON]) < float(found[POISSON]) < 1.199


def test_golden_statement_of_users():
    """..._user_dp_with_pld: two examples of a user, 30.579 and 2.532, by group privacy.

    Here the number of a user's examples in a lot is a mixture, which costs less.
    """
    two = THEIRS | {"max_examples_per_user": 2}
    users = figures(tfdp.compute_dp_sgd_privacy_statement(**two))[1]
    exact = epsilon_of_mu(2 * 2 * math.sqrt(5) / 2, 1e-6)
    assert users[EPOCHS] == format_epsilon(exact)
    assert exact < 30.579
    assert float(users[POISSON]) < exact  # the sample is taken as revealed
    alone, users = figures(tfdp.compute_dp_sgd_privacy_statement(**two, used_microbatching=False))
    assert float(alone[POISSON]) < float(users[POISSON]) < 2.532
    assert users[EPOCHS] == format_epsilon(epsilon_of_mu(math.sqrt(5), 1e-6))


def test_all_examples_of_a_user_in_poisson_lots():
    text = tfdp.compute_dp_sgd_privacy_statement(
        **SMALL, used_microbatching=False, max_examples_per_user=3
    )
    found = figures(text)[1][POISSON]
    of_three = run("poisson", max_examples_per_user=3)
    assert found == format_epsilon(proven(of_three, 1e-5).epsilon)


def test_the_pair_is_the_one_of_the_old_function():
    pair = tfdp.compute_dp_sgd_privacy(2000, 50, 1.5, 3, 1e-5)
    assert pair == (proven(run("poisson"), 1e-5).epsilon, None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 2001}, "batch_size"),
        ({"num_epochs": math.nan}, "num_epochs"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"delta": 0.0}, "delta"),
        ({"max_examples_per_user": 0}, "max_examples_per_user"),
        ({"used_microbatching": 1}, "used_microbatching"),
    ],
)
def test_bad_arguments_are_refused(change, words):
    with pytest.raises(ValueError, match=f"Expected {words}"):
        tfdp.compute_dp_sgd_privacy_statement(**(SMALL | change))
