"""Computes the gradient that flows through the moments of public examples into the layer before.

A `PublicBatchNormalization` shares the mean m_c and the variance v_c of each feature c among all
examples. Where a Dense or a convolutional layer feeds it directly, both depend on the weights W[..., c]
of that feature alone, and on public data. So example i's gradient of W contains the additional term

    dL_i/dm_c * dm_c/dW[..., c] + dL_i/dv_c * dv_c/dW[..., c].

The second factors are computed once per chunk. The first factors are gradients at copies of the
moments, one copy for each row.
"""

import dataclasses
import functools

import tensorflow as tf

from tfdp._compat import float32_products
from tfdp.gradients.rules.base import Recorded, UnsupportedModelError
from tfdp.gradients.rules.conv import ConvRule
from tfdp.gradients.rules.dense import DenseRule
from tfdp.gradients.rules.per_example_gradient import (
    Arranged,
    Instantiated,
    OuterProducts,
    PerExampleGradient,
    instantiates,
    strict,
    zero_rows,
)
from tfdp.layers.public import PublicMoments


@dataclasses.dataclass
class WatchedMoments(PublicMoments):
    """Moments of which every row gets a copy of its own, watched by a tape.

    Attributes:
        jacobians: list of (variable, float32 [2, ..., features]): derivatives of mean and variance.
        tape: the tape of the backward pass.
        calls: the copies of mean and variance as `Recorded`, once the private examples have passed.
    """

    jacobians: list = dataclasses.field(default_factory=list)
    tape: tf.GradientTape | None = None
    calls: list = dataclasses.field(default_factory=list)

    def of_rows(self, rows):
        copies = []
        for moment in (self.mean, self.variance):
            multiples = [rows] + [1] * (moment.shape.rank - 1)
            copy = tf.tile(tf.stop_gradient(moment), multiples)
            self.tape.watch(copy)
            copies.append(copy)
        self.calls = [Recorded(copy, {}) for copy in copies]
        return copies

    def add_to(self, found: dict) -> None:
        """Adds the gradients through these moments to `found`, {id of variable: gradients}."""
        features = self.calls[0].output.shape[self.layer.axis]
        coefficients = tf.stack(
            [tf.reshape(call.gradient, [-1, features]) for call in self.calls], axis=1
        )
        for variable, jacobian in self.jacobians:
            found[id(variable)] = through_moments(found[id(variable)], jacobian, coefficients)


def watched(all_moments, calls, rules, variables, values, tape, tape_back) -> list:
    """Returns the moments that public examples left behind as `WatchedMoments`.

    Args:
        all_moments: list of `PublicMoments`.
        calls: (layer, output) for each call of a layer with a rule in the pass of the public examples.
        rules: {layer: rule}.
        variables, values: the trainable variables, and the tensors that replaced them in that pass.
        tape: the persistent tape that recorded that pass.
        tape_back: the tape that watches the copies.

    Raises:
        UnsupportedModelError: moments depend on weights in another way than through one Dense or
            convolutional layer directly before the normalization.
    """
    made = []
    for moments in all_moments:
        gradients = [
            tape.gradient(moment, values)  # sums over the features, which share no weight
            for moment in (moments.mean, moments.variance)
        ]
        reached = [i for i, pair in enumerate(zip(*gradients, strict=True)) if pair != (None, None)]
        before = [layer for layer, output in calls if output is moments.inputs]
        own = (
            rules[before[0]].variables()
            if before and _is_linear(before[0], moments, rules) and _once(before[0], calls)
            else []
        )
        own = {id(v) for v in own}
        if any(id(variables[i]) not in own for i in reached):
            raise UnsupportedModelError(
                f"The public moments of layer '{moments.layer.name}' (PublicBatchNormalization) "
                "depend on other weights than those of one Dense or convolutional layer without "
                "activation, directly before it and called once."
            )
        jacobians = [
            (
                variables[i],
                tf.stack(
                    [
                        tf.zeros(variables[i].shape) if g[i] is None else tf.cast(g[i], tf.float32)
                        for g in gradients
                    ]
                ),
            )
            for i in reached
        ]
        fields = {f.name: getattr(moments, f.name) for f in dataclasses.fields(PublicMoments)}
        made.append(WatchedMoments(**fields, jacobians=jacobians, tape=tape_back))
    return made


def _is_linear(layer, moments, rules):
    """Whether feature c of the layer's output is linear in the weights [..., c], and in no others."""
    if type(rules[layer]) not in (DenseRule, ConvRule):
        return False
    rank = moments.inputs.shape.rank
    features = 1 if getattr(layer, "data_format", None) == "channels_first" else rank - 1
    plain = layer.activation is None or layer.activation.__name__ == "linear"
    return plain and moments.layer.axis % rank == features


def _once(layer, calls):
    """Whether a layer was called once: what a second use gives depends on all weights of the first."""
    return [called for called, _ in calls].count(layer) == 1


def through_moments(base, jacobian, coefficients) -> PerExampleGradient:
    """Adds `sum_k coefficients[i, k, c] * jacobian[k, ..., c]` to the gradient of each row i.

    Args:
        base: the gradients without this term, from `DenseRule` or `ConvRule`.
        jacobian: float32 [k, *shape of the variable], features last.
        coefficients: float32 [rows, k, features].
    """
    shape = jacobian.shape[1:]
    flat = tf.reshape(jacobian, [jacobian.shape[0], -1, shape[-1]])
    # With unit vectors, no square of a coefficient vanishes beside the square of a large number.
    flat, lengths = _units(flat)
    coefficients *= lengths
    added = _ThroughMoments(base, flat, coefficients, shape)
    if isinstance(base, OuterProducts) and not instantiates(*base.left.shape, shape[-1]):
        return added
    return added.instantiated()


def _units(vectors):
    """Divides [k, p, c] by the L2 norms along p; returns (quotients, norms [k, c]).

    A zero vector stays zero; it occurs because a variance does not depend on the bias before it.
    """
    largest = tf.reduce_max(tf.abs(vectors), axis=1, keepdims=True)
    vectors = tf.math.divide_no_nan(vectors, largest)  # the largest entry is 1, or all are 0
    norms = tf.norm(vectors, axis=1, keepdims=True)
    return tf.math.divide_no_nan(vectors, norms), (largest * norms)[:, 0]


def _einsum(equation, a, b):
    return float32_products.product(functools.partial(tf.einsum, equation), a, b)


class _ThroughMoments(PerExampleGradient):
    """What `through_moments` returns for outer products, without writing gradients out."""

    def __init__(self, base: OuterProducts, jacobian, coefficients, shape):
        self.base, self.jacobian, self.coefficients = base, jacobian, coefficients
        self.shape = shape

    def instantiated(self):
        base = self.base.instantiated()
        rows = tf.vectorized_map(base.finish, base.values, fallback_to_while_loop=False)
        rows = tf.reshape(rows, [-1, *self.jacobian.shape[1:]])
        rows += tf.einsum("nkc,kpc->npc", self.coefficients, self.jacobian)
        return Instantiated(rows, Arranged(tuple(self.shape)))

    def square_norms(self):
        direct = self.base.square_norms()
        gram = _einsum("kpc,lpc->klc", self.jacobian, self.jacobian)
        through = _einsum("nkc,klc->nlc", self.coefficients, gram)
        added = tf.maximum(tf.reduce_sum(through * self.coefficients, axis=[1, 2]), 0.0)
        seen = _einsum("ntp,kpc->nktc", self.base.left, self.jacobian)
        products = _einsum("nktc,ntc->nkc", seen, self.base.right)
        cross = tf.reduce_sum(products * self.coefficients, axis=[1, 2])
        # As for Gram matrices, rounding must not understate a norm where the two terms nearly cancel.
        largest = tf.square(tf.sqrt(direct) + tf.sqrt(added))
        terms = self.base.left.shape[2] + self.base.right.shape[2]
        return strict(direct + 2.0 * cross + added, largest, terms, None)

    def weighted_sum(self, weights):
        totals = _einsum("n,nkc->kc", weights, self.coefficients)
        added = _einsum("kc,kpc->pc", totals, self.jacobian)
        return self.base.weighted_sum(weights) + tf.reshape(added, self.shape)

    def factors(self):
        return [*self.base.factors(), self.coefficients]

    def kept_factors(self, keep):
        return [*self.base.kept_factors(keep), zero_rows(self.coefficients, keep)]

    def with_factors(self, factors):
        *factors, coefficients = factors
        base = self.base.with_factors(factors)
        return _ThroughMoments(base, self.jacobian, coefficients, self.shape)

    def grouped(self, size):
        coefficients = tf.reshape(self.coefficients, [-1, size, *self.coefficients.shape[1:]])
        return _ThroughMoments(
            self.base.grouped(size), self.jacobian, tf.reduce_sum(coefficients, axis=1), self.shape
        )
