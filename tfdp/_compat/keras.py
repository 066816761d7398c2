"""What is borrowed of Keras: names that are not public, each under one name here."""

from keras.src.backend.common.stateless_scope import in_stateless_scope as in_stateless_scope
from keras.src.layers.convolutional.base_conv import BaseConv as BaseConv
from keras.src.losses.losses import LossFunctionWrapper as LossFunctionWrapper
from keras.src.models.functional import Functional as Functional
from keras.src.trainers.compile_utils import CompileLoss as CompileLoss


def layers_of(layer, *, itself: bool = False) -> list:
    """All layers inside a layer or model, nested ones too, each once.

    Args:
        layer: a Keras layer or model.
        itself: whether `layer` is the first of them.
    """
    return list(layer._flatten_layers(include_self=itself, recursive=True))
