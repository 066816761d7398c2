"""What every engine gets and returns: the contract between engines, lots and optimizers.

Formal guarantee, for every engine: `BoundedSum.sums` is the sum over the examples of a lot of vectors
that depend on one example (microbatch) each and have L2 norm at most the bound's clip norm, so that
it moves by at most `BoundedSum.sensitivity` when one example becomes a null example.
"""

import dataclasses
from typing import Any, Protocol

import tensorflow as tf

from tfdp.gradients.bounds import L2Clip
from tfdp.gradients.forward import Forward


@dataclasses.dataclass(frozen=True)
class BoundedSum:
    """What an engine returns for a chunk, and `bounded_sum` for a lot.

    Attributes:
        sums: float32 tensors, one per trainable variable: the sum of the bounded gradients.
        norms: float32 [microbatches]: gradient norms before bounding (0 where nobody is present).
        present: bool [microbatches].
        clipped: float32 [microbatches]: 1 where the bound shortened the gradient.
        non_finite: int32 scalar: examples that counted zero because their gradient was not finite.
        losses: float32 [rows]: per-example losses, not weighted.
        outputs: what the model returned for the rows.
        state: new values of the random state, as `Forward.advance` takes them.
        sensitivity: see the module; a Python float, or a scalar tensor where the clip norm is one.
        l2_norm_clip: the clip norm that was enforced; noise is a multiple of it.
        relative_sensitivity: the sensitivity in units of the clip norm, always a Python float: what the
            accounting is compared with.
    """

    sums: list
    norms: tf.Tensor
    present: tf.Tensor
    clipped: tf.Tensor
    non_finite: tf.Tensor
    losses: tf.Tensor
    outputs: Any
    state: list
    sensitivity: float
    l2_norm_clip: float
    relative_sensitivity: float


class Engine(Protocol):
    """Turns the rows of one chunk into a bounded sum."""

    def __call__(
        self,
        forward: Forward,
        bound: L2Clip,
        x: Any,
        y: Any,
        sample_weight: tf.Tensor,
        chunk: tf.Tensor,
        microbatch_size: int = 1,
    ) -> BoundedSum:
        """Bounds and sums the gradients of the rows of a chunk.

        Args:
            forward: the model's pure forward pass.
            bound: what limits an example's influence.
            x, y: structures of tensors with a common leading dimension.
            sample_weight: float32 [rows]; rows of weight zero are absent.
            chunk: int32 scalar that tells the chunks of one lot apart.
            microbatch_size: examples whose mean gradient is bounded together.
        """


def needs_whole_lots(engine: Engine) -> bool:
    """Whether chunks of a lot would have statistics of their own, so that it has to stay whole."""
    return getattr(engine, "needs_whole_lots", False)
