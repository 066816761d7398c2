"""Warns where nothing will be learned: gradients far above the clip norm, or far below it.

Before the first step, only public facts count: types of inputs, layers, and class weights. At the end
of the first epoch, norms of gradients without noise do, too. Those warnings are for the person who
trains, like the loss in the progress bar.
"""

from collections.abc import Mapping

import keras
import tensorflow as tf
from absl import logging

from tfdp._compat.keras import is_graph_of_layers, layers_of, uses_of
from tfdp.training.data_checks import with_inputs
from tfdp.training.feed import Feed

# Layers that take the scale of their inputs as it is, and those whose gradients grow with it.
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
# Norms are far from the clip norm by this factor, and large above that number, which unscaled columns
# exceed; a small clip norm that most gradients exceed is a usual choice.
_FAR, _LARGE_NORM = 100, 1000


def warn_of_scales(model: keras.Model, feed: Feed, class_weight: Mapping | None) -> None:
    """Warns of class weights and bytes that lead to clipped gradients, and of equal views.

    Args:
        model: a built model.
        feed: the data of the training.
        class_weight: as in `fit`.
    """
    largest = max((class_weight or {}).values(), default=0)
    if largest >= _LARGE_CLASS_WEIGHT:
        logging.warning(
            "class_weight is up to %g. A weight multiplies the gradients of its class before they are "
            "clipped, so beyond the clip norm it has no effect. Use weights of about 1.",
            largest,
        )
    if feed.lots is not None and feed.lots.augmentations > 1 and not feed.lots.mapped:
        logging.warning(
            "augmentations=%d, and no lots.map(f) makes the views, so they differ only where layers of "
            "the model draw random numbers.",
            feed.lots.augmentations,
        )
    assert feed.dataset is not None  # it is of a fit
    for name, layer in _unscaled_bytes(model, feed.dataset.element_spec):
        logging.warning(
            "Input '%s' has bytes, from 0 to 255, and layer '%s' takes them as they are. Gradients "
            "grow with inputs, so nearly all will be clipped, and little is learned. Put "
            "keras.layers.Rescaling(1 / 255) before it, or divide the inputs.",
            name,
            layer.name,
        )


def _unscaled_bytes(model, lots):
    """Pairs (name of an input of bytes, layer that multiplies it by weights)."""
    x, _, _ = keras.utils.unpack_x_y_sample_weight(lots)
    if not is_graph_of_layers(model) or not model.built:
        return []
    pairs = with_inputs(model, x)
    names = {
        id(each): each.name for each, spec in pairs if getattr(spec, "dtype", None) == tf.uint8
    }
    found = []
    for layer in layers_of(model) if names else ():
        for (given, *_), _ in filter(lambda use: use[0], uses_of(layer)):
            if id(given) in names and isinstance(layer, _KEEP):
                names[id(layer.output)] = names[id(given)]
            elif id(given) in names and isinstance(layer, _MULTIPLY):
                found.append((names[id(given)], layer))
    return found


class ScaleCheck(keras.callbacks.Callback):
    """Warns once, at the end of the first epoch of a fit, if gradients are far from the clip norm."""

    def __init__(self):
        super().__init__()
        self._warned = False

    def on_epoch_end(self, epoch, logs=None):
        optimizer = self.model.optimizer
        # Adaptive clipping follows the norms, and automatic clipping scales every gradient.
        if self._warned or optimizer.clipping in ("adaptive", "automatic"):
            return
        self._warned = True
        median = self.model.privacy.diagnostics()["median_gradient_norm"]
        clip = optimizer.l2_norm_clip
        if median > max(_FAR * clip, _LARGE_NORM):
            advice = (
                "Clipping leaves their directions only, which few large numbers decide. Scale inputs "
                "and targets to about 1 by public constants, and make losses means."
            )
        elif 0 < median < clip / _FAR:
            advice = (
                "The noise is made for gradients of the clip norm, so it drowns them. Take a smaller "
                "l2_norm_clip, from public data, or one that follows a noisy count, by "
                "clipping='adaptive'."
            )
        else:
            return
        logging.warning(
            "In the first epoch, gradients of single examples had a median norm of %.2g, and the clip "
            "norm is %.2g. %s (This figure comes from private examples without noise, as the loss "
            "does: it is for you, not for a release.)",
            *(median, clip, advice),
        )
