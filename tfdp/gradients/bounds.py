"""Bounds on one example's influence on the sum of gradients.

A bound receives the squared L2 norm of each example's gradient in each layer, and returns a scale for
each. An engine multiplies the gradients by the scales and adds them. A bound on single entries receives
the gradients themselves instead. Each bound states its own sensitivity, so that noise cannot be
calibrated to another constant than the enforced one.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import tensorflow as tf

from tfdp._validate import one_of, positive


@dataclasses.dataclass(frozen=True)
class L2Clip:
    """Base class of the bounds, which clip a gradient in `clip_groups` groups of variables, each at C.

    All groups together form one vector of L2 norm at most C sqrt(clip_groups).

    Args:
        l2_norm_clip: The clip norm C > 0, in units of the gradient. For adaptive clipping a public
            float32 scalar tensor, which is known only while a step runs.
    """

    # Whether the bound works on whole gradients (by `bounded`) instead of their norms (by `scales`).
    whole_gradients: ClassVar[bool] = False

    l2_norm_clip: float
    # The number of each variable's layer. Empty if all variables are clipped as one.
    layers: tuple[int, ...] = dataclasses.field(default=(), init=False)
    # Factor of bounded gradients in the sum, slightly below 1 to leave room for rounding.
    room: float = dataclasses.field(default=1.0, kw_only=True)

    @property
    def clip_groups(self) -> int:
        """Number of groups of variables that are clipped separately, each at C.

        `Contribution.clip_groups` records it for the accounting.
        """
        return 1

    def relative_sensitivity(self, microbatch_size: int = 1) -> float:
        """Returns the largest L2 distance by which the sum moves if an example becomes a null example.

        It is in units of the clip norm, which may be known only while a step runs. The example's own
        clipped gradient disappears, which moves the sum by at most 1. With a clipped *mean* of several
        examples, changing one example may move the mean from any point of the ball to any other, by at
        most 2. Both numbers are multiplied by sqrt(clip_groups).

        Args:
            microbatch_size: Number of examples whose mean gradient is bounded together.
        """
        return math.sqrt(self.clip_groups) * (1.0 if microbatch_size == 1 else 2.0)

    def scales(self, square_norms: tf.Tensor) -> tf.Tensor:
        """Returns the factor by which each gradient is multiplied, float32 [rows, layers].

        Args:
            square_norms: Squared L2 norms before bounding, float32 [rows, layers].
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class GlobalL2Clip(L2Clip):
    """Scales a gradient, over all variables as one vector, to L2 norm at most `l2_norm_clip`.

    Abadi et al. 2016, Algorithm 1; SI-DPSGD paper, Eq. 7. A gradient whose squared norm is not a
    finite float32 number (NaN, infinite, or so large that the square overflows) is scaled by zero.
    One such example would otherwise make the whole sum NaN or infinite, and skipping the step would
    reveal that the example is there.
    """

    def scales(self, square_norms: tf.Tensor) -> tf.Tensor:
        total = tf.reduce_sum(square_norms, axis=1, keepdims=True)
        # The floor avoids 0/0; its square root is far below any useful clip norm.
        scale = self.l2_norm_clip * tf.math.rsqrt(tf.maximum(total, 1e-30))
        scale = tf.where(tf.math.is_finite(total), tf.minimum(scale, 1.0), 0.0)
        return tf.broadcast_to(scale, tf.shape(square_norms))


@dataclasses.dataclass(frozen=True)
class PerLayerL2Clip(L2Clip):
    """Scales the gradient of each of G layers to L2 norm at most C / sqrt(G).

    McMahan et al. 2018, section 3.1 ("flat" versus "per-layer" clipping). Clipping every layer at C
    would have sensitivity C sqrt(G); with C / sqrt(G) for each, the whole vector stays within C.

    Args:
        l2_norm_clip: C > 0, for all layers together.
        layers: The number of each variable's layer, from 0 to G - 1.
    """

    layers: tuple[int, ...] = ()

    def scales(self, square_norms: tf.Tensor) -> tf.Tensor:
        # All layers together are within C sqrt(clip_groups).
        clip = self.l2_norm_clip * math.sqrt(self.clip_groups / (max(self.layers) + 1))
        scale = tf.minimum(clip * tf.math.rsqrt(tf.maximum(square_norms, 1e-30)), 1.0)
        finite = tf.reduce_all(tf.math.is_finite(square_norms), axis=1, keepdims=True)
        return tf.where(finite, scale, 0.0)


@dataclasses.dataclass(frozen=True)
class EachLayerL2Clip(PerLayerL2Clip):
    """Scales the gradient of each of G layers to L2 norm at most C, not C / sqrt(G).

    "We clip the gradient norm of each layer at C" (the differentially private dropout paper, section
    5). The noise is a multiple of C, but the sensitivity is C sqrt(G): as a multiple of the
    sensitivity, the noise is smaller by sqrt(G). `clip_groups` records this for the accounting.
    """

    @property
    def clip_groups(self) -> int:
        return max(self.layers, default=0) + 1


@dataclasses.dataclass(frozen=True)
class AutomaticClip(L2Clip):
    """Normalizes every gradient: multiplies it by C / (norm + stability).

    Bu et al. 2022, "Automatic clipping" (AUTO-S): the norm afterwards is always below C, and only the
    product of C and the learning rate matters, so there is no clip norm to tune.

    Args:
        l2_norm_clip: C > 0.
    """

    stability: ClassVar[float] = 0.01  # limits the scale of vanishing gradients

    def scales(self, square_norms: tf.Tensor) -> tf.Tensor:
        total = tf.reduce_sum(square_norms, axis=1, keepdims=True)
        scale = self.l2_norm_clip / (tf.sqrt(total) + self.stability)
        scale = tf.where(tf.math.is_finite(total), scale, 0.0)
        return tf.broadcast_to(scale, tf.shape(square_norms))


CLIPPINGS = ("global", "per_layer", "each_layer", "automatic", "adaptive")


def make_bound(clipping: str, l2_norm_clip: float | tf.Tensor, paths: Sequence[str]) -> L2Clip:
    """Returns the bound of a given name for some variables.

    Args:
        clipping: A name in `CLIPPINGS`.
        l2_norm_clip: The clip norm C > 0. A scalar tensor for "adaptive" only.
        paths: Keras paths of the variables. Variables with a common parent path belong to one
            layer.

    Raises:
        ValueError: If the clipping is unknown, or the clip norm is not a finite number above 0.
    """
    one_of("clipping", clipping, CLIPPINGS)
    if not tf.is_tensor(l2_norm_clip):
        positive("l2_norm_clip", l2_norm_clip)
    if clipping in ("global", "adaptive"):
        return GlobalL2Clip(l2_norm_clip)
    if clipping == "automatic":
        return AutomaticClip(l2_norm_clip)
    layers = list(dict.fromkeys(path.rpartition("/")[0] for path in paths))
    numbers = tuple(layers.index(path.rpartition("/")[0]) for path in paths)
    return {"per_layer": PerLayerL2Clip, "each_layer": EachLayerL2Clip}[clipping](
        l2_norm_clip, numbers
    )
