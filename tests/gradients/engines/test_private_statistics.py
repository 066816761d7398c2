"""Private training with private running statistics: engines agree, and one example moves only C."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tests.helpers import LOSS
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import exact, ghost, loop
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import choose_engine
from tfdp.gradients.testing import check_model, check_rule, run_engine
from tfdp.layers import PrivateBatchNormalization


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def images():
    return keras.Sequential(
        [
            keras.Input((7, 7, 2)),
            layers.Conv2D(4, 3),
            PrivateBatchNormalization(truncation=0.5),
            layers.ReLU(),
            layers.Conv2D(3, 3, strides=2),
            PrivateBatchNormalization(center=False),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(5),
            PrivateBatchNormalization(scale=False, share=3.0, rate=2.0),
            layers.Dense(3),
        ]
    )


class Doubled(layers.Layer):
    """A layer without a rule, so that the ghost engine computes it row by row."""

    def call(self, x):
        return 2.0 * x


def row_by_row():
    stack = (layers.Dense(5), PrivateBatchNormalization(), Doubled(), layers.Dense(3))
    return keras.Sequential([keras.Input((4,)), *stack])


def twice():
    """One layer that is used twice: its statistics move towards those of both inputs."""
    layer, inputs = PrivateBatchNormalization(share=1.0), keras.Input((4,))
    x = layer(layers.Dense(4)(layer(inputs)))
    return keras.Model(inputs, layers.Dense(2)(x))


def over_time():
    stack = (layers.TimeDistributed(PrivateBatchNormalization()), layers.LSTM(3))
    return keras.Sequential([keras.Input((5, 4)), *stack])


MODELS = pytest.mark.parametrize(
    "make", [images, row_by_row, twice, over_time], ids=lambda f: f.__name__
)


@MODELS
def test_the_ghost_engine_equals_the_exact_engine(make):
    check_model(make(), sample_weight=[1.0, 0.0, 2.0, 1.0, 1.0], tolerance=5e-5)


@pytest.mark.parametrize("shape", [(5,), (6, 5), (4, 3, 5)], ids=len)
def test_the_rule(shape):
    check_rule(PrivateBatchNormalization(truncation=0.7), shape)


def test_xla():
    check_model(row_by_row(), jit_compile=True)


def test_microbatches():
    check_model(images(), rows=6, microbatch_size=2, tolerance=5e-5)


@MODELS
def test_the_ghost_engine_supports_it(make):
    assert ghost.supports(make()) is None
    assert choose_engine("ghost", make()) is ghost.bounded_sum


def compiled(make):
    keras.utils.set_random_seed(0)
    model = make()
    model.compile("sgd", LOSS)
    for variable in model.trainable_variables:
        variable.assign(variable + 0.3 * draw(*variable.shape, seed=variable.shape[0]))
    return model, Forward(model)


def gradients_by_definition(model, x, y):
    """Gradients of the loss by a loop over examples, and of the statistics by their formulas."""
    rows = []
    statistics = {}
    for norm in (la for la in model.layers if isinstance(la, PrivateBatchNormalization)):
        inner = keras.Model(model.inputs[0], norm.input)
        statistics[id(norm.mean_weight)] = (norm, inner, 0)
        statistics[id(norm.variance_weight)] = (norm, inner, 1)
    for i in range(len(x)):
        with tf.GradientTape() as tape:
            loss = LOSS(y[i : i + 1], model(x[i : i + 1], training=True))
        values = [v.value for v in model.trainable_variables]
        found = []
        for v, g in zip(model.trainable_variables, tape.gradient(loss, values), strict=True):
            if id(v) in statistics:
                norm, inner, which = statistics[id(v)]
                z = np.asarray(inner(x[i : i + 1]), np.float64).reshape(-1, v.shape[0])
                z = np.clip(z, -norm.truncation, norm.truncation)
                mean = np.asarray(norm.running_mean, np.float64)
                if which == 0:
                    g = norm.share * (mean - z.mean(0)) / norm.truncation
                else:
                    center = np.clip(mean, -norm.truncation, norm.truncation)
                    gap = np.asarray(norm.running_variance) - np.square(z - center).mean(0)
                    g = norm.share * gap / norm.truncation**2
            found.append(np.ravel(g))
        rows.append(np.concatenate(found))
    return np.stack(rows)


@pytest.mark.parametrize("engine", [exact, ghost, loop], ids=lambda m: m.__name__.split(".")[-1])
@pytest.mark.parametrize("make", [images, row_by_row], ids=lambda f: f.__name__)
def test_sums_are_those_of_a_loop_over_examples(make, engine):
    model, forward = compiled(make)
    x, y = draw(5, *model.input_shape[1:]), np.arange(5) % 3
    expected = gradients_by_definition(model, x, y)
    norms = np.linalg.norm(expected, axis=1)
    clip = float(np.median(norms))
    ours = run_engine(
        engine.bounded_sum,
        forward,
        GlobalL2Clip(clip),
        tf.constant(x),
        tf.constant(y),
        tf.ones([5]),
    )
    np.testing.assert_allclose(ours.norms, norms, rtol=1e-4)
    total = (expected * np.minimum(1.0, clip / norms)[:, None]).sum(0)
    found = np.concatenate([np.ravel(s) for s in ours.sums])
    np.testing.assert_allclose(found, total, rtol=1e-4, atol=1e-4 * np.abs(total).max())


@MODELS
@pytest.mark.parametrize("engine", [exact, ghost], ids=lambda m: m.__name__.split(".")[-1])
def test_an_example_moves_the_sum_by_the_clip_norm_at_most(make, engine):
    """Neighbours differ in one row, which is absent in the second; its inputs are ordinary or huge."""
    model, forward = compiled(make)
    x, y = draw(5, *model.input_shape[1:]), np.arange(5) % 2
    for scale in (1.0, 1e4):
        x[2] *= scale

        def total(weight, x=x):
            lot = run_engine(
                engine.bounded_sum,
                forward,
                GlobalL2Clip(0.1),
                tf.constant(x),
                tf.constant(y),
                tf.constant(weight),
            )
            return np.concatenate([np.ravel(s) for s in lot.sums]), lot

        with_it, lot = total([1.0] * 5)
        without, _ = total([1.0, 1.0, 0.0, 1.0, 1.0])
        moved = np.linalg.norm(with_it - without)
        assert lot.sensitivity == pytest.approx(0.1)
        assert 0.09 < moved <= 0.1 * (1 + 1e-4)


def test_absent_rows_do_not_move_the_statistics():
    model, forward = compiled(row_by_row)
    x = draw(3, 4)
    x[1:] = np.nan
    for engine in (exact, ghost):
        lot = run_engine(
            engine.bounded_sum,
            forward,
            GlobalL2Clip(10.0),
            tf.constant(x),
            tf.constant([0, 1, 2]),
            tf.constant([1.0, 0.0, 0.0]),
        )
        expected = gradients_by_definition(model, x[:1], np.array([0]))[0]
        found = np.concatenate([np.ravel(s) for s in lot.sums])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_training_with_padded_poisson_lots():
    model = tfdp.make_private(row_by_row())
    model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0), LOSS)
    lots = tfdp.data.make_lots("poisson", draw(40, 4), np.arange(40) % 3, lot_size=8)
    model.fit(lots, epochs=2, verbose=0)
    assert np.isfinite(model.privacy.spent(1e-5).epsilon)
    assert all(np.isfinite(w).all() for w in model.get_weights())


def test_a_frozen_layer_keeps_its_statistics():
    model = images()
    for layer in model.layers:
        if isinstance(layer, PrivateBatchNormalization):
            layer.trainable = False
    before = [layer.get_weights() for layer in model.layers]
    private = tfdp.make_private(model)
    private.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0), LOSS)
    private.fit(draw(8, 7, 7, 2), np.arange(8) % 3, batch_size=4, verbose=0)
    for layer, values in zip(private.layers, before, strict=True):
        for new, old in zip(layer.get_weights(), values, strict=True):
            same = np.array_equal(new, old)
            assert same == isinstance(layer, PrivateBatchNormalization)
