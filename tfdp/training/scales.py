"""Warns if little will be learned, because gradients are far from the clip norm, or not finite.

Before the first step, warnings use public facts only: types of inputs, layers and class weights. Later
warnings use norms of gradients without noise. Like the loss in the progress bar, they are for the
person who trains.
"""

from collections.abc import Mapping

import keras
import tensorflow as tf
from absl import logging

from tfdp._compat.keras import layers_of
from tfdp.training.data_checks import inputs_of, sources_of
from tfdp.training.feed import Feed

# Layers that keep the scale of their inputs, and layers whose gradients grow with it.
_KEEP = (
    keras.layers.Flatten,
    keras.layers.Reshape,
    keras.layers.Permute,
    keras.layers.ZeroPadding2D,
    keras.layers.MaxPooling2D,
    keras.layers.AveragePooling2D,
    keras.layers.GlobalAveragePooling2D,
)
_MULTIPLY = (
    keras.layers.Dense,
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
    keras.layers.DepthwiseConv2D,
    keras.layers.SeparableConv2D,
)
_LARGE_CLASS_WEIGHT = 100
# A norm is far from the clip norm if it differs by this factor, and large above this number, which
# unscaled columns exceed. A small clip norm alone is no reason for a warning: it is a usual choice.
_FAR, _LARGE_NORM = 100, 1000


def warn_of_scales(model, feed: Feed, class_weight: Mapping | None) -> None:
    """Warns of large class weights and inputs of bytes, whose gradients are clipped, and equal views.

    Args:
        model: A built model.
        feed: The data of the training.
        class_weight: As in `fit`.
    """
    largest = max((class_weight or {}).values(), default=0)
    if largest >= _LARGE_CLASS_WEIGHT:
        logging.warning(
            "class_weight is up to %g. A weight multiplies the gradients of its class before they are "
            "clipped, so it has no effect beyond the clip norm. Use smaller weights.",
            largest,
        )
    if feed.lots is not None and feed.lots.augmentations > 1 and not feed.lots.mapped:
        logging.warning(
            "augmentations=%d was set without lots.map(f), which makes the views. So the views of an "
            "example are equal, unless layers of the model draw random numbers. Add lots.map(f).",
            feed.lots.augmentations,
        )
    specs = keras.tree.flatten(feed.inputs)
    if any(getattr(spec, "dtype", None) == tf.uint8 for spec in specs):
        _warn_of_bytes(model, feed.inputs)


def _warn_of_bytes(model, x):
    """Warns of each layer that multiplies an input of bytes by weights."""
    inputs = inputs_of(model, x).items()
    given = {i for i, spec in inputs if getattr(spec, "dtype", None) == tf.uint8}
    for layer in layers_of(model) if given else ():
        takes_bytes = not given.isdisjoint(sources_of(layer))
        if takes_bytes and isinstance(layer, _KEEP):
            given.add(id(layer.output))
        elif takes_bytes and isinstance(layer, _MULTIPLY):
            logging.warning(
                "Layer '%s' gets bytes, from 0 to 255, without scaling. Gradients grow with inputs, so "
                "nearly all will be clipped, and little is learned. Put "
                "keras.layers.Rescaling(1 / 255) before it, or divide the inputs.",
                layer.name,
            )


def warn_of_norms(model) -> None:
    """Warns if the gradients of an epoch were far from the clip norm."""
    optimizer = model.optimizer
    # Adaptive clipping follows the norms, and automatic clipping scales every gradient.
    if optimizer.clipping in ("adaptive", "automatic"):
        return
    median, clip = model.privacy.diagnostics()["median_gradient_norm"], optimizer.l2_norm_clip
    if median > max(_FAR * clip, _LARGE_NORM):
        advice = (
            "Clipping leaves only their directions, which a few large numbers dominate. Scale inputs "
            "and targets to about 1 by public constants, and use means rather than sums as losses."
        )
    elif 0 < median < clip / _FAR:
        advice = (
            "The noise fits gradients of the clip norm, so it drowns these. Scale inputs to about 1 by "
            "public constants first: large ones, such as pixels up to 255, saturate activations, and "
            "gradients vanish. If they are scaled, use a smaller l2_norm_clip, chosen on public data, "
            "or clipping='adaptive', where it follows a noisy count."
        )
    else:
        return
    logging.warning(
        "In the first epoch, gradients of single examples had a median norm of %.2g, but the clip norm "
        "is %.2g. %s (This figure comes from private examples without noise, as the loss does: it is "
        "for you, not for a release.)",
        *(median, clip, advice),
    )


def warn_of_lost_examples(model) -> None:
    """Warns if gradients were not finite, at the end of a training."""
    lost = model.privacy.diagnostics()["non_finite_examples"]
    if lost:
        logging.warning(
            "On average, %.3g examples of a lot had a gradient that is not finite, and counted zero in "
            "the sum. Usual causes are NaN in the data, a label without an output, a token without a "
            "vector, and a logarithm or quotient of 0. They make the loss in the logs NaN, but the "
            "weights are finite.",
            lost,
        )
