"""What bounds one example's influence on the sum of gradients.

A bound sees the squared L2 norm of each (example, variable) gradient and answers with a scale for
each; an engine multiplies and sums. It carries its own sensitivity, so that noise cannot be
calibrated to another constant than the one that was enforced.
"""

import dataclasses
import math

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class GlobalL2Clip:
    """Scales a gradient, over all variables as one vector, to L2 norm at most `l2_norm_clip`.

    Abadi et al. 2016, Algorithm 1; SI-DPSGD paper, Eq. 7. A gradient whose squared norm is not a
    finite float32 number (NaN, infinite, or so large that the square overflows) is scaled by zero:
    one such example would otherwise poison the sum, and skipping the step would tell that it
    is there.

    Args:
        l2_norm_clip: C > 0, in units of the gradient.
    """

    l2_norm_clip: float

    def __post_init__(self):
        if not (self.l2_norm_clip > 0 and math.isfinite(self.l2_norm_clip)):
            raise ValueError(
                "Invalid value received for argument `l2_norm_clip`. Expected a finite number > 0. "
                f"Received: {self.l2_norm_clip!r}"
            )

    def scales(self, square_norms: tf.Tensor) -> tf.Tensor:
        """Returns float32 [rows, variables]: what each gradient is multiplied with.

        Args:
            square_norms: float32 [rows, variables], squared L2 norms before bounding.
        """
        total = tf.reduce_sum(square_norms, axis=1, keepdims=True)
        # The floor keeps 0/0 out; its square root is far below any clip norm of use.
        scale = self.l2_norm_clip * tf.math.rsqrt(tf.maximum(total, 1e-30))
        scale = tf.where(tf.math.is_finite(total), tf.minimum(scale, 1.0), 0.0)
        return tf.broadcast_to(scale, tf.shape(square_norms))

    def sensitivity(self, microbatch_size: int = 1) -> float:
        """L2 distance by which the sum moves when one example becomes a null example.

        An example's own clipped gradient disappears: C. In a clipped *mean* of several examples,
        changing one moves the mean from one point of the C-ball to any other: 2C.
        """
        return self.l2_norm_clip * (1.0 if microbatch_size == 1 else 2.0)
