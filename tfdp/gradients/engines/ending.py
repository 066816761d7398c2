"""From per-example gradients to one bounded sum: the end that all engines share."""

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
    if bound.whole_gradients:
        gradients = [None if g is None else g.instantiated() for g in gradients]
    lot = _Lot(gradients, variables, bound, present, microbatch_size)
    quick_norms = lot.square_norms("quick_square_norms")
    if microbatch_size > 1:
        results = lot.careful(quick_norms)
    else:
        # Nearly every lot is finite, and then no row has to be taken out of large tensors.
        finite = tf.reduce_all(tf.math.is_finite(tf.add_n(quick_norms)))
        results = tf.cond(finite, lambda: lot.quick(quick_norms), lambda: lot.careful(quick_norms))
    sums, norms, clipped, non_finite = results
    return BoundedSum(
        sums=sums,
        norms=norms,
        present=lot.microbatches_present(),
        clipped=clipped,
        non_finite=non_finite,
        losses=losses,
        outputs=outputs,
        state=state,
        sensitivity=bound.sensitivity(microbatch_size),
        relative_sensitivity=bound.relative_sensitivity(microbatch_size),
        l2_norm_clip=bound.l2_norm_clip,
    )


@dataclasses.dataclass(frozen=True)
class _Lot:
    """What `bounded` works on; its results are (sums, norms, clipped, non_finite)."""

    gradients: list
    variables: list
    bound: L2Clip
    present: tf.Tensor
    microbatch_size: int

    def microbatches_present(self):
        """Bool [microbatches]: whether anybody is in them."""
        if self.microbatch_size == 1:
            return self.present
        return tf.reduce_any(tf.reshape(self.present, [-1, self.microbatch_size]), axis=1)

    def square_norms(self, method="square_norms"):
        """One tensor [rows] for each variable."""
        absent = tf.zeros(tf.shape(self.present))
        return [absent if g is None else getattr(g, method)() for g in self.gradients]

    def quick(self, row_norms):
        """Where no gradient has an entry that is not finite: a weight of zero takes a row out."""
        square_norms = tf.stack(row_norms, axis=1)
        square_norms = tf.where(self.present[:, tf.newaxis], square_norms, 0.0)
        return self._sums(self.gradients, square_norms, tf.constant(0))

    def careful(self, quick_norms):
        """Takes rows out that are absent or not finite, and adds up groups."""
        # A row's norm must not depend on other rows, not even in its rounding.
        row_norms = [
            tf.where(tf.math.is_finite(quick), quick, careful)
            for quick, careful in zip(quick_norms, self.square_norms(), strict=True)
        ]
        finite = tf.math.is_finite(tf.add_n(row_norms))
        # Multiplying a NaN by zero keeps it: take the row out before anything is summed.
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
        """Sums of gradients that are bounded written out, all variables of a row side by side."""
        present = tf.cast(self.microbatches_present(), tf.float32)
        sizes = [v.shape.num_elements() for v in self.variables]
        # The entries of a variable may be in any order here; `finish` puts their sums in place.
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
