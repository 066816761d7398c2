"""A private step or engine, and the same by a plain tape: what most tests of the peers compare."""

import keras
import numpy as np
import tensorflow as tf

import tfdp
from tfdp._compat import pfor_repairs
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import exact, ghost
from tfdp.gradients.forward import Forward
from tfdp.gradients.testing import run_engine


def linear(inputs=2, units=1, bias=True, weights=None):
    """A linear model whose weights are 0, or `weights`."""
    layer = keras.layers.Dense(units, use_bias=bias, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((inputs,)), layer])
    if weights is not None:
        model.set_weights([np.asarray(w, "float32") for w in weights])
    return model


def private(model, loss="mse", cls=None, clip=1e9, noise=0.0, rate=1.0, make=None, **options):
    """A compiled private model; `make` goes to make_private, `options` to the optimizer."""
    model = tfdp.make_private(model, **(make or {}))
    cls = cls or tfdp.DPKerasSGDOptimizer
    optimizer = cls(l2_norm_clip=clip, noise_multiplier=noise, learning_rate=rate, **options)
    model.compile(optimizer, loss, jit_compile=False)
    return model


def flat(arrays):
    return np.concatenate([np.ravel(tf.convert_to_tensor(a)) for a in arrays])


def mean_gradient(model, x, y, sample_weight=None):
    """The private mean gradient of one step: what SGD with rate 1 takes away from the weights."""
    before = flat(model.trainable_variables)
    model.train_on_batch(x, y, sample_weight=sample_weight)
    return before - flat(model.trainable_variables)


def rows_of(structure, rows):
    return keras.tree.map_structure(lambda leaf: leaf[rows], structure)


def per_example(model, x, y, loss, sample_weight=None):
    """Gradients of every example, one row after the other, by a plain tape and the plain loss."""
    count = len(keras.tree.flatten(x)[0])
    found = []
    for row in range(count):
        alone = slice(row, row + 1)
        with tf.GradientTape() as tape:
            value = loss(rows_of(y, alone), model(rows_of(x, alone), training=True))
            value = tf.reduce_sum(value)
        variables = [v.value for v in model.trainable_variables]
        gradient = flat(tape.gradient(value, variables, unconnected_gradients="zero"))
        found.append(gradient * (1.0 if sample_weight is None else sample_weight[row]))
    return np.stack(found)


def clipped_mean(gradients, clip, microbatches=None):
    """Mean of the clipped means of equal groups of consecutive rows; each row alone by default."""
    groups = gradients.reshape(microbatches or len(gradients), -1, gradients.shape[1]).mean(axis=1)
    norms = np.linalg.norm(groups, axis=1, keepdims=True)
    return (groups * np.minimum(1.0, clip / np.maximum(norms, 1e-30))).mean(axis=0)


def odd_loss(y, y_pred):
    """One value a row, with another gradient for every output of every row."""
    values = keras.ops.cast(y, "float32") * keras.ops.sin(keras.ops.cast(y_pred, "float32"))
    return keras.ops.sum(keras.ops.reshape(values, (keras.ops.shape(values)[0], -1)), axis=-1)


def check_engine(engine, model, x, microbatches=None, tolerance=2e-5):
    """Asserts that an engine's norms and clipped sums are those of every example alone.

    The weights of the model are drawn anew. The clip norm is the median of the norms, so that some
    gradients are clipped and some are not.

    Args:
        engine: "ghost" or "exact".
        model: a built model.
        x: inputs, a structure of arrays.
        microbatches: number of groups of consecutive rows that are clipped together; None for rows.
        tolerance: largest difference, relative to the largest number.
    """
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(0.0, 0.5, variable.shape))
    y = rng.normal(size=model(x).shape).astype("float32")
    model.compile("sgd", odd_loss)
    alone = per_example(model, x, y, odd_loss)
    rows = len(alone)
    groups = microbatches or rows
    norms = np.linalg.norm(alone.reshape(groups, -1, alone.shape[1]).mean(axis=1), axis=1)
    clip = float(np.median(norms)) or 1.0
    if engine == "ghost":
        assert ghost.supports(model) is None
    run = ghost.bounded_sum if engine == "ghost" else exact.bounded_sum
    pfor_repairs.register()
    x = keras.tree.map_structure(tf.convert_to_tensor, x)
    found = run_engine(
        run, Forward(model), GlobalL2Clip(clip), x, y, tf.ones([rows]), rows // groups
    )
    # A norm of 0 becomes a small number in the ghost engine, which avoids a division by zero.
    np.testing.assert_allclose(
        np.ravel(found.norms), norms, rtol=tolerance, atol=tolerance * norms.max() + 1e-6
    )
    expected = clipped_mean(alone, clip, microbatches) * groups
    np.testing.assert_allclose(
        flat(found.sums),
        expected,
        rtol=tolerance,
        atol=tolerance * max(np.abs(expected).max(), 1e-6),
    )
