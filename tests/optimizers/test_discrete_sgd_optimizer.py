"""Discrete SGD: encoded sums, noise of every family, denoising and the accounting."""

import math

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from helpers import LOSS, data, fit, plain, private, weights
from keras import layers

import tfdp
from tfdp import optimizers
from tfdp.accounting import proven
from tfdp.gradients.bounds import EncodedBound, GlobalL2Clip
from tfdp.gradients.encoding import Codebook, Encoder
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum, choose_engine

CLIP = 0.5


def discrete(noise_multiplier=1.0, clip=CLIP, rate=0.5, **kwargs):
    options = {"codebook_size": 10} | kwargs
    return tfdp.DiscreteSGDOptimizer(
        l2_norm_clip=clip, noise_multiplier=noise_multiplier, learning_rate=rate, **options
    )


# -------------------------------------------------------------------- the bound, in both engines


def convolutional():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6, 6, 2))
    x = layers.Conv2D(3, 3, activation="tanh")(inputs)
    x = layers.DepthwiseConv2D(2)(x)
    x = layers.LayerNormalization()(layers.Flatten()(x))
    return keras.Model(inputs, layers.Dense(3)(x))


def textual():
    keras.utils.set_random_seed(2)
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Flatten()(layers.Embedding(7, 4)(inputs))
    return keras.Model(inputs, layers.Dense(3)(x))


MODELS = {"dense": plain, "convolutional": convolutional, "textual": textual}


def batch(model, rows=6):
    draw = np.random.default_rng(0)
    shape, kind = model.inputs[0].shape[1:], model.inputs[0].dtype
    x = draw.integers(0, 7, (rows, *shape)) if "int" in kind else draw.normal(size=(rows, *shape))
    return x.astype(kind), draw.integers(0, 3, rows)


def encoded_bound(model, clip=CLIP, **kwargs):
    count = sum(math.prod(v.shape) for v in model.trainable_variables)
    codebook = Codebook.gaussian(10, count, **kwargs)
    return EncodedBound(clip, encoder=Encoder(codebook, clip))


def summer(model, bound, engine, **kwargs):
    chosen, forward = choose_engine(engine, model), Forward(model)

    @tf.function(autograph=False)
    def step(x, y, weight):
        return bounded_sum(chosen, forward, bound, x, y, weight, **kwargs).sums

    def total(x, y, weight=None):
        weight = np.ones(len(x), np.float32) if weight is None else weight
        sums = step(*(tf.constant(a) for a in (x, y, weight)))
        return np.concatenate([s.numpy().ravel() for s in sums]).astype(float)

    return total


@pytest.mark.parametrize("name", MODELS)
def test_both_engines_sum_what_the_encoder_makes_of_each_example(name):
    model = MODELS[name]()
    model.compile(loss=LOSS)
    x, y = batch(model)
    bound = encoded_bound(model, clip=0.05)
    expected = 0.0
    for row in range(len(x)):
        with tf.GradientTape() as tape:
            loss = LOSS(y[row : row + 1], model(x[row : row + 1], training=True))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        flat = np.concatenate([tf.convert_to_tensor(g).numpy().ravel() for g in gradients])
        expected = expected + bound.encoder.encode(tf.constant(flat[np.newaxis])).numpy()[0]
    for engine in ("vectorized", "ghost"):
        for physical_batch_size in (None, 2):
            found = summer(model, bound, engine, physical_batch_size=physical_batch_size)(x, y)
            # Rounding may move an entry to a neighbouring rank.
            np.testing.assert_allclose(found, expected, atol=3e-4)
            assert np.mean(np.abs(found - expected)) < 2e-5


def test_absent_rows_count_nothing_and_groups_are_encoded_by_their_mean():
    model = plain()
    model.compile(loss=LOSS)
    x, y = batch(model)
    bound = encoded_bound(model, clip=0.05)
    weight = np.array([1, 0, 1, 1, 0, 0], np.float32)
    there = weight > 0
    total = summer(model, bound, "ghost")
    np.testing.assert_allclose(total(x, y, weight), total(x[there], y[there]), atol=1e-6)
    together = summer(model, bound, "ghost", microbatch_size=6)(x, y)
    assert np.linalg.norm(together) <= 0.05 * (1 + 1e-6)
    flat = summer(model, bound, "vectorized", microbatch_size=6)(x, y)
    np.testing.assert_allclose(together, flat, atol=1e-5)


class NoBound(EncodedBound):
    """A broken bound, which does not keep gradients in a box."""

    def bounded(self, rows):
        return rows


class NormOnly(EncodedBound):
    """A broken bound, which limits the norm as the vectors do, but not the ranked entries."""

    def bounded(self, rows):
        norms = tf.norm(rows, axis=1, keepdims=True)
        return rows * tf.minimum(1.0, self.l2_norm_clip / tf.maximum(norms, 1e-30))


def neighbours_differ_by_a_box(bound, codebook, engine):
    """Returns whether every move of the sum by one example is in a box, and the largest move."""
    model = plain()
    model.compile(loss=LOSS)
    x, y = batch(model)
    total, moved_most = summer(model, bound, engine), 0.0
    gone = np.ones(6, np.float32)
    gone[2] = 0.0
    for extreme in (None, 10.0, 1e4, 1e18, np.inf, np.nan):
        for columns in (slice(None), slice(0, 1)):
            other = x.copy()
            if extreme is not None:
                other[2, columns] = extreme
            moved = total(other, y) - total(x, y, gone)
            if not np.all(np.isfinite(moved)):
                return False, moved_most
            boxes = codebook.vectors().astype(float) * bound.l2_norm_clip
            slack = 1e-6 * bound.l2_norm_clip  # for the rounding of the float32 sum
            if not np.any(np.all(np.sort(np.abs(moved)) <= boxes + slack, axis=1)):
                return False, moved_most
            moved_most = max(moved_most, np.linalg.norm(moved))
    return True, moved_most


@pytest.mark.parametrize("engine", ["vectorized", "ghost"])
def test_one_example_moves_the_sum_within_the_box_of_one_vector(engine):
    bound = encoded_bound(plain())
    inside, moved = neighbours_differ_by_a_box(bound, bound.encoder.codebook, engine)
    assert inside
    assert 0.5 * CLIP < moved <= bound.sensitivity() * (1 + 1e-5) == CLIP * (1 + 1e-5)


@pytest.mark.parametrize("broken", [NoBound, NormOnly])
def test_the_same_check_catches_a_bound_that_is_none(broken):
    good = encoded_bound(plain())
    bad = broken(CLIP, encoder=good.encoder)
    with np.errstate(all="ignore"):
        assert not neighbours_differ_by_a_box(bad, good.encoder.codebook, "ghost")[0]


def test_a_bound_for_another_clip_norm_is_refused():
    encoder = encoded_bound(plain()).encoder
    with pytest.raises(ValueError, match="clip norm"):
        EncodedBound(2 * CLIP, encoder=encoder)


# ------------------------------------------------------------------------------ the optimizer


@pytest.mark.parametrize("encode", [True, False])
def test_without_noise_an_update_is_the_bounded_mean_over_the_nominal_lot(encode):
    model = private(discrete(0.0, encode=encode))
    x, y = data(8)
    bound = encoded_bound(model) if encode else GlobalL2Clip(CLIP)
    expected = weights(model) - 0.5 * summer(model, bound, "ghost")(x, y) / 8
    fit(model, rows=8)
    np.testing.assert_allclose(weights(model), expected, atol=1e-6)


@pytest.mark.parametrize(("noise", "jit_compile"), [("student_t", True), ("laplace", False)])
def test_noise_once_per_lot_with_the_right_scale(noise, jit_compile):
    moves = []
    for factor in (0.0, 3.0):
        keras.utils.set_random_seed(0)
        wide = keras.Sequential([keras.Input((4,)), layers.Dense(600), layers.Dense(3)])
        model = private(
            discrete(factor, clip=0.2, rate=8.0, noise=noise, denoise=False, seed=5),
            model=wide,
            physical_batch_size=2,
            compiled={"jit_compile": jit_compile},
        )
        before = weights(model)
        model.fit(
            np.ones((8, 4), np.float32), np.zeros(8, int), batch_size=8, shuffle=False, verbose=0
        )
        moves.append(weights(model) - before)
    drawn = moves[1] - moves[0]  # rate / L * z C times a draw at scale 1
    family = discrete(noise=noise).family

    def p_value(scale):
        law = lambda x: family.cumulative(tf.constant(x, tf.float64)).numpy()  # noqa: E731
        return scipy.stats.kstest(drawn / scale, law).pvalue

    assert p_value(0.6) > 1e-4
    assert max(p_value(0.4), p_value(0.9)) < 1e-6


@pytest.mark.parametrize("encode", [True, False])
def test_denoising_scales_the_noisy_update_by_one_factor(encode):
    moves = []
    for denoise in (False, True):
        model = private(discrete(2.0, seed=9, denoise=denoise, encode=encode))
        before = weights(model)
        fit(model, rows=8)
        moves.append(weights(model) - before)
    ratio = moves[1] / moves[0]
    assert ratio.std() < 1e-3 * ratio.mean()
    assert 0 < ratio.mean() < 1
    sums = -moves[0] * 8 / 0.5
    law = scipy.stats.t(9, scale=2.0 * CLIP)
    assert ratio.mean() == pytest.approx(scipy.stats.kstest(sums, law.cdf).statistic, rel=1e-3)


@pytest.mark.parametrize("base", [keras.optimizers.Adam, keras.optimizers.AdamW])
def test_any_update_rule(base):
    made = optimizers.make_discrete_optimizer_class(base)
    assert made is optimizers.MECHANISMS["discrete_sgd"](base)
    assert issubclass(made, base)
    model = private(made(l2_norm_clip=1.0, noise_multiplier=1.0, codebook_size=2))
    before = weights(model)
    fit(model)
    assert np.mean(weights(model) != before) > 0.9  # a weight may come back to where it was
    for bad in (made, int):
        with pytest.raises(TypeError):
            optimizers.make_discrete_optimizer_class(bad)


def test_eager_steps_are_the_compiled_ones():
    trained = []
    for eagerly in (False, True):
        model = private(discrete(seed=4), compiled={"run_eagerly": eagerly})
        fit(model, rows=8)
        trained.append(weights(model))
    np.testing.assert_allclose(trained[0], trained[1], atol=1e-5)


# ----------------------------------------------------------------------------- the accounting


def spent(optimizer, **kwargs):
    model = private(optimizer)
    model.fit(*data(), batch_size=4, verbose=0, **kwargs)
    return model, model.privacy.spent(1e-5)


@pytest.mark.parametrize("noise", ["gaussian", "student_t", "laplace"])
def test_what_was_used_is_what_is_accounted(noise):
    model, guarantee = spent(discrete(4.0, noise=noise))
    encoding = model.privacy.current_run.encoding
    codebook = Codebook.gaussian(10, 43)
    assert encoding.noise == noise
    assert encoding.num_weights == 43 == len(weights(model))
    assert encoding.largest_entry == codebook.vectors().max()
    assert encoding.degrees_of_freedom == (9.0 if noise == "student_t" else None)
    assert 0 < guarantee.epsilon < 50
    assert guarantee.epsilon >= proven(model.privacy.current_run, 1e-5).epsilon
    assert model.privacy.ledger.runs[0].mechanism_name == "discrete_sgd"


def test_clipping_alone_is_accounted_at_the_worst_point_of_the_unit_ball():
    encoded = spent(discrete(2.0))[1].epsilon
    model, clipped = spent(discrete(2.0, encode=False, clipping="per_layer"))
    assert model.privacy.current_run.encoding.largest_entry == 1.0
    assert encoded <= clipped.epsilon < math.inf
    point = (1.0, *[0.0] * 42)
    one = model.privacy.current_run.encoding
    exact = type(one)(noise=one.noise, degrees_of_freedom=9.0, num_weights=43, codebook=(point,))
    run = model.privacy.current_run.with_(encoding=exact)
    assert proven(run, 1e-5).epsilon <= proven(model.privacy.current_run, 1e-5).epsilon


def test_gaussian_noise_is_accounted_as_dpsgd():
    _, found = spent(discrete(2.0, noise="gaussian"))
    _, dpsgd = spent(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=2.0))
    assert found.epsilon == dpsgd.epsilon


@pytest.mark.parametrize(
    ("optimizer", "options", "reason"),
    [
        ({"codebook": np.ones((2, 43)), "private_codebook": True}, {}, "private gradients"),
        ({}, {"shuffle": False}, "Poisson"),
        ({"num_microbatches": 2}, {}, "microbatch_size 1"),
        ({"noise_multiplier": 0.0}, {}, "No noise"),
    ],
)
def test_what_is_not_proven_is_infinite(optimizer, options, reason):
    _, guarantee = spent(discrete(**optimizer), **options)
    assert guarantee.epsilon == math.inf
    assert reason in guarantee.reason


def test_a_private_codebook_has_no_noise_that_would_do():
    vectors = np.abs(np.random.default_rng(0).normal(size=(3, 43)))
    for private_codebook in (False, True):
        run = private(discrete(codebook=vectors, private_codebook=private_codebook)).optimizer
        run = run.run_fields(plain().trainable_variables)
        assert run["encoding"].private_codebook == private_codebook
        largest = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).max()
        assert run["encoding"].largest_entry == pytest.approx(largest, rel=1e-6)


# ------------------------------------------------------------------------- arguments and saving


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"noise": "uniform"}, "noise"),
        ({"noise": "laplace", "degrees_of_freedom": 9.0}, "degrees_of_freedom"),
        ({"degrees_of_freedom": 0.0}, "degrees_of_freedom"),
        ({"clipping": "per_layer"}, "encode"),
        ({"encode": False, "clipping": "nonsense"}, "clipping"),
        ({"codebook_size": 0}, "codebook_size"),
        ({"zero_below": -1.0}, "zero_below"),
        ({"codebook": np.zeros((1, 43))}, "codebook"),
        ({"clip": 0.0}, "l2_norm_clip"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
    ],
)
def test_bad_arguments(options, word):
    with pytest.raises(ValueError, match=word):
        discrete(**options)


def test_a_codebook_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="43 entries"):
        fit(private(discrete(codebook=np.ones((1, 5)))))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"noise": "sech", "encode": False, "denoise": False, "clipping": "automatic"},
        {"degrees_of_freedom": 3.0, "zero_below": 0.1, "codebook_seed": 4},
        {"codebook": np.eye(43)[:2] + 0.1, "private_codebook": True},
    ],
)
def test_a_configuration_comes_back(options):
    optimizer = discrete(0.7, seed=3, **options)
    made = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert made.get_config() == optimizer.get_config()
    assert "seed" not in made.get_config()
    variables = plain().trainable_variables
    fields = made.run_fields(variables)
    assert fields.pop("insecure_seed") is False
    assert fields == {
        k: v for k, v in optimizer.run_fields(variables).items() if k != "insecure_seed"
    }


def test_a_saved_model_carries_its_ledger_and_goes_on(tmp_path):
    model = private(discrete(0.7))
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = tfdp.make_private(keras.models.load_model(tmp_path / "model.keras", compile=False))
    np.testing.assert_array_equal(weights(loaded), weights(model))
    loaded.compile_from_config(model.get_compile_config())
    model.save_weights(tmp_path / "model.weights.h5")
    loaded.load_weights(tmp_path / "model.weights.h5")
    assert loaded.privacy.ledger.runs[0].encoding == model.privacy.current_run.encoding
    fit(loaded)
    assert [run.steps for run in loaded.privacy.ledger.runs] == [3, 3]
