"""Public batch normalization with statistics of each example: engines agree, one example moves C."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tests.gradients.checking import check_engines, check_traced, normal, summing
from tests.helpers import LOSS
from tests.rounding import rounding, terms_of
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import exact, ghost
from tfdp.gradients.forward import Forward
from tfdp.layers import PublicBatchNormalization, PublicExamples


def wrapped(*stack, shape, **kwargs):
    network = keras.Sequential([keras.Input(shape), *stack])
    return keras.Sequential(
        [keras.Input(shape), PublicExamples(network, normal(6, *shape), **kwargs)]
    )


def images(**kwargs):
    return wrapped(
        layers.Conv2D(4, 3),
        PublicBatchNormalization(),
        layers.ReLU(),
        layers.Conv2D(3, 3, strides=2),
        PublicBatchNormalization(center=False),
        layers.ReLU(),
        layers.Flatten(),
        layers.Dense(5),
        PublicBatchNormalization(scale=False),
        layers.Dense(3),
        shape=(7, 7, 2),
        **kwargs,
    )


def features(**kwargs):
    stack = (
        layers.Dense(5),
        PublicBatchNormalization(),
        layers.Activation("tanh"),
        layers.Dense(3),
    )
    return wrapped(*stack, shape=(4,), **kwargs)


def sequences(**kwargs):
    stack = (layers.Conv1D(4, 2), PublicBatchNormalization(), layers.GlobalAveragePooling1D())
    return wrapped(*stack, shape=(5, 3), **kwargs)


def without_weights(**kwargs):
    normalization = PublicBatchNormalization(center=False, scale=False)
    stack = (layers.Dense(5, use_bias=False), normalization, layers.ReLU(), layers.Dense(3))
    return wrapped(*stack, shape=(3, 4), **kwargs)


@pytest.mark.parametrize(
    ("make", "engines"),
    [(images, ["ghost"]), (sequences, ["ghost"]), (without_weights, ["ghost", "vectorized"])],
)
def test_engines_equal_a_loop(make, engines):
    check_engines(make(), engines=engines)


@pytest.mark.slow
def test_under_xla_and_in_microbatches():
    check_traced(features(), rows=4, jit_compile=True, microbatch_size=2)


def test_what_the_rules_do_not_cover():
    """Weights further up, and an activation in front of the normalization."""
    stack = (layers.Dense(4), layers.Activation("softmax"), PublicBatchNormalization())
    model = wrapped(layers.Dense(5), *stack, layers.Dense(3), shape=(4,))
    check_engines(model, engines=["ghost"])


def test_a_frozen_normalization_has_no_gradient():
    model = features()
    model.layers[-1].network.layers[1].trainable = False
    check_engines(model, engines=["ghost"])


class Halved(layers.Wrapper):
    """Runs a layer with half of its weights."""

    def call(self, inputs):
        weights = self.layer.trainable_variables
        rest = [(v, tf.convert_to_tensor(v)) for v in self.layer.non_trainable_variables]
        halves = [(v, 0.5 * tf.convert_to_tensor(v)) for v in weights]
        with keras.StatelessScope([*halves, *rest]):
            return self.layer(inputs)


def test_layers_that_give_the_network_other_weights():
    network = wrapped(layers.Dense(5), PublicBatchNormalization(), layers.Dense(3), shape=(4,))
    model = keras.Sequential([keras.Input((4,)), Halved(network)])
    check_engines(model, engines=["ghost"])


def bounded(model, engine, x, y, weight=None, clip=1.0):
    model.compile(loss=LOSS)
    weight = tf.ones([len(x)]) if weight is None else tf.constant(weight, tf.float32)
    rows = (tf.constant(x), tf.constant(y), weight)
    lot = engine(Forward(model), GlobalL2Clip(clip), *rows, tf.constant(0))
    return np.concatenate([np.ravel(total) for total in lot.sums]), lot


def test_a_bias_before_a_normalization_has_no_gradient():
    model = features()
    total, _ = bounded(model, exact.bounded_sum, normal(3, 4, seed=1), np.arange(3), clip=1e6)
    sizes = np.cumsum([int(np.prod(v.shape)) for v in model.trainable_variables])[:-1]
    assert np.abs(np.split(total, sizes)[1]).max() < 1e-4


@pytest.mark.parametrize("engine", [ghost, exact], ids=["ghost", "vectorized"])
def test_an_example_moves_the_sum_by_at_most_the_clip_norm(engine):
    model, y, present = features(), tf.range(6) % 3, tf.ones(6)
    model.compile(loss=LOSS)
    bound = GlobalL2Clip(0.01)
    sums = summing(engine.bounded_sum, Forward(model), bound)
    for outlier in (0.1, 1e4):
        x = normal(6, 4, seed=1)
        x[2] *= outlier
        rows = tf.constant(x), y
        whole, without = sums(*rows, present)[0], sums(*rows, present - tf.one_hot(2, 6))[0]
        sensitivity = bound.l2_norm_clip * bound.relative_sensitivity()
        assert (
            0 < np.linalg.norm(whole - without) <= sensitivity * (1 + rounding(terms_of(model, 6)))
        )


# -- training ------------------------------------------------------------------------------------


def private(model, optimizer=tfdp.DPKerasSGDOptimizer, noise=1.0, **kwargs):
    model = tfdp.make_private(model, **kwargs)
    options = {"l2_norm_clip": 1.0, "noise_multiplier": noise, "learning_rate": 0.5}
    model.compile(optimizer(**options), loss=LOSS)
    return model


def test_noisy_weights_leave_public_examples_as_they_are():
    model = private(features(), tfdp.SIDPSGDOptimizer)
    before = np.array(model.layers[-1].examples)
    model.fit(normal(24, 4, seed=1), np.arange(24) % 3, batch_size=8, shuffle=False, verbose=0)
    np.testing.assert_array_equal(model.layers[-1].examples, before)
    assert "6 public examples" in model.privacy.statement(1e-5, full=True)


@pytest.mark.parametrize("kind", ["arrays", "lots", "float64"])
def test_a_private_example_among_the_public_ones_is_refused(kind):
    model, x, y = private(features()), normal(24, 4, seed=1), np.arange(24) % 3
    x[17] = normal(6, 4)[2]
    if kind == "lots":
        x, y = tfdp.data.make_lots("shuffle", x, y, lot_size=8), None
    elif kind == "float64":
        x = x.astype(float)
    with pytest.raises(ValueError, match="index 17"):
        model.fit(x, y, verbose=0, **({} if kind == "lots" else {"batch_size": 8}))
    assert model.privacy.ledger.runs == []
