"""Compares the engines with a loop over batches of one, and sums of neighbouring lots."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.gradients.reference import MedianClip, assert_equal_sums, loop_bounded_sum, run_engine
from tests.rounding import terms_of
from tfdp.gradients.engines import exact, ghost, loop
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum

ENGINES = {"ghost": ghost.bounded_sum, "vectorized": exact.bounded_sum}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def side_by_side(shape, *stack, integers=False):
    """Returns a model that applies all layers to one input, so that one pass checks them all."""
    x = keras.Input(shape, dtype="int32" if integers else None)
    outputs = [layers.Flatten()(layer(x)) for layer in stack]
    return keras.Model(x, layers.Concatenate()(outputs) if len(outputs) > 1 else outputs[0])


def beside(*models):
    """Returns one model of several, which keep their inputs, so that one pass checks them all."""
    inputs = [x for model in models for x in model.inputs]
    outputs = [layers.Flatten()(x) for model in models for x in model.outputs]
    return keras.Model(inputs, layers.Concatenate()(outputs))


def lot_for(model, rows=3, integers=None, bound=None, weight=None):
    """Draws weights and a lot; returns the arguments of an engine."""
    generator = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(generator.normal(0.0, 0.5, variable.shape))

    def drawn(tensor):
        shape = (rows, *(6 if n is None else n for n in tensor.shape[1:]))
        if integers is not None and "int" in tensor.dtype:
            return tf.constant(generator.integers(0, integers, shape), "int32")
        return tf.constant(generator.normal(size=shape), "float32")

    x = [drawn(tensor) for tensor in model.inputs]
    x = x[0] if len(x) == 1 else x
    y = keras.tree.map_structure(lambda o: tf.constant(normal(*o.shape, seed=1)), model(x))
    model.compile("sgd", keras.tree.map_structure(lambda _: "mse", y))
    weight = tf.ones([rows]) if weight is None else tf.constant(weight, tf.float32)
    return Forward(model), MedianClip(1.0) if bound is None else bound, x, y, weight


def summing(engine, forward, bound, jit_compile=False, **options):
    """Returns a traced function of (x, y, weight): the sum over a lot, and the rows not finite."""

    @tf.function(jit_compile=jit_compile, autograph=False)
    def summed(x, y, weight):
        lot = bounded_sum(engine, forward, bound, x, y, weight, **options)
        return tf.concat([tf.reshape(part, [-1]) for part in lot.sums], 0), lot.non_finite

    return summed


def terms_for(model, rows):
    """Returns the terms of the sums over the rows of `lot_for`."""
    return terms_of(model, rows, length=6)


def check_engines(model, *, engines=ENGINES, terms=None, dtype="float32", **options):
    """Compares engines, run eagerly, with a loop; half of the rows are clipped."""
    lot = lot_for(model, **options)
    terms = terms or terms_for(model, len(lot[-1]))
    expected = loop_bounded_sum(*lot, tf.constant(0))
    for engine in engines:
        assert_equal_sums(ENGINES[engine](*lot, tf.constant(0)), expected, terms, dtype)


def check_traced(model, *, jit_compile=False, microbatch_size=1, **options):
    """Compares the ghost engine, as a graph, with a loop; with the exact engine where layers draw."""
    lot = (*lot_for(model, **options), tf.constant(0), microbatch_size)
    forward = lot[0]
    draws = any(forward.is_per_example(i) for i in range(len(forward.state_variables)))
    reference = exact.bounded_sum if draws else loop.bounded_sum
    expected = reference(*lot)
    ours = run_engine(ghost.bounded_sum, *lot[:5], microbatch_size, jit_compile=jit_compile)
    assert_equal_sums(ours, expected, terms_for(model, len(lot[4])))


def check_layers(shape, *stack, integers=None, **options):
    """Compares layers, side by side, with a loop."""
    model = side_by_side(shape, *stack, integers=integers is not None)
    check_engines(model, integers=integers, **options)
