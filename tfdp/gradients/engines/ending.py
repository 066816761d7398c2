"""Turns per-example gradients into one bounded sum: the last part of all engines."""

import dataclasses

import tensorflow as tf

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
        gradients: for each variable a `rules.PerExampleGradient` of the weighted losses, or None
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
    rows = _Rows(gradients, variables, bound, present, microbatch_size)
    quick_norms = rows.square_norms("quick_square_norms")
    if microbatch_size > 1:
        results = rows.careful(quick_norms)
    else:
        # Nearly every lot is finite. No row then has to be removed from large tensors.
        finite = tf.reduce_all(tf.math.is_finite(tf.add_n(quick_norms)))
        results = tf.cond(
            finite, lambda: rows.quick(quick_norms), lambda: rows.careful(quick_norms)
        )
    sums, norms, clipped, non_finite = results
    return BoundedSum(
        sums=sums,
        norms=norms,
        present=rows.microbatches_present(),
        clipped=clipped,
        non_finite=non_finite,
        losses=losses,
        output_losses=output_losses,
        outputs=outputs,
        state=state,
        sensitivity=bound.sensitivity(microbatch_size),
        relative_sensitivity=bound.relative_sensitivity(microbatch_size),
        l2_norm_clip=bound.l2_norm_clip,
    )


@dataclasses.dataclass(frozen=True)
class _Rows:
    """The rows that `bounded` works on.

    `quick` and `careful` return (sums, norms, clipped, non_finite), as in `BoundedSum`.

    Attributes:
        gradients, variables, bound, microbatch_size: as in `bounded`.
        present: bool [rows]: whether a row is an example instead of padding.
    """

    gradients: list
    variables: list
    bound: L2Clip
    present: tf.Tensor
    microbatch_size: int

    def microbatches_present(self):
        """Returns bool [microbatches]: whether some example of the microbatch is present."""
        if self.microbatch_size == 1:
            return self.present
        return tf.reduce_any(tf.reshape(self.present, [-1, self.microbatch_size]), axis=1)

    def square_norms(self, method="square_norms"):
        """Returns squared norms, one tensor [rows] for each variable, by a method of the gradients."""
        absent = tf.zeros(tf.shape(self.present))
        return [absent if g is None else getattr(g, method)() for g in self.gradients]

    def quick(self, row_norms):
        """Bounds and sums if all gradients are finite. A weight of zero then removes a row."""
        square_norms = tf.stack(row_norms, axis=1)
        square_norms = tf.where(self.present[:, tf.newaxis], square_norms, 0.0)
        return self._sums(self.gradients, square_norms, tf.constant(0))

    def careful(self, quick_norms):
        """Removes rows that are absent or not finite, then bounds and sums by microbatches."""
        # A row's norm must not depend on other rows, not even in its rounding. So each row whose quick
        # norm is finite keeps that norm.
        row_norms = [
            tf.where(tf.math.is_finite(quick), quick, careful)
            for quick, careful in zip(quick_norms, self.square_norms(), strict=True)
        ]
        finite = tf.math.is_finite(tf.add_n(row_norms))
        # 0 * NaN is NaN, so a weight of zero does not remove a row that is not finite. Such rows are
        # set to zero before anything is summed.
        keep = finite & self.present
        gradients = [None if g is None else g.kept(keep) for g in self.gradients]
        square_norms = tf.stack([tf.where(keep, n, 0.0) for n in row_norms], axis=1)
        size = self.microbatch_size
        if size > 1:
            gradients = [None if g is None else g.grouped(size) for g in gradients]
            absent = tf.zeros_like(self.microbatches_present(), tf.float32)
            group_norms = [absent if g is None else g.square_norms() for g in gradients]
            square_norms = tf.stack(group_norms, axis=1) / size**2
        non_finite = tf.reduce_sum(tf.cast(self.present & ~finite, tf.int32))
        return self._sums(gradients, square_norms, non_finite)

    def _sums(self, gradients, square_norms, non_finite):
        present = self.microbatches_present()
        norms = tf.sqrt(tf.reduce_sum(square_norms, axis=1))
        if self.bound.whole_gradients:
            sums, shortened = self._sums_of_whole(gradients, norms)
            return sums, norms, tf.cast(shortened & present, tf.float32), non_finite
        scales = self.bound.scales(square_norms)
        scales = tf.where(present[:, tf.newaxis], scales, 0.0)
        weights = scales / self.microbatch_size if self.microbatch_size > 1 else scales
        weights = tf.unstack(weights, num=len(gradients), axis=1)
        sums = [
            tf.zeros(v.shape) if g is None else g.weighted_sum(w)
            for v, g, w in zip(self.variables, gradients, weights, strict=True)
        ]
        clipped = tf.reduce_any(scales < 1.0, axis=1) & present
        return sums, norms, tf.cast(clipped, tf.float32), non_finite

    def _sums_of_whole(self, gradients, norms):
        """Bounds and sums whole gradients, with all variables of a row side by side.

        Returns:
            (sums; bool [microbatches]: whether the bound shortened the gradient).
        """
        present = tf.cast(self.microbatches_present(), tf.float32)
        sizes = [v.shape.num_elements() for v in self.variables]
        # The entries of a variable may be in any order here; `finish` puts their sums in order.
        parts = [
            tf.zeros([tf.size(present), size]) if g is None else tf.reshape(g.values, [-1, size])
            for size, g in zip(sizes, gradients, strict=True)
        ]
        rows = tf.concat(parts, axis=1)
        if self.microbatch_size > 1:
            rows /= self.microbatch_size
        rows = self.bound.bounded(rows)
        shortened = tf.norm(rows, axis=1) < norms * (1 - 1e-5)
        totals = tf.split(tf.linalg.matvec(rows, present, transpose_a=True), sizes)
        sums = [
            tf.reshape(total, v.shape)
            if g is None
            else g.finish(tf.reshape(total, g.values.shape[1:]))
            for total, g, v in zip(totals, gradients, self.variables, strict=True)
        ]
        return sums, shortened
