"""Gradient encoding with any noise: golden values, and every case without a proven guarantee."""

import math

import numpy as np
import pytest

from tests.accounting.varying import vary
from tfdp.accounting import (
    Encoding,
    claimed,
    describe,
    noise_for,
    proven,
    proven_composition,
)
from tfdp.accounting.encoding import normal_quantiles

DELTA = 1e-5
T9 = Encoding(noise="student_t", degrees_of_freedom=9.0, num_weights=26010)
MNIST = describe(
    mechanism="discrete_sgd",
    num_examples=60000,
    lot_size=256,
    steps=14062,
    sampling="poisson",
    noise_multiplier=1.0,
    encoding=T9,
)
TINY = Encoding(noise="student_t", degrees_of_freedom=9.0, num_weights=2, largest_entry=1.0)
SMALL = vary(MNIST, num_examples=100, lot_size=10, steps=20, noise_multiplier=4.0, encoding=TINY)


@pytest.mark.parametrize(
    ("scale", "classic", "improved"),
    [
        (0.9, 3.641119, 3.162650),
        (1.0, 3.030005, 2.615133),
        (1.2, 2.298982, 1.956615),
        (1.5, 1.708517, 1.430097),
    ],
)
def test_golden_table(scale, classic, improved):
    run = vary(MNIST, noise_multiplier=scale)
    assert claimed(run, DELTA).epsilon == pytest.approx(classic, rel=1e-6)
    assert proven(run, DELTA).epsilon == pytest.approx(improved, rel=1e-6)


def test_golden_size():
    encoding = Encoding(noise="student_t", degrees_of_freedom=9.0, num_weights=61706)
    run = vary(MNIST, encoding=encoding)
    assert claimed(run, DELTA).epsilon == pytest.approx(3.030046, rel=1e-6)
    assert proven(run, DELTA).epsilon == pytest.approx(2.615167, rel=1e-6)


def test_golden_details():
    found = proven(MNIST, DELTA)
    assert found.details["K_2"] == pytest.approx(0.83331637, rel=1e-7)
    assert found.details["conversion"] == "RDP"
    words = " ".join(found.assumptions)
    assert "student_t with 9 degrees" in words
    assert "Gaussian" not in words


def test_golden_calibration():
    scale = noise_for(2.596981, DELTA, MNIST)
    assert scale == pytest.approx(1.004144, rel=5e-5)
    assert proven(vary(MNIST, noise_multiplier=scale), DELTA).epsilon <= 2.596981


def test_a_small_epsilon_needs_large_orders():
    run = vary(MNIST, steps=1000)
    for epsilon in (0.09, 0.02):
        noise = noise_for(epsilon, DELTA, run)
        found = proven(run.with_noise(noise), DELTA)
        assert 0.999 * epsilon < found.epsilon <= epsilon
        assert found.details["rdp_order"] > 64


def test_gaussian_noise_is_dpsgd():
    run = vary(MNIST, encoding=Encoding(num_weights=100), noise_multiplier=1.1)
    assert claimed(run, DELTA).epsilon == pytest.approx(3.009100, rel=1e-6)
    found = proven(run, DELTA)
    assert found.epsilon == pytest.approx(2.3817, rel=1e-3)
    for sampling, adjacency in (("cyclic", "zero_out"), ("poisson", "replace_one")):
        same = vary(run, mechanism="dpsgd", sampling=sampling)
        assert (
            proven(vary(run, sampling=sampling), DELTA, adjacency).epsilon
            == proven(same, DELTA, adjacency).epsilon
        )


@pytest.mark.parametrize("noise", ["laplace", "variance_gamma", "cauchy"])
def test_other_families(noise):
    run = vary(MNIST, encoding=Encoding(noise=noise, num_weights=26010), noise_multiplier=1.5)
    found = proven(run, DELTA)
    assert 0 < found.epsilon < claimed(run, DELTA).epsilon < math.inf
    assert found.epsilon < proven(vary(run, noise_multiplier=1.0), DELTA).epsilon


@pytest.mark.parametrize(
    ("change", "adjacency", "words"),
    [
        ({"noise_multiplier": 0.0}, "zero_out", "noise"),
        ({"sampling": "cyclic"}, "zero_out", "Poisson"),
        ({"sampling": "with_replacement"}, "zero_out", "Poisson"),
        ({"sampling": "cyclic_poisson", "groups": 2}, "zero_out", "Poisson"),
        ({"batch_statistics": True}, "zero_out", "statistics"),
        ({"clip_groups": 2}, "zero_out", "groups"),
        ({"sampling": "cyclic"}, "replace_one", "Poisson"),
    ],
)
def test_unproven_cases_are_infinite(change, adjacency, words):
    found = proven(vary(SMALL, **change), DELTA, adjacency)
    assert found.epsilon == math.inf
    assert words in found.reason
    assert proven(SMALL, DELTA).epsilon < math.inf
    if change.get("noise_multiplier") != 0.0:
        assert claimed(vary(SMALL, **change), DELTA, adjacency).epsilon < math.inf


@pytest.mark.parametrize(
    ("change", "adjacency"),
    [
        ({}, "replace_one"),
        ({"microbatch_size": 2}, "zero_out"),
        ({"max_examples_per_user": 2}, "zero_out"),
    ],
)
def test_two_terms_are_covered_by_group_privacy(change, adjacency):
    found, one = proven(vary(SMALL, **change), DELTA, adjacency), proven(SMALL, DELTA)
    assert found.changes == 2
    assert 2 * one.epsilon < found.epsilon < 3 * one.epsilon


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_a_codebook_fitted_to_private_gradients(noise):
    encoding = Encoding(noise=noise, num_weights=5, private_codebook=True)
    found = proven(vary(SMALL, encoding=encoding), DELTA)
    assert found.epsilon == math.inf
    assert "gradients" in found.reason


def test_noise_below_the_numerical_range_is_infinite():
    found = proven(vary(SMALL, noise_multiplier=1e-3), DELTA)
    assert found.epsilon == math.inf


def test_any_codebook_of_unit_vectors():
    noise = {"noise": "student_t", "degrees_of_freedom": 3.0, "num_weights": 100}
    exact = vary(MNIST, encoding=Encoding(**noise))
    largest = float(normal_quantiles(100).max())
    bound = vary(MNIST, encoding=Encoding(largest_entry=largest, **noise))
    low, high = proven(exact, DELTA).epsilon, proven(bound, DELTA).epsilon
    assert low <= high <= 1.02 * low


def test_whole_data_lots_are_not_amplified():
    run = vary(SMALL, lot_size=100, steps=1, encoding=Encoding(noise="laplace", num_weights=1))
    # One Laplace release of scale 4 is (1/4, 0)-DP; Rényi orders give hardly less.
    assert 0.2 < proven(run, DELTA).epsilon < 0.5


def test_composition():
    half = vary(MNIST, steps=7031)
    two = proven_composition([half, half], DELTA)
    assert two.epsilon == pytest.approx(proven(MNIST, DELTA).epsilon, rel=1e-9)
    dpsgd = vary(MNIST, mechanism="dpsgd", steps=1000)
    cyclic = vary(dpsgd, sampling="cyclic", noise_multiplier=20.0)
    mixed = proven_composition([MNIST, dpsgd, cyclic], DELTA)
    alone = [proven(run, DELTA).epsilon for run in (MNIST, dpsgd, cyclic)]
    assert max(alone) < mixed.epsilon < sum(alone)
    microbatches = vary(dpsgd, microbatch_size=2, noise_multiplier=20.0)
    together = proven_composition([MNIST, microbatches], DELTA).epsilon
    assert proven(MNIST, DELTA).epsilon < together < proven(MNIST, DELTA).epsilon * 1.2


@pytest.mark.parametrize(
    "fields",
    [
        {"noise": "uniform"},
        {"noise": "student_t"},
        {"noise": "student_t", "degrees_of_freedom": math.nan},
        {"noise": "laplace", "degrees_of_freedom": 3.0},
        {"num_weights": 0},
        {"largest_entry": 1.5},
    ],
)
def test_bad_encodings_are_refused(fields):
    with pytest.raises(ValueError, match="Expected"):
        Encoding(**({"num_weights": 2} | fields))


def test_default_codebook():
    for size in (1, 2, 1001):
        vector = normal_quantiles(size)
        assert np.linalg.norm(vector) == pytest.approx(1.0)
        assert np.all(np.diff(vector) >= 0)
