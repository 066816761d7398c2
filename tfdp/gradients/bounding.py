"""From per-example gradients to one bounded sum: the end that all engines share."""

import tensorflow as tf

from tfdp.gradients.bounds import L2Clip
from tfdp.gradients.engine import BoundedSum


def bounded(
    gradients: list,
    variables: list,
    bound: L2Clip,
    sample_weight: tf.Tensor,
    microbatch_size: int,
    *,
    losses: tf.Tensor,
    outputs,
    state: list,
) -> BoundedSum:
    """Takes absent and broken rows out, bounds what is left and adds it up.

    Args:
        gradients: for each variable a `rules.PerExampleGradient` of the weighted losses, or None
            where it is zero.
        variables: the trainable variables, in the same order.
        bound: what limits an example's influence.
        sample_weight: float32 [rows]; rows of weight zero are absent.
        microbatch_size: examples whose mean gradient is bounded together.
        losses, outputs, state: passed on; see `BoundedSum`.
    """
    present = tf.not_equal(sample_weight, 0.0)
    absent = tf.zeros_like(sample_weight)
    row_norms = [absent if g is None else g.square_norms() for g in gradients]
    finite = tf.math.is_finite(tf.add_n(row_norms))
    # Multiplying a NaN by zero keeps it: take the row out before anything is summed.
    keep = finite & present
    gradients = [None if g is None else g.kept(keep) for g in gradients]
    group_present = present
    square_norms = tf.stack([tf.where(keep, n, 0.0) for n in row_norms], axis=1)
    if microbatch_size > 1:
        gradients = [None if g is None else g.grouped(microbatch_size) for g in gradients]
        group_present = tf.reduce_any(tf.reshape(present, [-1, microbatch_size]), axis=1)
        absent = tf.zeros_like(group_present, tf.float32)
        group_norms = [absent if g is None else g.square_norms() for g in gradients]
        square_norms = tf.stack(group_norms, axis=1) / microbatch_size**2
    scales = bound.scales(square_norms)
    sums = [
        tf.zeros(v.shape) if g is None else g.weighted_sum(scales[:, i] / microbatch_size)
        for i, (v, g) in enumerate(zip(variables, gradients, strict=True))
    ]
    return BoundedSum(
        sums=sums,
        norms=tf.sqrt(tf.reduce_sum(square_norms, axis=1)),
        present=group_present,
        clipped=tf.cast(tf.reduce_any(scales < 1.0, axis=1) & group_present, tf.float32),
        non_finite=tf.reduce_sum(tf.cast(present & ~finite, tf.int32)),
        losses=losses,
        outputs=outputs,
        state=state,
        sensitivity=bound.sensitivity(microbatch_size),
        l2_norm_clip=bound.l2_norm_clip,
    )
