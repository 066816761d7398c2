"""Builds a model whose weights are made when it sees its first data, as Keras does, before any step.

The private step checks layers and weights before it is traced, so they have to exist by then. Only
shapes and dtypes of the data are used, and these are public.
"""

import keras
import tensorflow as tf

from tfdp._compat.keras import build_symbolically, is_graph_of_layers, layers_of


def build_for(model, x) -> None:
    """Builds a model for a structure of arrays, tensors or `tf.TensorSpec`s [rows, ...].

    `build` of a subclass without a method of that name leaves its layers without weights.
    """
    if model.built and all(layer.built for layer in layers_of(model)):
        return
    with model.distribute_strategy.scope():
        build_symbolically(model, keras.tree.map_structure(_symbolic, x))


def outputs_for(model, x) -> list:
    """The symbolic outputs of a model for a structure of arrays; it is built if it was not."""
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
