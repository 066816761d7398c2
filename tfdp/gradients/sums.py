"""Adds the per-example gradients of a variable that a model uses several times.

The norm of a sum is not the sum of the norms, so the uses become one gradient before anything is
measured. Factors of several uses stay factors: they are further positions of one sum of outer products,
or further look-ups of one table. A tied embedding has both kinds, for which there is
`LookupsAndProducts`. Whatever cannot be kept as factors is written out and added entry by entry.

In all these forms, norm and weighted sum are computed from the same tensors, so terms of two uses that
cancel are bounded as they are added.
"""

import collections
import dataclasses
import functools

import tensorflow as tf

from tfdp._compat import float32_products
from tfdp.gradients.factors import (
    Instantiated,
    Lookups,
    OuterProducts,
    PerExampleGradient,
    identity,
    in_layout_of_variable,
)
from tfdp.gradients.moment_terms import MomentTerm
from tfdp.gradients.norms import VANISHING, gram, instantiates, strict


def added(parts: list[PerExampleGradient]) -> PerExampleGradient:
    """Returns the sum of several per-example gradients of one variable, for the same rows.

    Args:
        parts: at least one; each describes what one use of the variable contributes.
    """
    terms = [part for part in parts if isinstance(part, MomentTerm)]
    if terms:
        whole = added([part for part in parts if part not in terms])
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
    """What gradients have in common if their factors or entries have the same meaning."""
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
    """Gradients of a table that was looked up in and multiplied by: a tied embedding.

    A look-up of row i is an outer product whose left factor is the unit vector of i. So the Gram
    matrices over all positions of both kinds give the norm. The left one has, between a look-up and an
    output position, the entry of the output's left factor at the looked-up index. No gradient
    [table, width] of a row is written out.

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
        writes_out = instantiates(rows, positions, size, self.products.right.shape[2])
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
        # `tf.where`, because the vectors at other indices need not be finite together.
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
        square = strict(square, tf.square(largest), left.shape[2] + right.shape[2], None)
        return tf.where(self.lookups.misses(), float("nan"), square)

    def weighted_sum(self, weights):
        return self.lookups.weighted_sum(weights) + self.products.weighted_sum(weights)

    def grouped(self, size):
        return LookupsAndProducts(self.lookups.grouped(size), self.products.grouped(size))


def _squares(factor):
    return tf.reduce_sum(tf.square(factor), axis=2) + VANISHING
