"""Private training with private running statistics: engines agree, and one example moves only C."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tests.gradients.checking import check_engines, check_traced, normal, summing
from tests.helpers import LOSS
from tests.rounding import assert_close, rounding, terms_of
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import exact, ghost
from tfdp.gradients.forward import Forward
from tfdp.layers import PrivateBatchNormalization


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
    """A layer of one's own."""

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


def test_a_layer_that_is_used_twice_equals_a_loop():
    check_engines(twice(), rows=4, weight=[1.0, 0.5, 2.0, 1.0])


@pytest.mark.slow
def test_under_xla_and_in_microbatches():
    check_traced(row_by_row(), rows=4, jit_compile=True, microbatch_size=2)


def compiled(make):
    model = make()
    model.compile("sgd", LOSS)
    for variable in model.trainable_variables:
        variable.assign(variable + 0.3 * normal(*variable.shape, seed=variable.shape[0]))
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


def run(engine, forward, clip, x, y, weight):
    rows = [tf.constant(x), tf.constant(y), tf.constant(weight, tf.float32)]
    lot = engine.bounded_sum(forward, GlobalL2Clip(clip), *rows, tf.constant(0))
    return np.concatenate([np.ravel(s) for s in lot.sums]), lot


EACH = pytest.mark.parametrize(
    ("make", "engine"), [(row_by_row, exact), (images, ghost)], ids=["vectorized", "ghost"]
)


@EACH
def test_sums_are_those_of_the_formulas(make, engine):
    model, forward = compiled(make)
    x, y = normal(5, *model.input_shape[1:]), np.arange(5) % 3
    expected = gradients_by_definition(model, x, y)
    norms = np.linalg.norm(expected, axis=1)
    clip = float(np.median(norms))
    found, lot = run(engine, forward, clip, x, y, np.ones(5))
    assert_close(lot.norms, norms, terms_of(model), each=True)
    total = (expected * np.minimum(1.0, clip / norms)[:, None]).sum(0)
    assert_close(found, total, terms_of(model, 5))


@EACH
def test_an_example_moves_the_sum_by_the_clip_norm_at_most(make, engine):
    """Neighbours differ in one row, which is absent in the second; its inputs are ordinary or huge."""
    model, forward = compiled(make)
    x, y = normal(5, *model.input_shape[1:]), tf.range(5) % 2
    sums, present = summing(engine.bounded_sum, forward, GlobalL2Clip(0.1)), tf.ones(5)
    for scale in (1.0, 1e4):
        x[2] *= scale
        rows = tf.constant(x), y
        with_it, without = sums(*rows, present)[0], sums(*rows, present - tf.one_hot(2, 5))[0]
        assert 0.09 < np.linalg.norm(with_it - without) <= 0.1 * (1 + rounding(terms_of(model, 5)))


def test_absent_rows_do_not_move_the_statistics():
    model, forward = compiled(row_by_row)
    x = normal(3, 4)
    x[1:] = np.nan
    found, _ = run(ghost, forward, 10.0, x, np.arange(3), [1.0, 0.0, 0.0])
    expected = gradients_by_definition(model, x[:1], np.array([0]))[0]
    assert_close(found, expected, terms_of(model))


def test_training_moves_statistics_unless_they_are_frozen():
    model = row_by_row()
    frozen = PrivateBatchNormalization(trainable=False)
    model = keras.Sequential([keras.Input((4,)), frozen, *model.layers])
    before, moving = frozen.get_weights(), model.layers[2].get_weights()
    private = tfdp.make_private(model)
    private.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0), LOSS)
    lots = tfdp.data.make_lots("poisson", normal(40, 4), np.arange(40) % 3, lot_size=8)
    private.fit(lots, verbose=0)
    assert np.isfinite(private.privacy.spent(1e-5).epsilon)
    for new, old in zip(frozen.get_weights(), before, strict=True):
        np.testing.assert_array_equal(new, old)
    for new, old in zip(model.layers[2].get_weights(), moving, strict=True):
        assert np.isfinite(new).all() and not np.array_equal(new, old)
