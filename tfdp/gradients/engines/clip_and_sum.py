"""Turns per-example gradients into one bounded sum: the last step of all engines."""

import collections
import dataclasses

import tensorflow as tf

from tfdp._compat.float32_products import weighted_sum
from tfdp.gradients.bounds import L2Clip
from tfdp.gradients.contract import BoundedSum
from tfdp.gradients.factors import Instantiated, PerExampleGradient, zero_rows

_SMALL = 2**12  # entries up to which written-out gradients are concatenated


def clip_and_sum(
    gradients: list,
    variables: list,
    bound: L2Clip,
    sample_weight: tf.Tensor,
    microbatch_size: int,
    views: int,
    *,
    losses: tf.Tensor,
    output_losses: tf.Tensor,
    outputs,
    state: list,
) -> BoundedSum:
    """Removes rows that are absent or not finite, bounds the other gradients and sums them.

    Args:
        gradients: A `factors.PerExampleGradient` of the weighted losses for each variable, or None if
            it is zero.
        variables: The trainable variables, in the same order.
        bound: The limit of one example's influence.
        sample_weight: Weights, float32 [rows]. Rows of weight zero are absent.
        microbatch_size, views: As in `contract.Engine`.
        losses, output_losses, outputs, state: Fields of the result; see `BoundedSum`.
    """
    averaged = microbatch_size * views
    present = tf.not_equal(sample_weight, 0.0)
    parts = _parts(gradients, bound)
    square_norms = _square_norms(parts, bound, sample_weight)
    finite = tf.math.is_finite(tf.reduce_sum(square_norms, axis=1))
    keep = finite & present
    square_norms = tf.where(keep[:, tf.newaxis], square_norms, 0.0)
    if averaged > 1:
        parts = [
            dataclasses.replace(part, gradient=part.gradient.grouped(averaged).in_cheapest_form())
            for part in _kept(parts, keep)
        ]
        any_present = _any_of(present, averaged)
        square_norms = _square_norms(parts, bound, any_present) / averaged**2
        # The squares of a sum may overflow where those of its rows do not.
        exists = tf.math.is_finite(tf.reduce_sum(square_norms, axis=1))
        square_norms = tf.where(exists[:, tf.newaxis], square_norms, 0.0)
        any_present &= exists
        finite &= tf.repeat(exists, averaged)
    else:
        # Nearly every lot is finite. A weight of zero then removes an absent row, and no large tensor
        # has to be written.
        parts = _kept(parts, keep, unless=tf.reduce_all(finite))
        any_present = present
    sums, norms, clipped = _sums(parts, variables, bound, square_norms, any_present, averaged)
    return BoundedSum(
        sums=sums,
        norms=norms,
        present=any_present,
        clipped=clipped,
        non_finite=tf.reduce_sum(tf.cast(_any_of(present & ~finite, views), tf.int32)),
        losses=losses,
        output_losses=output_losses,
        outputs=outputs,
        state=state,
        l2_norm_clip=bound.l2_norm_clip,
        relative_sensitivity=bound.relative_sensitivity(microbatch_size),
    )


def _any_of(rows, size):
    """Returns whether one of `size` consecutive rows is True, bool [rows / size]."""
    return tf.reduce_any(tf.reshape(rows, [-1, size]), axis=1) if size > 1 else rows


@dataclasses.dataclass(frozen=True)
class _Part:
    """The gradients of one variable, or the concatenated gradients of several small variables.

    Attributes:
        gradient: The gradients of all its variables.
        layer: Number of the variables' layer in the bound.
        places: The indices of its variables.
        own: The gradients of each variable, if there are several.
    """

    gradient: PerExampleGradient
    layer: int
    places: list[int]
    own: list[Instantiated] = dataclasses.field(default_factory=list)

    def sums(self, weights) -> dict[int, tf.Tensor]:
        """Returns the weighted sum of the rows for each variable, by its number."""
        total = self.gradient.weighted_sum(weights)
        if not self.own:
            return {self.places[0]: total}
        shapes = [own.values.shape[1:] for own in self.own]
        totals = tf.split(total, [shape.num_elements() for shape in shapes])
        totals = map(tf.reshape, totals, shapes)
        finished = [own.finish(part) for own, part in zip(self.own, totals, strict=True)]
        return dict(zip(self.places, finished, strict=True))


def _parts(gradients, bound) -> list[_Part]:
    """Concatenates small gradients that are written out, because a network has many of them."""
    if bound.whole_gradients:
        gradients = [None if g is None else g.instantiated() for g in gradients]
    layers = bound.layers or [0] * len(gradients)
    parts = []
    small: dict[int, dict[int, Instantiated]] = collections.defaultdict(dict)  # by layer and place
    for place, (gradient, layer) in enumerate(zip(gradients, layers, strict=True)):
        if gradient is None:
            continue
        is_written_out = isinstance(gradient, Instantiated) and not bound.whole_gradients
        if is_written_out and gradient.values.shape[1:].num_elements() <= _SMALL:
            small[layer][place] = gradient
        else:
            parts.append(_Part(gradient.in_cheapest_form(), layer, [place]))
    for layer, found in small.items():
        places, own = [*found], [*found.values()]
        if len(own) == 1:
            parts.append(_Part(own[0], layer, places))
        else:
            side_by_side = Instantiated(tf.concat([g.flat() for g in own], axis=1))
            parts.append(_Part(side_by_side, layer, places, own))
    return parts


def _square_norms(parts, bound, rows):
    """Returns float32 [rows, layers of the bound]; `rows` is any tensor [rows]."""
    by_layer = [[] for _ in range(max(bound.layers, default=0) + 1)]
    for part in parts:
        by_layer[part.layer].append(part.gradient.square_norms())
    absent = tf.zeros(tf.shape(rows))
    return tf.stack([tf.add_n(own) if own else absent for own in by_layer], axis=1)


def _kept(parts, keep, unless=False):
    """Sets rows to zero where `keep` (bool [rows]) is False.

    Args:
        parts: As from `_parts`.
        keep: Bool [rows].
        unless: A bool or a scalar tensor. If it is True, nothing is done.
    """
    gradients = [part.gradient for part in parts]
    found = (
        zero_rows(gradients, keep)
        if unless is False
        else tf.cond(unless, lambda: gradients, lambda: zero_rows(gradients, keep))
    )
    return [dataclasses.replace(part, gradient=own) for part, own in zip(parts, found, strict=True)]


def _sums(parts, variables, bound, square_norms, present, averaged):
    """Bounds the gradients of rows, or the means of several, and sums them.

    Args:
        parts: From `_parts`; all gradients are finite.
        variables, bound: As in `clip_and_sum`.
        square_norms: float32 [rows, layers].
        present: Bool [rows]: which of them count.
        averaged: Number of original rows whose sum each row is. Their mean is bounded.

    Returns:
        (sums, norms, clipped), as in `BoundedSum`.
    """
    norms = tf.sqrt(tf.reduce_sum(square_norms, axis=1))
    if bound.whole_gradients:
        sums, shortened = _sums_of_whole(parts, variables, bound, norms, present, averaged)
        return sums, norms, tf.cast(shortened & present, tf.float32)
    scales = bound.scales(square_norms)
    scales = tf.where(present[:, tf.newaxis], scales, 0.0)
    weights = scales * (bound.room / averaged)
    weights = tf.unstack(weights, num=max(bound.layers, default=0) + 1, axis=1)
    sums = {}
    for part in parts:
        sums |= part.sums(weights[part.layer])
    sums = [sums[k] if k in sums else tf.zeros(v.shape) for k, v in enumerate(variables)]
    clipped = tf.reduce_any(scales < 1.0, axis=1) & present
    return sums, norms, tf.cast(clipped, tf.float32)


def _sums_of_whole(parts, variables, bound, norms, present, averaged):
    """Bounds and sums whole gradients, with all variables of a row concatenated.

    Returns:
        The sums, and whether the bound shortened each gradient, bool [rows].
    """
    present = tf.cast(present, tf.float32) * bound.room
    sizes = [v.shape.num_elements() for v in variables]
    known = {place: part.gradient for part in parts for place in part.places}
    gradients = [known.get(place) for place in range(len(variables))]
    # The entries of a variable may be in any order here; `finish` puts their sums in order.
    rows = [
        tf.zeros([tf.size(present), size]) if g is None else tf.reshape(g.values, [-1, size])
        for size, g in zip(sizes, gradients, strict=True)
    ]
    rows = tf.concat(rows, axis=1)
    if averaged > 1:
        rows /= averaged
    rows = bound.bounded(rows)
    shortened = tf.norm(rows, axis=1) < norms * (1 - 1e-5)
    totals = tf.split(weighted_sum(present, rows), sizes)
    sums = [
        tf.reshape(total, v.shape) if g is None else g.finish(tf.reshape(total, g.values.shape[1:]))
        for total, g, v in zip(totals, gradients, variables, strict=True)
    ]
    return sums, shortened
