"""Builds models that are not built, before the first step.

Keras makes the weights of such models when they see their first data. The private step checks layers
and weights before it is traced, so they must exist by then. Only shapes and dtypes of the data are
used, and these are public.
"""

import keras
import tensorflow as tf

from tfdp._compat.keras import build_symbolically, is_graph_of_layers, layers_of


def build_for(model, x) -> None:
    """Builds a model for a structure of arrays, tensors or `tf.TensorSpec`s [rows, ...].

    Keras' `build` would not do: for a subclass without its own, it leaves layers without weights.
    """
    if model.built and all(layer.built for layer in layers_of(model)):
        return
    with model.distribute_strategy.scope():
        build_symbolically(model, keras.tree.map_structure(_symbolic, x))


def outputs_for(model, x) -> list:
    """Returns the symbolic outputs of a model for a structure of arrays, and builds it if needed."""
    if model.built and is_graph_of_layers(model):
        return model.outputs
    rows = keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[:1], x)
    with model.distribute_strategy.scope():
        outputs = build_symbolically(model, keras.tree.map_structure(_symbolic, rows))
    return keras.tree.flatten(outputs)


def _symbolic(leaf):
    if leaf is None:
        return None
    if not isinstance(leaf, tf.TypeSpec):
        leaf = tf.convert_to_tensor(leaf)
    return keras.KerasTensor((None, *leaf.shape[1:]), leaf.dtype.name)
