"""Runs the public examples of a model once, instead of once for each row.

A `PublicBatchNormalization` shares the mean m_c and the variance v_c of each feature c among all
examples. Where a product with one matrix or filter W feeds it directly, both depend on the weights
W[..., c] of that feature alone, and on public data. So example i's gradient of W has a further term,

    dL_i/dm_c * dm_c/dW[..., c] + dL_i/dv_c * dv_c/dW[..., c].

The second factors are computed here. The first ones are gradients at copies of the moments, one for
each row. If moments depend on weights in another way, every row runs the public examples itself, which
is correct but costs much more.
"""

import contextlib
import dataclasses
import functools

import tensorflow as tf

from tfdp._compat.keras import get_stateless_scope, replaced
from tfdp.gradients.sums import MomentTerm
from tfdp.gradients.uses import Use, declare
from tfdp.gradients.weight_ops import PRODUCTS
from tfdp.layers.public import public_layers


def public_moments(forward, values: list, state: list) -> list:
    """Runs the public examples of all layers of a model.

    Args:
        forward: The model's `Forward`.
        values: The trainable variables' values.
        state: As `Forward.state` returns it.

    Returns:
        A list of (layer, its `PublicMoments`, a dictionary {number of a variable: derivatives} for
        each of them), for `known_moments`. Derivatives are those of mean and variance, float32 [2,
        *shape of the variable].
    """
    found = []
    for layer in public_layers(forward.model):
        if layer.uses_lot_statistics:
            continue
        reads = [tf.identity(value) for value in values]
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(reads)
            with forward.scope(reads, state):
                moments = layer.public_moments()
        derivatives = [_derivatives(one, reads, tape) for one in moments]
        if None not in derivatives:
            found.append((layer, moments, derivatives))
    return found


def _derivatives(moments, reads, tape):
    """Returns the derivatives of one normalization's moments, or None if they may be incomplete."""
    gradients = [tape.gradient(moment, reads) for moment in (moments.mean, moments.variance)]
    reached = [i for i, pair in enumerate(zip(*gradients, strict=True)) if pair != (None, None)]
    own = _weights_before(moments)
    if any(not any(reads[i] is one for one in own) for i in reached):
        return None
    found = {}
    for i in reached:
        parts = [tf.zeros(reads[i].shape) if g[i] is None else g[i] for g in gradients]
        found[i] = tf.stack([tf.cast(part, tf.float32) for part in parts])
    return found


def _weights_before(moments) -> list:
    """Returns the weights [..., features] in which the inputs of a normalization are linear."""
    tensor = moments.inputs
    if moments.layer.axis % tensor.shape.rank != tensor.shape.rank - 1:
        return []
    found = []
    while True:
        operation = tensor.op
        if operation.type in ("BiasAdd", "AddV2"):
            bias = operation.inputs[1]
            if bias.shape.num_elements() != tensor.shape[-1]:
                return []
            found.append(_read(bias))
        elif not _keeps_features(operation):
            break
        tensor = operation.inputs[0]
    if operation.type in ("Conv2D", "Conv3D"):
        fits = operation.get_attr("data_format") in (b"NHWC", b"NDHWC")
    else:
        fits = operation.type in PRODUCTS and not operation.get_attr(PRODUCTS[operation.type][1])
    return [*found, _read(operation.inputs[1])] if fits else []


def _keeps_features(operation):
    if operation.type not in ("Identity", "Cast", "Reshape", "Squeeze", "ExpandDims"):
        return False
    before, after = operation.inputs[0].shape, operation.outputs[0].shape
    return bool(before.rank and after.rank) and before[-1] == after[-1] is not None


def _read(tensor):
    """Returns the weight that a tensor was reshaped or cast from, None if anything else uses it."""
    while len(tensor.consumers()) == 1 and _keeps_features(tensor.op):
        if tensor.op.type == "Identity":
            break
        tensor = tensor.op.inputs[0]
    return tensor if len(tensor.consumers()) == 1 else None


@contextlib.contextmanager
def known_moments(found: list, variables: list, reads: list):
    """Context of a row's pass, in which layers use the moments from `public_moments`.

    Args:
        found: The result of `public_moments`.
        variables, reads: The trainable variables, and their values as the pass reads them.
    """

    def copies(layer, moments, derivatives):
        scope, own = get_stateless_scope(), {id(v) for v in layer.trainable_variables}
        if any(
            scope.get_current_value(variable) is not read
            for variable, read in zip(variables, reads, strict=True)
            if id(variable) in own
        ):  # here it has other weights, such as noisy ones
            return type(layer).public_moments(layer)
        copied = []
        for one, of_weights in zip(moments, derivatives, strict=True):
            mean, variance = (tf.stop_gradient(m) for m in (one.mean, one.variance))
            for i, jacobian in of_weights.items():
                declare(reads[i], Use([mean, variance], [], functools.partial(_term, jacobian)))
            copied.append(dataclasses.replace(one, mean=mean, variance=variance))
        return copied

    with contextlib.ExitStack() as stack:
        for known in found:
            method = functools.partial(copies, *known)
            stack.enter_context(replaced(known[0], public_moments=method))
        yield


def _term(jacobian, *at_moments):
    features = jacobian.shape[-1]
    coefficients = [tf.reshape(tf.cast(at, tf.float32), [-1, features]) for at in at_moments]
    return MomentTerm(jacobian, tf.stack(coefficients, axis=1))
