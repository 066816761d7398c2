"""Discrete SGD: encoded sums, noise of every family, denoising and the accounting."""

import math

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from helpers import LOSS, clipped_sum, data, plain, private, weights
from keras import layers

import tfdp
from tests.optimizers.step_suite import flat, gradients_of_rows
from tests.rounding import FUNCTION, assert_close, rounding, terms_of
from tests.seeds import seed_keras
from tfdp.gradients.encoding import Codebook, EncodedBound, Encoder
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum, choose_engine

CLIP = 0.5


def discrete(noise_multiplier=1.0, clip=CLIP, rate=0.5, **kwargs):
    options = {"codebook_size": 10} | kwargs
    return tfdp.DiscreteSGDOptimizer(
        l2_norm_clip=clip, noise_multiplier=noise_multiplier, learning_rate=rate, **options
    )


# -- the bound, in both engines ------------------------------------------------------------------


def convolutional():
    seed_keras(1)
    inputs = keras.Input((6, 6, 2))
    x = layers.Conv2D(3, 3, activation="tanh")(inputs)
    x = layers.LayerNormalization()(layers.Flatten()(x))
    return keras.Model(inputs, layers.Dense(3)(x))


def encoded_bound(model, clip=CLIP):
    count = sum(math.prod(v.shape) for v in model.trainable_variables)
    return EncodedBound(clip, encoder=Encoder(Codebook.gaussian(10, count), clip))


def summer(model, bound, engine, **kwargs):
    model.compile(loss=LOSS)
    chosen, forward = choose_engine(engine, model), Forward(model)

    @tf.function(autograph=False)
    def step(x, y, weight):
        return bounded_sum(chosen, forward, bound, x, y, weight, **kwargs).sums

    def total(x, y, weight=None):
        weight = np.ones(len(x), np.float32) if weight is None else weight
        sums = step(*(tf.constant(a) for a in (x, y, weight)))
        return np.concatenate([s.numpy().ravel() for s in sums]).astype(float)

    return total


@pytest.mark.parametrize(("engine", "chunk"), [("vectorized", None), ("ghost", 2)])
def test_engines_sum_what_the_encoder_makes_of_each_example(engine, chunk):
    model = convolutional()
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(6, 6, 6, 2)).astype("float32"), draw.integers(0, 3, 6)
    bound = encoded_bound(model, clip=0.05)
    rows = np.array([flat(gradients) for gradients in gradients_of_rows(model, x, y)])
    expected = bound.encoder.encode(tf.constant(rows)).numpy().sum(axis=0)
    found = summer(model, bound, engine, physical_batch_size=chunk)(x, y)
    # Rounding may move an entry to a neighbouring rank.
    ranks = 0.05 * np.diff(np.sort(bound.encoder.codebook.vectors()))
    difference = np.abs(found - expected)
    assert np.max(difference) < np.max(ranks) and np.mean(difference) < np.mean(ranks)


def test_absent_rows_count_nothing():
    model, (x, y) = plain(), data(6)
    there = np.array([1, 0, 1, 1, 0, 0]) > 0
    total = summer(model, encoded_bound(model, clip=0.05), "ghost")
    alone = total(x[there], y[there])
    assert_close(total(x, y, np.float32(there)), alone, terms_of(model, 6))


@pytest.mark.parametrize("several", ["microbatch_size", "views"])
def test_groups_are_encoded_by_their_mean(several):
    model, (x, y) = plain(), data(6)
    bound = encoded_bound(model, clip=2.0)  # which cuts little off the mean
    together = summer(model, bound, "ghost", **{several: 6})(x, y)
    mean = np.mean([flat(g) for g in gradients_of_rows(model, x, y)], axis=0)
    assert_close(together, bound.encoder.encode(mean[None])[0], terms_of(model, 6))


def test_one_example_moves_the_sum_within_the_box_of_one_vector():
    model, (x, y) = plain(), data(6)
    bound = encoded_bound(model)
    boxes = bound.encoder.codebook.vectors().astype(float) * CLIP
    total, distances = summer(model, bound, "ghost"), []
    gone = np.array([1, 1, 0, 1, 1, 1], np.float32)
    for extreme in (x[2, 0], 1e4, np.inf, np.nan):
        other = x.copy()
        other[2, 0] = extreme
        moved = total(other, y) - total(x, y, gone)
        slack = rounding(terms_of(model, 6), 6 * CLIP)
        assert np.any(np.all(np.sort(np.abs(moved)) <= boxes + slack, axis=1))
        distances.append(np.linalg.norm(moved))
    assert bound.relative_sensitivity() == 1.0
    assert 0.5 * CLIP < max(distances) <= CLIP + 7 * slack


# -- the optimizer -------------------------------------------------------------------------------


def test_without_encoding_gradients_are_clipped():
    model = private(discrete(0.0, encode=False))
    expected = weights(model) - 0.5 * clipped_sum(model, *data(8), CLIP) / 8
    model.train_on_batch(*data(8))
    assert_close(weights(model), expected, terms_of(model, 8))


def test_noise_has_the_law_of_its_family_with_the_right_scale():
    seed_keras(0)
    network = keras.Sequential([keras.Input((4,)), layers.Dense(600), layers.Dense(3)])
    optimizer = discrete(30.0, clip=0.02, rate=8.0, noise="student_t", denoise=False, seed=5)
    model = private(optimizer, network, physical_batch_size=2)
    before = weights(model)
    model.train_on_batch(*data(8))
    drawn = weights(model) - before  # rate / L * z C times a draw at scale 1

    def p_value(scale):
        law = lambda x: optimizer.family.cumulative(tf.constant(x, tf.float64)).numpy()  # noqa: E731
        return scipy.stats.kstest(drawn / scale, law).pvalue

    assert p_value(0.6) > 1e-4
    assert max(p_value(0.4), p_value(0.9)) < 1e-6


def test_denoising_scales_the_noisy_update_by_one_factor():
    moves = []
    for denoise in (False, True):
        model = private(discrete(2.0, seed=9, denoise=denoise))
        before = weights(model)
        model.train_on_batch(*data(8))
        moves.append(weights(model) - before)
    ratio = moves[1] / moves[0]
    assert ratio.std() < 1e-2 * ratio.mean()
    assert 0 < ratio.mean() < 1
    sums = -moves[0] * 8 / 0.5
    law = scipy.stats.t(9, scale=2.0 * CLIP)
    expected = scipy.stats.kstest(sums, law.cdf).statistic
    # A small change of a large weight.
    rounded = rounding(
        len(sums) + 4 * FUNCTION, np.max(np.abs(before)) / np.median(np.abs(moves[0]))
    )
    assert ratio.mean() == pytest.approx(expected, rel=rounded)


# -- the accounting ------------------------------------------------------------------------------


def test_what_was_used_is_what_is_accounted():
    model = private(discrete(4.0, noise="laplace"))
    model.fit(*data(), batch_size=4, verbose=0)
    (run,) = model.privacy.ledger.runs
    encoding = run.mechanism.encoding
    assert run.mechanism.name == "discrete_sgd"
    assert (encoding.noise, encoding.degrees_of_freedom) == ("laplace", None)
    assert encoding.num_weights == 43 == len(weights(model))
    assert encoding.largest_entry == Codebook.gaussian(10, 43).vectors().max()
    assert 0 < model.privacy.spent(1e-5).epsilon < 50


@pytest.mark.parametrize("private_codebook", [False, True])
def test_a_codebook_of_ones_own_is_declared(private_codebook):
    vectors = np.abs(np.random.default_rng(0).normal(size=(3, 43)))
    optimizer = discrete(codebook=vectors, private_codebook=private_codebook)
    encoding = optimizer.mechanism_fields(plain().trainable_variables)["encoding"]
    assert encoding.private_codebook == private_codebook
    largest = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).max()
    assert encoding.largest_entry == pytest.approx(largest)
    # Without a codebook, the worst point of the unit ball is declared.
    clipped = discrete(encode=False, clipping="per_layer").mechanism_fields(
        plain().trainable_variables
    )
    assert clipped["encoding"].largest_entry == 1.0


# -- arguments and saving ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"noise": "uniform"}, "noise"),
        ({"noise": "laplace", "degrees_of_freedom": 9.0}, "degrees_of_freedom"),
        ({"clipping": "per_layer"}, "encode"),
        ({"codebook_size": 0}, "codebook_size"),
        ({"codebook": np.zeros((1, 43))}, "codebook"),
        ({"codebook": np.ones((1, 5))}, "43 trainable weights"),
    ],
)
def test_bad_arguments(options, word):
    with pytest.raises(ValueError, match=word):
        discrete(**options).mechanism_fields(plain().trainable_variables)


@pytest.mark.parametrize(
    "options",
    [
        {"noise": "sech", "encode": False, "denoise": False, "clipping": "automatic"},
        {"codebook": np.eye(43)[:2] + 0.1, "private_codebook": True},
    ],
)
def test_a_configuration_comes_back(options):
    optimizer, variables = discrete(0.7, **options), plain().trainable_variables
    made = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert made.get_config() == optimizer.get_config()
    assert made.mechanism_fields(variables) == optimizer.mechanism_fields(variables)
