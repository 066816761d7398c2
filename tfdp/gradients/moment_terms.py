"""The part of per-example gradients that flows through moments of public examples.

It is `sum_k coefficients[i, k, c] * jacobian[k, ..., c]` for row i, where k counts mean and variance:
see `engines.public_moments`.
"""

import dataclasses
import functools

import tensorflow as tf

from tfdp._compat import float32_products
from tfdp.gradients.factors import (
    Arranged,
    Instantiated,
    OuterProducts,
    PerExampleGradient,
    in_layout_of_variable,
    keeps_order,
)
from tfdp.gradients.norms import strict


class MomentTerm:
    """Such a part, without the gradients that it is added to.

    Args:
        jacobian: float32 [k, *shape of the variable], features last.
        coefficients: float32 [rows, k, features].
    """

    def __init__(self, jacobian, coefficients):
        self.shape = jacobian.shape[1:]
        flat = tf.reshape(jacobian, [jacobian.shape[0], -1, self.shape[-1]])
        # With unit vectors, no square of a coefficient vanishes beside the square of a large number.
        self.jacobian, lengths = _units(flat)
        self.coefficients = coefficients * lengths

    def added_to(self, base: PerExampleGradient) -> PerExampleGradient:
        """Returns the sum with other gradients of the same rows and variable."""
        if isinstance(base, OuterProducts) and keeps_order(base.finish):
            return ThroughMoments(base, self.coefficients, self.jacobian, self.shape)
        return _written_out(base, self)


def _written_out(base, term):
    rows = tf.reshape(in_layout_of_variable(base), [-1, *term.jacobian.shape[1:]])
    rows += tf.einsum("nkc,kpc->npc", term.coefficients, term.jacobian)
    return Instantiated(rows, Arranged(tuple(term.shape)))


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


@dataclasses.dataclass(frozen=True, eq=False)
class ThroughMoments(PerExampleGradient):
    """The sum with outer products, without writing gradients out.

    Args:
        base: the outer products; their `finish` keeps the order of entries.
        coefficients, jacobian, shape: as in `MomentTerm`, with the jacobian [k, entries, features].
    """

    base: OuterProducts
    coefficients: tf.Tensor
    jacobian: tf.Tensor
    shape: tf.TensorShape

    def __tf_flatten__(self):
        return (self.jacobian, self.shape), (self.base, self.coefficients)

    def in_cheapest_form(self):
        base = self.base.in_cheapest_form()
        return self if base is self.base else _written_out(base, self)

    def instantiated(self):
        return _written_out(self.base, self)

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

    def grouped(self, size):
        coefficients = tf.reshape(self.coefficients, [-1, size, *self.coefficients.shape[1:]])
        coefficients = tf.reduce_sum(coefficients, axis=1)
        return ThroughMoments(self.base.grouped(size), coefficients, self.jacobian, self.shape)
