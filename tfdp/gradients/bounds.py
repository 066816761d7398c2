"""What bounds one example's influence on the sum of gradients.

A bound sees the squared L2 norm of each (example, variable) gradient and answers with a scale for
each; an engine multiplies and sums. A bound on single entries gets gradients written out instead. Each
carries its own sensitivity, so that noise cannot be calibrated to another constant than the one
that was enforced.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import tensorflow as tf

from tfdp._validate import one_of, positive
from tfdp.gradients.encoding import Encoder


@dataclasses.dataclass(frozen=True)
class L2Clip:
    """What all bounds share: a gradient is clipped in `clip_groups` groups of variables, each at C.

    The groups together are one vector of L2 norm at most C sqrt(clip_groups).

    Args:
        l2_norm_clip: C > 0, in units of the gradient.
    """

    # Whether the bound takes gradients written out (`bounded`) in place of their norms (`scales`).
    whole_gradients: ClassVar[bool] = False

    l2_norm_clip: float

    def __post_init__(self):
        positive("l2_norm_clip", self.l2_norm_clip)

    @property
    def clip_groups(self) -> int:
        """Groups of variables that are clipped at C each; as in `accounting.Run`."""
        return 1

    def sensitivity(self, microbatch_size: int = 1) -> float:
        """L2 distance by which the sum moves when one example becomes a null example.

        An example's own clipped gradient disappears: C (times the root of the number of groups). In
        a clipped *mean* of several examples, changing one moves the mean from one point of the
        C-ball to any other: 2C.
        """
        return self.l2_norm_clip * self.relative_sensitivity(microbatch_size)

    def relative_sensitivity(self, microbatch_size: int = 1) -> float:
        """`sensitivity` in units of the clip norm, which may be known only while a step runs."""
        return math.sqrt(self.clip_groups) * (1.0 if microbatch_size == 1 else 2.0)

    def scales(self, square_norms: tf.Tensor) -> tf.Tensor:
        """Returns float32 [rows, variables]: what each gradient is multiplied with.

        Args:
            square_norms: float32 [rows, variables], squared L2 norms before bounding.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class GlobalL2Clip(L2Clip):
    """Scales a gradient, over all variables as one vector, to L2 norm at most `l2_norm_clip`.

    Abadi et al. 2016, Algorithm 1; SI-DPSGD paper, Eq. 7. A gradient whose squared norm is not a
    finite float32 number (NaN, infinite, or so large that the square overflows) is scaled by zero:
    one such example would otherwise poison the sum, and skipping the step would tell that it
    is there.
    """

    def scales(self, square_norms: tf.Tensor) -> tf.Tensor:
        total = tf.reduce_sum(square_norms, axis=1, keepdims=True)
        # The floor keeps 0/0 out; its square root is far below any clip norm of use.
        scale = self.l2_norm_clip * tf.math.rsqrt(tf.maximum(total, 1e-30))
        scale = tf.where(tf.math.is_finite(total), tf.minimum(scale, 1.0), 0.0)
        return tf.broadcast_to(scale, tf.shape(square_norms))


@dataclasses.dataclass(frozen=True)
class PerLayerL2Clip(L2Clip):
    """Scales the gradient of each of G layers to L2 norm at most C / sqrt(G).

    McMahan et al. 2018, section 3.1 ("flat" against "per-layer" clipping). Clipping every layer at C
    would have sensitivity C sqrt(G); the share keeps the whole vector within C.

    Args:
        l2_norm_clip: C > 0, of all layers together.
        layers: for each variable the number of its layer, from 0 to G - 1.
    """

    layers: tuple[int, ...] = ()

    def _clip_of_a_layer(self) -> float:
        return self.l2_norm_clip / math.sqrt(max(self.layers) + 1)

    def scales(self, square_norms: tf.Tensor) -> tf.Tensor:
        members = tf.one_hot(self.layers, max(self.layers) + 1)  # [variables, layers]
        # Where, not a product: 0 * inf would be NaN.
        by_layer = tf.reduce_sum(tf.where(members > 0, square_norms[:, :, tf.newaxis], 0.0), axis=1)
        clip = self._clip_of_a_layer()
        scale = tf.minimum(clip * tf.math.rsqrt(tf.maximum(by_layer, 1e-30)), 1.0)
        finite = tf.reduce_all(tf.math.is_finite(square_norms), axis=1, keepdims=True)
        return tf.where(finite, tf.gather(scale, self.layers, axis=1), 0.0)


@dataclasses.dataclass(frozen=True)
class EachLayerL2Clip(PerLayerL2Clip):
    """Scales the gradient of each of G layers to L2 norm at most C, not C / sqrt(G).

    "We clip the gradient norm of each layer at C" (the differentially private dropout paper, section
    5). Noise is a multiple of C, so its multiple of the sensitivity is smaller by sqrt(G);
    `clip_groups` tells the accounting.
    """

    @property
    def clip_groups(self) -> int:
        return max(self.layers, default=0) + 1

    def _clip_of_a_layer(self) -> float:
        return self.l2_norm_clip


@dataclasses.dataclass(frozen=True)
class AdaptiveL2Clip(GlobalL2Clip):
    """`GlobalL2Clip` whose clip norm is known only while the step runs.

    Args:
        l2_norm_clip: float32 scalar tensor, C_t > 0: public, as it was computed from private releases.
    """

    l2_norm_clip: tf.Tensor

    def __post_init__(self):
        # A tensor may have no value yet; who moves C_t keeps it finite and above 0.
        if not tf.is_tensor(self.l2_norm_clip):
            super().__post_init__()


@dataclasses.dataclass(frozen=True)
class AutomaticClip(L2Clip):
    """Normalizes every gradient: multiplies it with C / (norm + stability).

    Bu et al. 2022, "Automatic clipping" (AUTO-S): the norm afterwards is always below C, and only the
    product of C and the learning rate matters, so there is no clip norm to tune.

    Args:
        l2_norm_clip: C > 0.
        stability: gamma > 0: what keeps vanishing gradients from being blown up.
    """

    stability: float = 0.01

    def scales(self, square_norms: tf.Tensor) -> tf.Tensor:
        total = tf.reduce_sum(square_norms, axis=1, keepdims=True)
        scale = self.l2_norm_clip / (tf.sqrt(total) + self.stability)
        scale = tf.where(tf.math.is_finite(total), scale, 0.0)
        return tf.broadcast_to(scale, tf.shape(square_norms))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedBound(L2Clip):
    """Encodes every gradient, so that its entries are bounded one by one (`mechanisms.encoding`).

    It has to see whole gradients: all variables of an example as one vector.

    Args:
        l2_norm_clip: C > 0, which the norm of an encoded gradient does not exceed.
        encoder: with vectors as long as the variables together, at the same C.
    """

    whole_gradients: ClassVar[bool] = True
    encoder: Encoder

    def __post_init__(self):
        super().__post_init__()
        if self.encoder.l2_norm_clip != self.l2_norm_clip:
            raise ValueError(
                "Expected an encoder for the clip norm that is declared, "
                f"{self.l2_norm_clip!r}. Received one for {self.encoder.l2_norm_clip!r}."
            )

    def bounded(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns float32 [rows, weights]: the gradients, bounded.

        Args:
            rows: float32 [rows, weights], finite.
        """
        return self.encoder.encode(rows)


CLIPPINGS = ("global", "per_layer", "each_layer", "automatic", "adaptive")


def make_bound(clipping: str, l2_norm_clip: float | tf.Tensor, paths: Sequence[str]) -> L2Clip:
    """The bound of the given name for the variables with the given paths.

    Args:
        clipping: a name in `CLIPPINGS`.
        l2_norm_clip: C > 0; a scalar tensor for "adaptive" only.
        paths: Keras paths of the variables; those with a common parent belong to one layer.

    Raises:
        ValueError: no such clipping.
    """
    one_of("clipping", clipping, CLIPPINGS)
    if clipping == "global":
        return GlobalL2Clip(l2_norm_clip)
    if clipping == "automatic":
        return AutomaticClip(l2_norm_clip)
    if clipping == "adaptive":
        return AdaptiveL2Clip(l2_norm_clip)
    layers = list(dict.fromkeys(path.rpartition("/")[0] for path in paths))
    numbers = tuple(layers.index(path.rpartition("/")[0]) for path in paths)
    return {"per_layer": PerLayerL2Clip, "each_layer": EachLayerL2Clip}[clipping](
        l2_norm_clip, numbers
    )
