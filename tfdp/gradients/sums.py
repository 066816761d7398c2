"""Adds the per-example gradients of a variable that a model uses several times.

The norm of a sum is not the sum of the norms, so the gradients are added before a norm is computed.
Factors of several uses stay factors: further positions of one sum of outer products, or further
look-ups of one table. `LookupsAndProducts` is for tied embeddings, which have both. Gradients that
cannot be kept as factors are written out and added entry by entry.

In all these forms, norm and weighted sum are computed from the same tensors, so the norm is that of the
summed gradient, even if terms of two uses cancel.
"""

import collections
import dataclasses
import functools

import tensorflow as tf

from tfdp._compat import float32_products
from tfdp.gradients.factors import (
    Arranged,
    Instantiated,
    Lookups,
    OuterProducts,
    PerExampleGradient,
    identity,
    in_layout_of_variable,
    keeps_order,
)
from tfdp.gradients.norms import VANISHING, gram, should_instantiate, with_rounding


def add_gradients(parts: list[PerExampleGradient]) -> PerExampleGradient:
    """Returns the sum of several per-example gradients of one variable, for the same rows.

    Args:
        parts: At least one gradient. Each is the contribution of one use of the variable.
    """
    terms = [part for part in parts if isinstance(part, MomentTerm)]
    if terms:
        whole = add_gradients([part for part in parts if part not in terms])
        return functools.reduce(lambda total, term: term.added_to(total), terms, whole)
    groups = collections.defaultdict(list)
    for part in parts:
        groups[_kind(part)].append(part)
    merged = [group[0] if len(group) == 1 else _merged(group) for group in groups.values()]
    if len(merged) == 1:
        return merged[0]
    if len(merged) == 2:
        lookups = [part for part in merged if isinstance(part, Lookups)]
        products = [part for part in merged if isinstance(part, OuterProducts)]
        if lookups and products and products[0].finish is identity:
            return LookupsAndProducts(lookups[0], products[0])
    return Instantiated(tf.add_n([in_layout_of_variable(part) for part in merged]))


def _kind(part) -> tuple:
    """Returns a key that is equal for gradients whose factors or entries have the same meaning."""
    if isinstance(part, Lookups):
        return Lookups, part.size
    if isinstance(part, OuterProducts):
        return OuterProducts, part.left.shape[2], part.right.shape[2], part.finish
    return Instantiated, tuple(part.values.shape[1:]), part.finish


def _merged(group):
    """Returns the sum of gradients of the same form, in that form."""
    first = group[0]
    if isinstance(first, Instantiated):
        return Instantiated(tf.add_n([part.values for part in group]), first.finish)
    sides = [tf.nest.flatten(part) for part in group]
    factors = [tf.concat(tensors, axis=1) for tensors in zip(*sides, strict=True)]
    return tf.nest.pack_sequence_as(first, factors)


@dataclasses.dataclass(frozen=True, eq=False)
class LookupsAndProducts(PerExampleGradient):
    """Gradients of a table that is used in both look-ups and products: a tied embedding.

    A look-up of row i is an outer product whose left factor is the unit vector of i. So the Gram
    matrices over all positions of both kinds give the norm. The left one's entry for a look-up and an
    output position is that of the output's left factor at the looked-up index. No gradient [table,
    width] of a row is written out.

    Args:
        lookups: `Lookups` of a table [size, width].
        products: `OuterProducts` [size] ⊗ [width].
    """

    lookups: Lookups
    products: OuterProducts

    def __tf_flatten__(self):
        return (), (self.lookups, self.products)

    def in_cheapest_form(self):
        counts = self.lookups.indices.shape[1], self.products.left.shape[1]
        positions = None if None in counts else sum(counts)
        rows, _, size = self.products.left.shape
        writes_out = should_instantiate(rows, positions, size, self.products.right.shape[2])
        return self.instantiated() if writes_out else self

    def instantiated(self):
        parts = (self.lookups, self.products)
        return Instantiated(tf.add_n([in_layout_of_variable(part) for part in parts]))

    def square_norms(self):
        left, right, vectors = self.products.left, self.products.right, self.lookups.vectors
        indices = tf.clip_by_value(self.lookups.indices, 0, self.lookups.size - 1)
        met = tf.gather(left, indices, axis=2, batch_dims=1)  # [rows, products, lookups]
        same = tf.equal(indices[:, :, tf.newaxis], indices[:, tf.newaxis])
        among_products = gram(left) * gram(right)
        multiply = functools.partial(tf.matmul, transpose_b=True)
        between = met * float32_products.product(multiply, right, vectors)
        # `tf.where`, because products of vectors at different indices need not be finite.
        among_lookups = tf.where(same, gram(vectors), 0.0)
        square = tf.add_n(
            [
                tf.reduce_sum(among_products, axis=[1, 2]),
                2.0 * tf.reduce_sum(between, axis=[1, 2]),
                tf.reduce_sum(among_lookups, axis=[1, 2]),
            ]
        )
        # As in `OuterProducts`, rounding must not understate a norm where terms nearly cancel.
        largest = tf.add_n(
            [
                tf.reduce_sum(tf.sqrt(_squares(left) * _squares(right)), axis=1),
                tf.reduce_sum(tf.sqrt(_squares(vectors)), axis=1),
            ]
        )
        square = with_rounding(square, tf.square(largest), left.shape[2] + right.shape[2], None)
        return tf.where(self.lookups.misses(), float("nan"), square)

    def weighted_sum(self, weights):
        return self.lookups.weighted_sum(weights) + self.products.weighted_sum(weights)

    def grouped(self, size):
        return LookupsAndProducts(self.lookups.grouped(size), self.products.grouped(size))


def _squares(factor):
    return tf.reduce_sum(tf.square(factor), axis=2) + VANISHING


class MomentTerm:
    """The part of gradients that flows through the moments of public examples.

    It is `sum_k coefficients[i, k, c] * jacobian[k, ..., c]` for row i, where k = 0, 1 stands for mean
    and variance; see `engines.public_moments`.

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
    """Divides [k, p, c] by the L2 norms along p, and returns (quotients, norms [k, c]).

    A zero vector stays zero. It occurs because a variance does not depend on the bias before it.
    """
    largest = tf.reduce_max(tf.abs(vectors), axis=1, keepdims=True)
    vectors = tf.math.divide_no_nan(vectors, largest)  # the largest entry is 1, or all are 0
    norms = tf.norm(vectors, axis=1, keepdims=True)
    return tf.math.divide_no_nan(vectors, norms), (largest * norms)[:, 0]


def _einsum(equation, a, b):
    return float32_products.product(functools.partial(tf.einsum, equation), a, b)


@dataclasses.dataclass(frozen=True, eq=False)
class ThroughMoments(PerExampleGradient):
    """The sum of outer products and a `MomentTerm`, without writing gradients out.

    Args:
        base: The outer products, whose `finish` keeps the order of entries.
        coefficients, jacobian, shape: As in `MomentTerm`, with the jacobian [k, entries, features].
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
        return with_rounding(direct + 2.0 * cross + added, largest, terms, None)

    def weighted_sum(self, weights):
        totals = _einsum("n,nkc->kc", weights, self.coefficients)
        added = _einsum("kc,kpc->pc", totals, self.jacobian)
        return self.base.weighted_sum(weights) + tf.reshape(added, self.shape)

    def grouped(self, size):
        coefficients = tf.reshape(self.coefficients, [-1, size, *self.coefficients.shape[1:]])
        coefficients = tf.reduce_sum(coefficients, axis=1)
        return ThroughMoments(self.base.grouped(size), coefficients, self.jacobian, self.shape)
