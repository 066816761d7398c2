"""What jax_privacy's own tests assert, of tfdp's strategies, noise, clipping, lots and accounting.

Golden values: google-deepmind/jax_privacy at commit 8967688c (after version 1.0.0), below `tests/`.
Each test names the file and the test that it was read from. A strategy C is a Toeplitz matrix here,
given by its first column; jax_privacy's dense, column-normalized, buffered and banded-inverse
strategies have no counterpart (docs/peers.md).
"""

import itertools
import math

import keras
import numpy as np
import pytest
import scipy.fft
import scipy.stats
import tensorflow as tf

import tfdp
from tests.peers.one_step import clipped_mean, flat, linear, mean_gradient, per_example, private
from tfdp.accounting import (
    BudgetExhausted,
    Contribution,
    PrivacyBudget,
    Run,
    Strategy,
    best_bands,
    noise_for,
    proven,
    strategy,
)
from tfdp.accounting.strategies import (
    inverse,
    losses,
    optimized,
    prefix_noise,
    sensitivity,
    sqrt_coefficients,
)
from tfdp.gradients.bounds import AutomaticClip, EachLayerL2Clip, GlobalL2Clip, PerLayerL2Clip
from tfdp.noise import CorrelatedNoise, NoiseSource


def matrix(column, steps):
    """The lower-triangular Toeplitz matrix with this first column, cut or filled with zeros."""
    column = np.concatenate([np.asarray(column, float), np.zeros(steps)])[:steps]
    return sum(c * np.eye(steps, k=-j) for j, c in enumerate(column))


def toeplitz(*coefficients):
    return Strategy(name="banded_toeplitz", coefficients=coefficients)


# ------------------------------------------------------------------ sensitivity


# matrix_factorization/sensitivity_test.py, test_minsep_true_max_participations:
# steps, separation, largest number of participations, how many are possible.
PARTICIPATIONS = [
    *[(1, b, k, 1) for b in (1, 2, 5, 10) for k in (1, 2, 5)],
    (5, 1, 5, 5),
    (5, 2, 5, 3),
    (5, 3, 5, 2),
    (5, 4, 5, 2),
    (5, 5, 5, 1),
    (5, 6, 5, 1),
    (5, 1, 2, 2),
    (5, 2, 2, 2),
    (5, 2, 4, 3),
    (4, 1, 4, 4),
    (4, 2, 4, 2),
    (4, 3, 4, 2),
    (4, 4, 4, 1),
]


@pytest.mark.parametrize(("steps", "separation", "most", "possible"), PARTICIPATIONS)
def test_participations_that_fit(steps, separation, most, possible):
    """The squared sensitivity of the identity is the number of participations."""
    assert sensitivity([1.0], steps, most, separation) ** 2 == pytest.approx(possible)


@pytest.mark.parametrize("steps", [1, 2, 11])
@pytest.mark.parametrize("column", [[1.0], [1.0, 0.5], np.linspace(1.0, 0.1, 11)], ids=len)
def test_one_participation_is_the_norm_of_a_column(column, steps):
    """matrix_factorization/toeplitz_test.py, test_single_participation_sensitivity."""
    assert sensitivity(column, steps) == pytest.approx(np.linalg.norm(column[:steps]))


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 11])
@pytest.mark.parametrize("most", [1, 4, 11])
def test_prefix_sums(steps, most):
    """toeplitz_test.py, test_sensitivity_squared_tri: the first k columns of the triangle of ones."""
    expected = np.sum(np.tri(steps)[:, :most].sum(axis=1) ** 2)
    assert sensitivity(np.ones(steps), steps, most, 1) ** 2 == pytest.approx(expected)


@pytest.mark.parametrize("steps_and_epochs", [(1, 1), (2, 1), (2, 2), (10, 1), (10, 5), (10, 10)])
@pytest.mark.parametrize("bands", [2, 10, 13])
def test_whole_epochs_are_the_worst_of_falling_columns(steps_and_epochs, bands):
    """toeplitz_test.py, test_sensitivity_squared_fixed_epoch, for all offsets in the epoch."""
    steps, epochs = steps_and_epochs
    separation = steps // epochs
    column = np.linspace(1.0, 0.001, bands)
    c = matrix(column, steps)
    expected = max(np.linalg.norm(c[:, s::separation].sum(axis=1)) for s in range(separation))
    for most in (epochs, epochs + 10):
        found = sensitivity(column, steps, most, separation)
        assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("steps", [5, 50])
@pytest.mark.parametrize("most", [1, 2, 5, 50])
def test_participation_in_every_step(steps, most):
    """toeplitz_test.py, test_sensitivity_squared_min_sep_one."""
    column = np.sqrt(np.linspace(1.0, 0.001, steps))
    expected = np.linalg.norm(matrix(column, steps)[:, :most].sum(axis=1))
    assert sensitivity(column, steps, most, 1) == pytest.approx(expected, rel=1e-10)


def worst_pattern(column, steps, most, separation):
    """Largest ||C m||^2, whatever the directions of the gradients: all patterns, absolute products."""
    products = np.abs(matrix(column, steps).T @ matrix(column, steps))
    worst = 0.0
    for count in range(1, min(most, steps) + 1):
        for pattern in itertools.combinations(range(steps), count):
            if all(b - a >= separation for a, b in itertools.pairwise(pattern)):
                worst = max(worst, products[np.ix_(pattern, pattern)].sum())
    return worst


@pytest.mark.parametrize(
    "column",
    [[-1.0], [1.0, 2.0, 1.0], [1.0, -0.5, 0.3], [-1.0, 0.5], [1.0, 0.5, 0.8], [1.0, 0.0, 1.0]],
    ids=str,
)
@pytest.mark.parametrize("separation", [1, 2])
@pytest.mark.parametrize("most", [1, 2, 6])
def test_other_columns_are_bounded(column, separation, most):
    """toeplitz_test.py: ..._squared_upper_bound and ..._projection_is_majorant.

    The last column is our own: there, taking part in every step is not the worst pattern.
    """
    bound = sensitivity(column, 6, most, separation) ** 2
    assert bound >= worst_pattern(column, 6, most, separation) - 1e-9


def test_sensitivity_of_bands_that_do_not_overlap():
    """banded_test.py, test_minsep_sensitivity_squared: 8.0 and 6.0 for columns of norm 1."""
    column = optimized(32, 4)
    for most, expected in ((32, 8.0), (6, 6.0)):
        found = sensitivity(column / np.linalg.norm(column), 32, most, 4) ** 2
        assert found == pytest.approx(expected)
    assert sensitivity([1.0, 1.0], 100, 1, 10) == pytest.approx(math.sqrt(2))  # test_helper


# ------------------------------------------------------------------ strategies


@pytest.mark.parametrize("steps", [1, 2, 10, 100])
def test_square_root_of_prefix_sums(steps):
    """toeplitz_test.py, test_fhu_coefs and test_fhu_inv_coefs."""
    column = sqrt_coefficients(steps)
    c = matrix(column, steps)
    np.testing.assert_allclose(c @ c, np.tri(steps), atol=1e-10)
    np.testing.assert_allclose(c @ matrix(inverse(column, steps), steps), np.eye(steps), atol=1e-10)


def test_coefficients_of_the_inverse_square_root():
    """toeplitz_test.py, test_banded_inverse_square_root_noising_coefs."""
    expected = [1, -1 / 2, -1 / 8, -1 / 16, -5 / 128]
    assert inverse(sqrt_coefficients(5), 5) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("bands", [1, 2, 5, 10])
@pytest.mark.parametrize("factor", [1, 2])
def test_inverse(bands, factor):
    """toeplitz_test.py, test_inverse_toeplitz_coef and test_banded_inverse_toeplitz_coef."""
    column, steps = np.linspace(1.0, 0.0, bands), factor * bands
    column[0] = 1.0
    product = matrix(column, steps) @ matrix(inverse(column, steps), steps)
    np.testing.assert_allclose(product, np.eye(steps), atol=1e-9)


# toeplitz_test.py, NAMED_C_MATRIX_PARAMS: first column and number of steps.
COLUMNS = {
    "one band": ([7.3], 3),
    "as long as the run": ([1, 0.5, 0.2], 3),
    "longer run": ([1, 0.7, 2.0], 4),
    "negative": ([1, 0.0, -0.2], 5),
    "25 steps": (np.linspace(1, 0.001, 25), 25),
    "growing": (np.linspace(0.5, 2.0, 11), 11),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_noise_on_the_prefix_sums(name):
    """toeplitz_test.py: test_per_query_error, test_max_error_is_last_iterate and test_mean_loss."""
    column, steps = COLUMNS[name]
    expected = np.linalg.norm(np.tri(steps) @ np.linalg.inv(matrix(column, steps)), axis=1)
    np.testing.assert_allclose(prefix_noise(column, steps), expected, rtol=1e-9)
    mean, largest = losses(column, steps)
    assert mean == pytest.approx(np.sqrt(np.mean(expected**2)))
    assert largest == pytest.approx(expected.max())
    # Noise times sensitivity does not change if the strategy is scaled.
    scaled = 2.3 * np.asarray(column)
    ours = [sensitivity(c, steps) * losses(c, steps)[0] for c in (column, scaled)]
    assert ours[0] == pytest.approx(ours[1])


def test_error_of_independent_noise():
    """banded_test.py, test_implicit_error: the mean squared error of 9 steps is 5.0."""
    assert losses([1.0], 9)[0] ** 2 == pytest.approx(5.0)


@pytest.mark.parametrize("bands", [1, 5, 10, 15])
@pytest.mark.parametrize("objective", ["mean", "max"])
def test_more_bands_are_better(bands, objective):
    """toeplitz_test.py, test_toeplitz_more_bands_is_better, for 16 steps."""
    which = 0 if objective == "mean" else 1

    def error(bands):
        column = optimized(16, bands, objective)
        return sensitivity(column, 16) * losses(column, 16)[which]

    assert error(bands + 1) <= error(bands) * (1 + 1e-9)


@pytest.mark.parametrize("steps", [10, 100, 1_000, 10_000])
def test_the_square_root_is_near_the_lower_bound(steps):
    """buffered_toeplitz_test.py, test_optimize_single_participation_near_optimal.

    jax_privacy's buffered strategies reach 1.03 to 1.05 of 1 + log(n) / pi there.
    """
    column = sqrt_coefficients(steps)
    reached = np.linalg.norm(column) * losses(column, steps)[1]
    assert reached <= 1.05 * (1 + math.log(steps) / math.pi)


# buffered_toeplitz_test.py, test_optimize_single_participation_golden: two buffers for 100,000 steps.
BUFFERS = ([0.0122853238, 0.1878393665], [0.9999528892, 0.9857068667])


def test_the_square_root_beats_two_buffers():
    """Among Toeplitz strategies the square root has the least largest error of one participation."""
    steps = 100_000
    scale, decay = map(np.array, BUFFERS)
    powers = decay[:, None] ** np.arange(steps - 1)[None]
    buffered = np.concatenate([[1.0], (scale[:, None] * powers).sum(axis=0)])
    # C^-1 of a buffered strategy is a short recursion; its prefix sums follow from prefix sums.
    ours = np.linalg.norm(sqrt_coefficients(steps)) ** 2
    # ||C|| times the norm of the first column of A C^-1, by power series division.
    quotient = scipy.fft.irfft(
        scipy.fft.rfft(np.ones(steps), 2 * steps)
        * scipy.fft.rfft(_series_inverse(buffered), 2 * steps),
        2 * steps,
    )[:steps]
    theirs = np.linalg.norm(buffered) * np.linalg.norm(quotient)
    assert ours < theirs < 1.16 * (1 + math.log(steps) / math.pi)


def _series_inverse(column):
    """First coefficients of 1 / column as a power series, by Newton's iteration with transforms."""
    found = np.array([1.0 / column[0]])
    while len(found) < len(column):
        size = min(2 * len(found), len(column))
        length = 4 * size
        product = np.fft.irfft(
            np.fft.rfft(column[:size], length) * np.fft.rfft(found, length) ** 2, length
        )[:size]
        found = 2 * np.pad(found, (0, size - len(found))) - product
    return found


@pytest.mark.parametrize(("epsilon", "bands"), [(20.0, 8), (0.1, 1)])
def test_bands_for_a_budget(epsilon, bands):
    """toeplitz_test.py, test_large_epsilon and test_small_epsilon: N = 1000, lots of 100, 100 steps.

    A large budget takes as many bands as there can be groups (the largest power of two below 10
    here), a small one takes one band.
    """
    run = Run(
        mechanism="dpsgd", sampling="poisson", num_examples=1000, lot_size=100, steps=100,
        noise_multiplier=1.0,
    )  # fmt: skip
    assert best_bands(epsilon, 1e-6, run).bands == bands


def test_as_many_bands_as_groups_of_whole_lots_are_not_amplified():
    """toeplitz_test.py, test_helper_stddev_at_max_bands: 10 bands, N = 100, lots of 10, 100 steps."""
    column = sqrt_coefficients(10)
    run = Run(
        mechanism="matrix", sampling="cyclic_poisson", groups=10, num_examples=100, lot_size=10,
        steps=100, noise_multiplier=1.0, strategy=toeplitz(*column),
    )  # fmt: skip
    gaussian = Run(
        mechanism="dpsgd", sampling="cyclic", num_examples=1, lot_size=1, steps=1,
        noise_multiplier=1.0,
    )  # fmt: skip
    expected = noise_for(2.0, 1e-6, gaussian) * sensitivity(column, 100, 10, 10)
    assert noise_for(2.0, 1e-6, run) == pytest.approx(expected, rel=1e-6)


def test_more_participations_need_more_noise():
    """execution_plan_test.py, test_rmse_decreases_with_participations, in terms of the lots.

    Twice the lot size at the same number of bands is twice the probability: more noise on a sum, but
    less on the mean.
    """
    noise = {}
    for lot_size in (125, 250):
        run = Run(
            mechanism="matrix", sampling="cyclic_poisson", groups=2, num_examples=1000,
            lot_size=lot_size, steps=16, noise_multiplier=1.0,
            strategy=strategy("banded_toeplitz", 16, 2),
        )  # fmt: skip
        noise[lot_size] = noise_for(1.0, 1e-6, run)
    assert noise[125] < noise[250] < 2 * noise[125]


# ------------------------------------------------------------------ noise


def test_the_scale_of_the_noise_and_no_other():
    """noise_addition_test.py, test_normality_and_magnitude: 2/3 and 3/2 of the scale are rejected."""
    source = NoiseSource(seed=1234)
    drawn = np.concatenate([source.gaussians(2.0, [(512,)])[0] for _ in range(3)])
    for factor, accepted in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        pvalue = scipy.stats.kstest(drawn, scipy.stats.norm(scale=2.0 * factor).cdf).pvalue
        assert (pvalue > 0.025) == accepted


def test_no_number_is_drawn_twice():
    """noise_addition_test.py, test_noise_unique: over steps, places, variables and keys."""
    sources = [NoiseSource(), NoiseSource()]
    drawn = [flat(s.gaussians(1.0, [(4,), (4,)])) for _ in range(3) for s in sources]
    # Two float32 numbers may be equal by chance, once in 60,000 runs.
    assert len(set(np.concatenate(drawn).tolist())) >= 3 * 2 * 8 - 2


SHAPES = {"scalar": [()], "vector": [(10,)], "two": [(6, 6), (6, 6)]}


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize(("steps", "bands"), [(16, 16), (15, 6), (16, 1), (1, 1)])
def test_correlated_noise_is_a_product_with_the_inverse(shapes, steps, bands):
    """noise_addition_test.py, test_mf_privatizer_matches_explicit_matmul; test_solve_toeplitz."""
    shapes = SHAPES[shapes]
    column = np.concatenate([[1.0], np.random.default_rng(3).normal(size=bands - 1) / bands])
    correlated, source = CorrelatedNoise(toeplitz(*column), shapes), NoiseSource(seed=5)
    fresh = [source.gaussians(1.0, shapes) for _ in range(steps)]
    made = np.stack([flat(correlated.correlate(z)) for z in fresh])
    expected = np.linalg.solve(matrix(column, steps), np.stack([flat(z) for z in fresh]))
    np.testing.assert_allclose(made, expected, atol=2e-5 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("name", ["identity", "banded_toeplitz", "sqrt_toeplitz"])
def test_one_band_is_independent_noise(name):
    """noise_addition_test.py, test_identity_banded_blt_exact_match."""
    same = toeplitz(1.0) if name == "banded_toeplitz" else Strategy(name=name, bands=1)
    fresh = NoiseSource(seed=0).gaussians(1.0, [(10,)])
    (made,) = CorrelatedNoise(same, [(10,)]).correlate(fresh)
    np.testing.assert_array_equal(made, fresh[0])


def test_scaling_the_strategy_scales_the_noise():
    """noise_addition_test.py, test_scale_invariance."""
    fresh = [NoiseSource(seed=i).gaussians(1.0, [(10,)]) for i in range(3)]
    once, twice = (CorrelatedNoise(toeplitz(*(f * np.array([1.0, 0.4]))), [(10,)]) for f in (1, 2))
    for z in fresh:
        np.testing.assert_allclose(2 * twice.correlate(z)[0], once.correlate(z)[0], rtol=1e-5)


# ------------------------------------------------------------------ clipping


def scaled(bound, gradients):
    """Gradients of one row, one array for each variable, after bounding."""
    squares = tf.constant([[float(np.sum(np.square(g))) for g in gradients]], tf.float32)
    return [
        s * np.asarray(g) for s, g in zip(bound.scales(squares).numpy()[0], gradients, strict=True)
    ]


GRADIENTS = {
    "matrix": [np.random.default_rng(0).normal(size=(5, 5))],
    "three": [
        np.random.default_rng(i).normal(size=shape) for i, shape in enumerate([(10,), (5, 5), ()])
    ],
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("clip", [0.01, 1.0, 2.0, 1e6])
def test_norms_are_bounded(name, clip):
    """clipping_test.py: test_clip_pytree_has_bounded_norm, ..._large_clip_norm, ..._zero_norm_..."""
    gradients = GRADIENTS[name]
    norm = np.linalg.norm(flat(gradients))
    clipped = flat(scaled(GlobalL2Clip(clip), gradients))
    assert np.linalg.norm(clipped) == pytest.approx(min(clip, norm), rel=1e-6)
    assert np.linalg.norm(flat(scaled(AutomaticClip(clip), gradients))) <= clip
    assert not np.any(flat(scaled(GlobalL2Clip(clip), [0 * g for g in gradients])))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [GlobalL2Clip, AutomaticClip])
def test_a_gradient_that_is_no_number_counts_zero(bad, kind):
    """clipping_test.py, test_nan_safe_norm_check_produces_finite_output."""
    found = kind(1.0).scales(tf.constant([[9.0, bad], [16.0, 9.0]])).numpy()
    assert not found[0].any() and np.all(np.isfinite(found)) and found[1].all()


def test_clipping_each_layer():
    """clipping_test.py, test_clip_pytree_per_layer_prefix_clip_norm_tree: layers of norm 5 and 10.

    jax_privacy has a clip norm for each layer (2 and 5 there); here all layers have the same.
    """
    gradients = [np.array([0.0, 3.0]), np.array([4.0]), np.array([0.0, 8.0]), np.array([6.0])]
    two = scaled(EachLayerL2Clip(2.0, (0, 0, 1, 1)), gradients)
    for found, expected in zip(two, [[0.0, 1.2], [1.6], [0.0, 1.6], [1.2]], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    five = scaled(EachLayerL2Clip(5.0, (0, 0, 1, 1)), gradients)
    np.testing.assert_allclose(five[2], [0.0, 4.0], rtol=1e-6)
    np.testing.assert_allclose(five[3], [3.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (GlobalL2Clip(2.0), 2.0),
        (AutomaticClip(0.25), 0.25),
        (EachLayerL2Clip(1.0, (0, 1, 2)), math.sqrt(3)),
        (PerLayerL2Clip(1.0, (0, 1, 2)), 1.0),
    ],
)
def test_declared_sensitivity(bound, expected):
    """clipping_test.py, ClippedFunSensitivityContractTest: the square root of the number of layers."""
    assert bound.sensitivity() == pytest.approx(expected)
    assert bound.sensitivity(microbatch_size=2) == pytest.approx(2 * expected)


@pytest.mark.parametrize(
    ("adjacency", "factor"), [("zero_out", 1.0), ("add_or_remove_one", 1.0), ("replace_one", 2.0)]
)
def test_sensitivity_of_a_relation(adjacency, factor):
    """clipping_test.py, test_clip_sum_sensitivity; REPLACE_SPECIAL is zero_out."""
    run = Run(
        mechanism="dpsgd", sampling="poisson", num_examples=100, lot_size=10, steps=1, nominal=True,
        noise_multiplier=1.0,
    )  # fmt: skip
    assert Contribution(l2_norm_clip=1.0).sensitivity(run.sampling, adjacency) == factor
    rng, clip = np.random.default_rng(0), 1.0
    lot = np.clip(rng.normal(size=(15, 4)), -0.5, 0.5)
    sums = []
    for third in (lot[3], [-10, 10, 20, 20], np.zeros(4)):
        changed = lot.copy()
        changed[3] = third
        sums.append(clipped_mean(changed, clip) * 15)
    moved = np.linalg.norm(sums[0] - sums[1 if adjacency == "replace_one" else 2])
    assert moved <= factor * clip + 1e-12


# keras_api_test.py, test_clipped_grads: the model a . x at a = (3, -2), x = (1, 2), y = 4, whose
# gradient is (-10, -20). Clip norm, rows, normalized or not, expected mean gradient.
CLIPPED = [
    (100.0, 1, "global", [-10.0, -20.0]),
    (1.0, 1, "global", [-0.44721362, -0.89442724]),
    (100.0, 5, "global", [-10.0, -20.0]),
    (1.0, 1, "automatic", [-0.44721362, -0.89442724]),
    (2.0, 1, "automatic", [-0.89442724, -1.78885448]),
]


@pytest.mark.parametrize(("clip", "rows", "clipping", "expected"), CLIPPED)
def test_clipped_gradient_of_a_step(clip, rows, clipping, expected):
    model = private(linear(bias=False, weights=[[[3.0], [-2.0]]]), clip=clip, clipping=clipping)
    x, y = np.tile([[1.0, 2.0]], (rows, 1)), np.full((rows, 1), 4.0)
    found = mean_gradient(model, x.astype("float32"), y.astype("float32"))
    # "automatic" adds a small constant to the norm, so that the result is just below the clip norm.
    np.testing.assert_allclose(found, expected, rtol=1e-3 if clipping == "automatic" else 1e-5)


def weighted_lot():
    rng = np.random.default_rng(7)
    return rng.normal(size=(6, 2)).astype("float32"), rng.normal(size=(6, 1)).astype("float32")


@pytest.mark.parametrize("physical", [None, 2])
def test_padding_contributes_nothing(physical):
    """gradient_clipping_test.py: ..._with_padding_examples, with and without chunks."""
    x, y = weighted_lot()
    weight = np.float32([1, 1, 0, 1, 0, 0])
    model = private(linear(), clip=0.7, make={"physical_batch_size": physical})
    start = model.get_weights()
    alone = per_example(model, x[weight > 0], y[weight > 0], keras.losses.mean_squared_error)
    expected = clipped_mean(alone, 0.7) * 3 / 6  # the divisor is public: the size of the lot
    for garbage in (0.0, 1e30, math.nan, math.inf):
        model.set_weights(start)
        bad = np.where(weight[:, None] > 0, x, np.float32(garbage))
        found = mean_gradient(model, bad, y, weight)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_weights_of_tokens():
    """keras_api_test.py, test_fit_with_weighted_metrics: three tokens of an example, four classes."""
    model = private(
        keras.Sequential([keras.Input((3, 2)), keras.layers.Dense(4)]),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    x, y = np.ones((4, 3, 2), "float32"), np.zeros((4, 3), "int32")
    weight = np.float32([[1, 1, 1], [1, 0, 0], [0, 0, 0], [2, 0, 1]])
    start = model.get_weights()
    moved = mean_gradient(model, x, y, weight)
    model.set_weights(start)

    def loss(targets, outputs):
        each = keras.losses.sparse_categorical_crossentropy(targets, outputs, from_logits=True)
        row = next(rows)
        return keras.ops.sum(each * weight[row : row + 1]) / 3

    rows = iter(range(4))
    expected = per_example(model, x, y, loss).mean(axis=0)
    np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-7)


def test_a_budget_ends_training():
    """keras_api_test.py, test_dp_training_exceeds_privacy_budget_raises_error: 16 + 14 > 28 steps."""
    x, y = np.ones((200, 4), "float32"), np.ones((200, 1), "float32")
    run = Run(
        mechanism="dpsgd", sampling="poisson", num_examples=200, lot_size=100, steps=28,
        noise_multiplier=10.0,
    )  # fmt: skip
    budget = PrivacyBudget(proven(run, 1e-5).epsilon * (1 + 1e-6), 1e-5)
    model = private(linear(4), clip=1.0, noise=10.0, make={"budget": budget})
    for options in ({"epochs": 2}, {"epochs": 2}, {"initial_epoch": 4, "epochs": 5},
                    {"epochs": 3, "steps_per_epoch": 2}):  # fmt: skip
        model.fit(x, y, batch_size=100, verbose=0, **options)
    assert model.privacy.steps_taken == 16
    with pytest.raises(BudgetExhausted):
        model.fit(x, y, batch_size=100, epochs=7, verbose=0)
    assert model.privacy.steps_taken <= 28


# ------------------------------------------------------------------ accounting


# accounting_test.py, TEST_CASES: 128 steps at delta 1e-6 there, 32 here.
EVENTS = {
    "dpsgd": dict(mechanism="dpsgd", sampling="poisson", num_examples=10_000, lot_size=100),
    "amplified_bandmf": dict(
        mechanism="matrix", sampling="cyclic_poisson", groups=16, num_examples=1600, lot_size=1,
        strategy=strategy("banded_toeplitz", 32, 16),
    ),
    "fixed_dpsgd": dict(mechanism="dpsgd", sampling="fixed_size", num_examples=1000, lot_size=16),
    "fixed_dpsgd_replace": dict(
        mechanism="dpsgd", sampling="with_replacement", num_examples=1000, lot_size=16
    ),
    "truncated_dpsgd": dict(
        mechanism="dpsgd", sampling="poisson", num_examples=1000, lot_size=10, max_lot_size=32
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EVENTS)
def test_calibration_meets_the_budget(name):
    """accounting_test.py, test_get_epsilon and test_calibration (to four places)."""
    run = Run(**EVENTS[name], steps=32, noise_multiplier=1.0)
    assert proven(run, 1e-6).epsilon > 0
    noise = noise_for(1.0, 1e-6, run)
    assert 1.0 - 1e-4 <= proven(run.with_noise(noise), 1e-6).epsilon <= 1.0


@pytest.mark.parametrize("name", EVENTS)
def test_no_noise_is_infinite_and_no_crash(name):
    """accounting_test.py, test_dpsgd_event_zero_noise_does_not_crash."""
    run = Run(**EVENTS[name], steps=10, noise_multiplier=0.0)
    assert proven(run, 1e-6).epsilon == math.inf


# ------------------------------------------------------------------ lots


def drawn(sampling, examples, steps, **options):
    """The first lots, as arrays of indices."""
    x = np.zeros((examples, 1), "float32")
    lots = tfdp.data.make_lots(sampling, x, x, seed=0, **options)
    return [lot.numpy() for lot in lots.indices().take(steps)]


def check_indices(lots, examples, steps):
    assert len(lots) == steps
    for lot in lots:
        assert np.issubdtype(lot.dtype, np.signedinteger)
        assert len(set(lot.tolist())) == len(lot)
        assert not len(lot) or (lot.min() >= 0 and lot.max() < examples)


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("lot_size", [1, 3])
def test_groups_take_turns(groups, lot_size):
    """batch_selection_test.py: test_cyclic_participation and test_poisson_sampling with EQUAL_SPLIT.

    An example belongs to one group, so it appears at most once in a round, and only in its turns.
    """
    examples, steps = 12, 60
    lots = drawn("cyclic_poisson", examples, steps, groups=groups, lot_size=lot_size)
    check_indices(lots, examples, steps)
    members = [set(np.concatenate(lots[turn::groups]).tolist()) for turn in range(groups)]
    for one, other in itertools.combinations(members, 2):
        assert not one & other
    sizes = [len(lot) for lot in lots]
    spread = math.sqrt(lot_size * (1 - groups * lot_size / examples) / steps)
    assert abs(np.mean(sizes) - lot_size) <= 4 * spread


def test_a_group_that_is_drawn_whole_is_an_epoch():
    """batch_selection_test.py, test_cyclic_participation with probability 1."""
    lots = drawn("cyclic_poisson", 12, 8, groups=4, lot_size=3)
    assert sorted(np.concatenate(lots[:4])) == list(range(12))
    for early, late in zip(lots, lots[4:], strict=False):
        np.testing.assert_array_equal(np.sort(early), np.sort(late))


def test_frequency_of_an_example():
    """batch_selection_test.py, ..._min_sep_one_poisson_frequency."""
    lots = drawn("poisson", 200, 500, lot_size=20)
    check_indices(lots, 200, 500)
    assert sum(map(len, lots)) / (500 * 200) == pytest.approx(0.1, abs=0.004)
    counts = np.bincount(np.concatenate(lots), minlength=200)
    assert np.all(np.abs(counts - 50) < 5 * math.sqrt(500 * 0.1 * 0.9))


@pytest.mark.parametrize("sampling", ["cyclic", "shuffle"])
def test_an_epoch_takes_every_example_once(sampling):
    """batch_selection_test.py, test_balls_in_bins_sampling, in the sense of epochs of equal lots."""
    lots = drawn(sampling, 100, 20, lot_size=10)
    check_indices(lots, 100, 20)
    for epoch in (lots[:10], lots[10:]):
        assert sorted(np.concatenate(epoch)) == list(range(100))
    repeated = all(np.array_equal(a, b) for a, b in zip(lots[:10], lots[10:], strict=True))
    assert repeated == (sampling == "cyclic")


def test_fixed_size():
    """batch_selection_test.py, test_fixed_batch_sampling and ..._rejects_oversized."""
    lots = drawn("fixed_size", 10, 6, lot_size=4)
    check_indices(lots, 10, 6)
    assert {len(lot) for lot in lots} == {4}
    with pytest.raises(ValueError, match="lot_size"):
        drawn("fixed_size", 10, 1, lot_size=11)


def test_with_replacement():
    """batch_selection_test.py, test_fixed_batch_sampling_with_replacement.

    A lot above the number of examples, as there, is refused here.
    """
    lots = drawn("with_replacement", 5, 20, lot_size=5)
    assert {len(lot) for lot in lots} == {5}
    assert any(len(set(lot.tolist())) < 5 for lot in lots)
    with pytest.raises(ValueError, match="lot_size"):
        drawn("with_replacement", 5, 2, lot_size=10)


@pytest.mark.parametrize("sampling", ["poisson", "cyclic_poisson", "fixed_size", "shuffle"])
def test_a_seed_repeats_the_lots(sampling):
    """batch_selection_test.py, ..._is_deterministic."""
    options = {"groups": 2} if sampling == "cyclic_poisson" else {}
    first, second = (drawn(sampling, 50, 5, lot_size=10, **options) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


# batch_selection_test.py, test_pad_to_multiple_of: size of a lot and the multiple.
@pytest.mark.parametrize(("size", "multiple"), [(10, 4), (10, 5), (10, 1), (17, 6), (17, 17)])
def test_padding_to_a_multiple(size, multiple):
    x = np.arange(1.0, 101, dtype="float32")[:, None]
    lots = tfdp.data.make_lots(
        "fixed_size",
        x,
        x,
        lot_size=size,
        row_multiple=multiple,
        physical_batch_size=multiple,
        seed=0,
    )
    rows, _, weight = next(iter(lots.as_dataset()))
    assert len(rows) % multiple == 0 and len(rows) - size < multiple
    np.testing.assert_array_equal(weight, np.arange(len(rows)) < size)
    assert len(set(rows.numpy()[:size, 0].tolist())) == size
