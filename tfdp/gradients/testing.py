"""Compares a rule with the loop engine, in tests of the rules here and of rules of your own."""

import keras
import numpy as np
import tensorflow as tf

from tfdp.gradients.bounds import AutomaticClip
from tfdp.gradients.engines import ghost, loop
from tfdp.gradients.forward import Forward
from tfdp.gradients.rules.recording import owners


def check_rule(
    layer,
    *input_shapes,
    rows: int = 5,
    integers: int | None = None,
    tolerance: float = 1e-5,
    seed: int = 0,
) -> None:
    """Raises AssertionError where a rule's norms or sums differ from a loop over the examples.

    The layer becomes a model of its own, with random weights and inputs, and with a loss that gives a
    different gradient to every output. Gradients are normalized, so that sums depend on all norms.
    Differences are relative to the largest entry.

    Args:
        layer: a layer with trainable weights; it is built here unless it is built already.
        *input_shapes: shapes of the layer's inputs, without the batch.
        rows: number of examples.
        integers: draws integer inputs below this number instead of normal ones.
        tolerance: largest relative difference.
        seed: seed of weights and inputs.

    Raises:
        AssertionError: the results differ, or a weight has no rule (the ghost engine may train it
            all the same, by what the graph shows).
    """
    inputs = [keras.Input(s, dtype="int32" if integers else None) for s in input_shapes]
    model = keras.Model(inputs, keras.tree.flatten(layer(*inputs)))
    covered = {id(v) for rule in owners(model).values() for v in rule.variables()}
    missing = [v.path for v in model.trainable_variables if id(v) not in covered]
    assert not missing, f"No rule covers {missing} of '{layer.name}' ({type(layer).__name__})."
    generator = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign(generator.normal(0.0, 0.5, variable.shape))
    shapes = [(rows, *shape) for shape in input_shapes]
    x = [
        tf.constant(generator.integers(0, integers, s), "int32")
        if integers
        else tf.constant(generator.normal(size=s), "float32")
        for s in shapes
    ]
    x = x[0] if len(x) == 1 else x
    y = keras.tree.map_structure(lambda o: tf.constant(generator.normal(size=o.shape)), model(x))
    model.compile("sgd", loss=keras.tree.map_structure(lambda _: _linear, y))
    lot = (Forward(model), AutomaticClip(1.0), x, y, tf.ones([rows]), tf.constant(0))
    ours, expected = ghost.bounded_sum(*lot), loop.bounded_sum(*lot)
    largest = max(float(tf.reduce_max(tf.abs(total))) for total in expected.sums)
    # A gradient that is zero up to rounding is compared with the gradients of other variables.
    pairs = [("norms", ours.norms, expected.norms, 0.0)]
    for variable, a, b in zip(model.trainable_variables, ours.sums, expected.sums, strict=True):
        pairs.append((f"sum of {variable.path}", a, b, 1e-2 * largest))
    for name, a, b, least in pairs:
        allowed = tolerance * max(float(tf.reduce_max(tf.abs(b))), least)
        np.testing.assert_allclose(a, b, rtol=0.0, atol=allowed, err_msg=name)


def _linear(y, y_pred):
    # The weights y give every output a gradient of its own; the sine keeps this gradient from being
    # the same for all inputs.
    y_pred = keras.ops.cast(y_pred, "float32")
    return keras.ops.sum(
        keras.ops.reshape(keras.ops.cast(y, "float32") * keras.ops.sin(y_pred), (1, -1)), axis=-1
    )
