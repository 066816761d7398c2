"""Turns per-example gradients into one bounded sum: the last part of all engines."""

import tensorflow as tf

from tfdp._compat.float32_products import weighted_sum
from tfdp.gradients.bounds import L2Clip
from tfdp.gradients.contract import BoundedSum


def bounded(
    gradients: list,
    variables: list,
    bound: L2Clip,
    sample_weight: tf.Tensor,
    microbatch_size: int,
    *,
    losses: tf.Tensor,
    output_losses: tf.Tensor,
    outputs,
    state: list,
) -> BoundedSum:
    """Removes rows that are absent or not finite, bounds the other gradients and sums them.

    Args:
        gradients: for each variable a `factors.PerExampleGradient` of the weighted losses, or None
            where it is zero.
        variables: the trainable variables, in the same order.
        bound: the limit of one example's influence.
        sample_weight: float32 [rows]; rows of weight zero are absent.
        microbatch_size: number of examples whose mean gradient is bounded together.
        losses, output_losses, outputs, state: become fields of the result; see `BoundedSum`.
    """
    present = tf.not_equal(sample_weight, 0.0)
    if bound.whole_gradients:
        gradients = [None if g is None else g.instantiated() for g in gradients]
    square_norms = _square_norms(gradients, sample_weight)
    finite = tf.math.is_finite(tf.reduce_sum(square_norms, axis=1))
    keep = finite & present
    square_norms = tf.where(keep[:, tf.newaxis], square_norms, 0.0)
    if microbatch_size > 1:
        gradients = _kept(gradients, keep)
        gradients = [None if g is None else g.grouped(microbatch_size) for g in gradients]
        any_present = tf.reduce_any(tf.reshape(present, [-1, microbatch_size]), axis=1)
        square_norms = _square_norms(gradients, any_present) / microbatch_size**2
        # The squares of a sum may overflow where those of its rows do not.
        exists = tf.math.is_finite(tf.reduce_sum(square_norms, axis=1))
        square_norms = tf.where(exists[:, tf.newaxis], square_norms, 0.0)
        any_present &= exists
        finite &= tf.repeat(exists, microbatch_size)
    else:
        # Nearly every lot is finite. A weight of zero then removes an absent row, and nothing has to be
        # written to large tensors.
        gradients = _kept(gradients, keep, unless=tf.reduce_all(finite))
        any_present = present
    sums, norms, clipped = _sums(
        gradients, variables, bound, square_norms, any_present, microbatch_size
    )
    return BoundedSum(
        sums=sums,
        norms=norms,
        present=any_present,
        clipped=clipped,
        non_finite=tf.reduce_sum(tf.cast(present & ~finite, tf.int32)),
        losses=losses,
        output_losses=output_losses,
        outputs=outputs,
        state=state,
        sensitivity=bound.sensitivity(microbatch_size),
        relative_sensitivity=bound.relative_sensitivity(microbatch_size),
        l2_norm_clip=bound.l2_norm_clip,
    )


def _square_norms(gradients, rows):
    """Returns float32 [rows, variables]; `rows` is any tensor [rows]."""
    absent = tf.zeros(tf.shape(rows))
    return tf.stack([absent if g is None else g.square_norms() for g in gradients], axis=1)


def _kept(gradients, keep, unless=False):
    """Sets rows to zero where `keep` (bool [rows]) is False.

    Args:
        gradients: as in `bounded`.
        keep: bool [rows].
        unless: if True, nothing is done; a bool, or a scalar tensor.
    """
    parts = [[] if g is None else g.factors() for g in gradients]

    def cleared():
        return [[] if g is None else g.kept_factors(keep) for g in gradients]

    parts = cleared() if unless is False else tf.cond(unless, lambda: parts, cleared)
    return [
        None if g is None else g.with_factors(factors)
        for g, factors in zip(gradients, parts, strict=True)
    ]


def _sums(gradients, variables, bound, square_norms, present, microbatch_size):
    """Bounds the gradients of rows, or of microbatches, and sums them.

    Args:
        gradients, variables, bound, microbatch_size: as in `bounded`; all gradients are finite.
        square_norms: float32 [rows, variables].
        present: bool [rows]: which of them count.

    Returns:
        (sums, norms, clipped), as in `BoundedSum`.
    """
    norms = tf.sqrt(tf.reduce_sum(square_norms, axis=1))
    if bound.whole_gradients:
        sums, shortened = _sums_of_whole(
            gradients, variables, bound, norms, present, microbatch_size
        )
        return sums, norms, tf.cast(shortened & present, tf.float32)
    scales = bound.scales(square_norms)
    scales = tf.where(present[:, tf.newaxis], scales, 0.0)
    weights = scales / microbatch_size if microbatch_size > 1 else scales
    weights = tf.unstack(weights, num=len(gradients), axis=1)
    sums = [
        tf.zeros(v.shape) if g is None else g.weighted_sum(w)
        for v, g, w in zip(variables, gradients, weights, strict=True)
    ]
    clipped = tf.reduce_any(scales < 1.0, axis=1) & present
    return sums, norms, tf.cast(clipped, tf.float32)


def _sums_of_whole(gradients, variables, bound, norms, present, microbatch_size):
    """Bounds and sums whole gradients, with all variables of a row side by side.

    Returns:
        (sums; bool [rows]: whether the bound shortened the gradient).
    """
    present = tf.cast(present, tf.float32)
    sizes = [v.shape.num_elements() for v in variables]
    # The entries of a variable may be in any order here; `finish` puts their sums in order.
    parts = [
        tf.zeros([tf.size(present), size]) if g is None else tf.reshape(g.values, [-1, size])
        for size, g in zip(sizes, gradients, strict=True)
    ]
    rows = tf.concat(parts, axis=1)
    if microbatch_size > 1:
        rows /= microbatch_size
    rows = bound.bounded(rows)
    shortened = tf.norm(rows, axis=1) < norms * (1 - 1e-5)
    totals = tf.split(weighted_sum(present, rows), sizes)
    sums = [
        tf.reshape(total, v.shape) if g is None else g.finish(tf.reshape(total, g.values.shape[1:]))
        for total, g, v in zip(totals, gradients, variables, strict=True)
    ]
    return sums, shortened
