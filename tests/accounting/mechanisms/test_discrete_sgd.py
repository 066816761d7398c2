"""Gradient encoding with any noise: golden values, and every case without a proven guarantee."""

import math

import numpy as np
import pytest

from tests.accounting.varying import vary
from tfdp.accounting import (
    Encoding,
    claimed,
    describe,
    encoded_steps,
    noise_for,
    proven,
)
from tfdp.accounting.encoding import normal_quantiles
from tfdp.accounting.numerics.noise_families import fisher_information, log_density, log_ratio
from tfdp.accounting.numerics.privacy_loss import RenyiLoss

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
HEAVY = Encoding(noise="student_t", degrees_of_freedom=0.5, num_weights=2, largest_entry=1.0)
SMALL = vary(MNIST, num_examples=100, lot_size=10, steps=20, noise_multiplier=4.0, encoding=TINY)


def like_gaussian(run, factor=1.0):
    """The proven epsilon of DP-SGD whose noise has the same Fisher information, times a factor."""
    nu = run.mechanism.encoding.degrees_of_freedom
    unit = math.sqrt(fisher_information(run.mechanism.encoding.noise, nu)) / factor
    return proven(
        vary(run, mechanism="dpsgd", noise_multiplier=run.mechanism.noise_multiplier / unit), DELTA
    ).epsilon


@pytest.mark.parametrize(
    ("scale", "classic", "renyi"),
    [
        (0.9, 3.641119, 3.162650),
        (1.0, 3.030005, 2.615133),
        (1.2, 2.298982, 1.956615),
        (1.5, 1.708517, 1.430097),
    ],
)
def test_golden_table(scale, classic, renyi):
    run = vary(MNIST, noise_multiplier=scale)
    assert claimed(run, DELTA).epsilon == pytest.approx(classic, rel=1e-6)
    found = proven(run, DELTA).epsilon
    assert like_gaussian(run) < found < like_gaussian(run, 0.999) < 0.93 * renyi


def test_golden_size():
    encoding = Encoding(noise="student_t", degrees_of_freedom=9.0, num_weights=61706)
    run = vary(MNIST, encoding=encoding)
    assert claimed(run, DELTA).epsilon == pytest.approx(3.030046, rel=1e-6)
    assert like_gaussian(run) < proven(run, DELTA).epsilon < like_gaussian(run, 0.9995)


def test_golden_details():
    found = proven(MNIST, DELTA)
    assert found.details["gaussian_noise"] == pytest.approx(math.sqrt(12 / 10), rel=1e-3)
    assert found.details["conversion"] == "PLD"
    words = " ".join(found.assumptions)
    assert "student_t with 9 degrees" in words
    assert "Gaussian" not in words


def test_golden_calibration():
    scale = noise_for(2.3817, DELTA, MNIST)
    assert scale == pytest.approx(1.1 * math.sqrt(10 / 12), rel=1e-3)
    assert proven(vary(MNIST, noise_multiplier=scale), DELTA).epsilon <= 2.3817


def test_a_small_epsilon():
    run = vary(MNIST, steps=1000)
    for epsilon in (0.09, 0.02):
        noise = noise_for(epsilon, DELTA, run)
        found = proven(run.with_noise(noise), DELTA)
        assert 0.999 * epsilon < found.epsilon <= epsilon


@pytest.mark.parametrize(
    ("family", "number"),
    [("laplace", 1), ("laplace", 3), ("sech", 2), ("cauchy", 4), ("variance_gamma", 2)],
)
def test_few_weights_are_as_private_as_an_attack_shows(family, number):
    """The gradient is the codebook's vector, and its losses are added without rounding any up.

    Losses of 200,000 equally likely draws are put onto the next lower point of a grid, so the delta of
    their composition is no more than what a test of likelihood ratios has, but for 1e-3 of quadrature.
    """
    encoding = Encoding(noise=family, num_weights=number)
    run = vary(MNIST, steps=500, encoding=encoding, noise_multiplier=0.8)
    q, interval, size = 256 / 60000, 2e-4, 1 << 17
    draws = np.sinh(np.linspace(-30, 30, 400_001))
    chances = np.exp(log_density(family, draws)) * np.cosh(np.arcsinh(draws)) * 60 / 400_000
    transform = np.ones(size // 2 + 1, complex)
    for shift in normal_quantiles(number) / 0.8:
        if shift:
            ratio = log_ratio(family, draws, shift)
            index = np.floor(ratio / interval).astype(int) % size
            transform *= np.fft.rfft(np.bincount(index, chances * np.exp(ratio), size))
    with_ = np.maximum(np.fft.irfft(transform, size), 0.0)
    losses = np.fft.fftfreq(size, 1 / size) * interval
    without = with_ * np.exp(-losses)
    mixed = np.log1p(q * np.expm1(np.minimum(losses, 30.0)))
    index = np.floor(mixed / 1e-5).astype(int)
    law = q * with_ + (1 - q) * without
    sure = (index > -size // 2) & (law > 1e-17)
    fine = 1 << 21
    step = np.fft.rfft(np.bincount(index[sure] % fine, law[sure], fine))
    total = np.maximum(np.fft.irfft(step**run.steps, fine), 0.0)
    at = np.fft.fftfreq(fine, 1 / fine) * 1e-5
    epsilon = proven(run, DELTA).epsilon
    shown = max(
        each
        for each in np.linspace(0.8, 1.0, 41) * epsilon
        if (-np.expm1(np.minimum(each - at, 0.0)) @ total) >= DELTA
    )
    assert 0.96 * epsilon < shown <= epsilon


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


@pytest.mark.parametrize("nu", [0.5, 13.0])
def test_other_degrees_of_freedom_have_renyi_divergences_only(nu):
    encoding = Encoding(noise="student_t", num_weights=26010, degrees_of_freedom=nu)
    run = vary(MNIST, encoding=encoding, noise_multiplier=1.5)
    losses = encoded_steps.prove(run, DELTA, "zero_out").losses
    assert [*map(type, losses)] == [RenyiLoss]
    one, two = (proven(run, DELTA, adjacency).epsilon for adjacency in ("zero_out", "replace_one"))
    assert one < two < math.inf  # by group privacy


@pytest.mark.parametrize(
    ("change", "adjacency", "words"),
    [
        ({"noise_multiplier": 0.0}, "zero_out", "noise"),
        ({"encoding": HEAVY, "sampling": "shuffle"}, "zero_out", "1 to 12 degrees"),
        ({"batch_statistics": True}, "zero_out", "statistics"),
        ({"clip_groups": 2}, "zero_out", "groups"),
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
        ({"sampling": "cyclic"}, "zero_out"),
        ({"sampling": "shuffle"}, "replace_one"),
        ({"sampling": "fixed_size"}, "zero_out"),
        ({"sampling": "with_replacement"}, "replace_one"),
        ({"sampling": "cyclic_poisson", "groups": 2}, "replace_one"),
        ({"sampling": "random_allocation"}, "zero_out"),
        ({"microbatch_size": 2}, "zero_out"),
        ({"max_examples_per_user": 2}, "zero_out"),
        ({"max_examples_per_user": 3}, "replace_one"),
    ],
)
def test_every_theorem_of_dpsgd_holds_for_a_multiple_of_the_noise(change, adjacency):
    encoding = Encoding(noise="laplace", num_weights=10**6, largest_entry=0.01)
    run = vary(SMALL, encoding=encoding, **change)
    same = vary(run, mechanism="dpsgd")
    below, above = (
        proven(same.with_noise(4.0 * factor), DELTA, adjacency).epsilon for factor in (1, 0.999)
    )
    assert below < proven(run, DELTA, adjacency).epsilon < above


@pytest.mark.parametrize(
    ("change", "adjacency"),
    [
        ({"sampling": "random_allocation"}, "replace_one"),
        ({"sampling": "cyclic_poisson", "groups": 2, "max_examples_per_user": 2}, "zero_out"),
    ],
)
def test_several_lots_at_once_are_covered_by_group_privacy(change, adjacency):
    run = vary(SMALL, **change)
    found = proven(run, DELTA, adjacency)
    one = proven(vary(run, max_examples_per_user=1), DELTA)
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
    assert low <= high <= 1.05 * low


def test_whole_data_lots_are_not_amplified():
    run = vary(SMALL, lot_size=100, steps=1, encoding=Encoding(noise="laplace", num_weights=1))
    # One Laplace release of scale 4 is (1/4, 0)-DP; Rényi orders give hardly less.
    assert 0.2 < proven(run, DELTA).epsilon < 0.5


def test_composition():
    half = vary(MNIST, steps=7031)
    two = proven([half, half], DELTA)
    assert two.epsilon == pytest.approx(proven(MNIST, DELTA).epsilon, rel=1e-9)
    dpsgd = vary(MNIST, mechanism="dpsgd", steps=1000)
    cyclic = vary(dpsgd, sampling="cyclic", noise_multiplier=20.0)
    mixed = proven([MNIST, dpsgd, cyclic], DELTA)
    alone = [proven(run, DELTA).epsilon for run in (MNIST, dpsgd, cyclic)]
    assert max(alone) < mixed.epsilon < sum(alone)
    microbatches = vary(dpsgd, microbatch_size=2, noise_multiplier=20.0)
    together = proven([MNIST, microbatches], DELTA).epsilon
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
