"""The contract between engines, lots and optimizers: the arguments and the result of an engine.

Formal guarantee of every engine: `BoundedSum.sums` moves by at most `relative_sensitivity` clip norms
in L2 norm when one example becomes a null example, which has weight zero and adds nothing.

This holds because, except in the lotwise engine, which gives its own reason, `sums` is a sum of
vectors, one for each example (microbatch) of the lot. Each vector depends on its example (microbatch)
alone, and has L2 norm at most the bound's clip norm times sqrt(clip_groups). So removing an example
moves the sum by at most that; in a microbatch of several examples, the vector may move across its ball,
by twice that. This holds in exact arithmetic; `lot` makes room for the rounding of float32.

An example may have several rows, its *views*: augmented copies (De et al. 2022, "Unlocking
High-Accuracy Differentially Private Image Classification through Scale"), or the records of a person.
They are consecutive rows of the lot, and their mean gradient is the example's vector. It depends on
this example alone, however many rows differ, so the guarantee is the same.
"""

import dataclasses
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from tfdp._compat.keras import get_keras_mask, set_keras_mask
from tfdp.gradients.bounds import L2Clip
from tfdp.gradients.forward import Forward


class Outputs(NamedTuple):
    """A model's outputs with their Keras masks, as one structure of tensors.

    Keras stores a mask as an attribute of its tensor, which TensorFlow's operations and functions drop.

    Attributes:
        values: The outputs, a structure of tensors [rows, ...].
        masks: Bool [rows, ...], the masks of the outputs that have one, keyed by the output's index
            among the leaves of `values`.
    """

    values: Any
    masks: dict[int, tf.Tensor]

    @classmethod
    def of(cls, y_pred) -> "Outputs":
        """Returns the outputs `y_pred` of a model with their masks."""
        masks = map(get_keras_mask, tf.nest.flatten(y_pred))
        return cls(y_pred, {place: mask for place, mask in enumerate(masks) if mask is not None})

    def masked(self):
        """Returns `values` with the masks set as attributes, as a model returns its outputs."""
        leaves = tf.nest.flatten(self.values)
        for place, mask in self.masks.items():
            set_keras_mask(leaves[place], mask)
        return self.values


@dataclasses.dataclass(frozen=True)
class BoundedSum:
    """The sum of bounded gradients of a chunk or a lot, with its sensitivity: the result of an engine.

    Attributes:
        sums: The sums of the bounded gradients, one float32 tensor for each trainable variable.
        norms: L2 norms of the gradients before bounding, float32 [microbatches]. 0 where no example
            is present with a finite gradient.
        present: Whether some example of a microbatch has a weight, bool [microbatches]. For several
            examples, also False if the squared norm of their mean is not finite.
        clipped: 1 where the bound shortened the gradient, float32 [microbatches].
        non_finite: Number of examples with a row that counts as zero because its gradient is not
            finite, an int32 scalar.
        losses: Unweighted per-example losses, float32 [rows].
        output_losses: The loss of each output without loss weights, float32 [rows, outputs], or
            [rows, 0] for a model with one loss.
        outputs: The model's `Outputs` for the rows. An empty tuple if `observe` received them.
        state: New values of the random state, as `Forward.advance` takes them.
        l2_norm_clip: The clip norm that was enforced; the noise is a multiple of it. A Python
            float, or a scalar tensor for adaptive clipping.
        relative_sensitivity: The sensitivity in units of the clip norm, always a Python float.
            `Session.check_sensitivity` compares it with that of the accounting.

    `tf.nest` treats it as a structure of all fields but the last two.
    """

    sums: list
    norms: tf.Tensor
    present: tf.Tensor
    clipped: tf.Tensor
    non_finite: tf.Tensor
    losses: tf.Tensor
    output_losses: tf.Tensor
    outputs: Outputs | tuple
    state: list
    l2_norm_clip: float
    relative_sensitivity: float

    def __tf_flatten__(self):
        *tensors, clip, sensitivity = (getattr(self, f.name) for f in dataclasses.fields(self))
        return (clip, sensitivity), tuple(tensors)

    @classmethod
    def __tf_unflatten__(cls, numbers, tensors):
        return cls(*tensors, *numbers)


class Engine(Protocol):
    """A function that turns the rows of one chunk into a bounded sum."""

    def __call__(
        self,
        forward: Forward,
        bound: L2Clip,
        x: Any,
        y: Any,
        sample_weight: tf.Tensor,
        first: int | tf.Tensor,
        microbatch_size: int = 1,
        views: int = 1,
    ) -> BoundedSum:
        """Bounds and sums the gradients of the rows of a chunk.

        Args:
            forward: The model's pure forward pass.
            bound: The limit of one example's influence.
            x, y: Structures of tensors [rows, ...]. The number of rows is a multiple of
                microbatch_size * views.
            sample_weight: Weights, float32 [rows]. Rows of weight zero are absent.
            first: Place of the first row in its lot, an int32 scalar. A row's random numbers
                depend on its place.
            microbatch_size: Number of examples whose mean gradient is bounded together.
            views: Number of consecutive rows of each example.
        """
