"""Layers with weights of their own, as vision models have them, have gradients in known forms."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tests.gradients.checking import check_engines, lot_for
from tfdp._compat.graphs import Dependence
from tfdp.gradients.uses import declaring, uses_of


class Tokens(layers.Layer):
    """Puts a class token before the patches and adds position embeddings, as ViT does."""

    def build(self, shape):
        self.token = self.add_weight(shape=(1, 1, shape[-1]))
        self.positions = self.add_weight(shape=(1, shape[1] + 1, shape[-1]))

    def call(self, x):
        token = ops.broadcast_to(self.token, (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([token, x], axis=1) + self.positions


class Windows(layers.Layer):
    """Attention in shifted windows of 2x2 with a table of relative positions, as Swin does."""

    def build(self, shape):
        self.mixed = layers.Dense(3 * shape[-1])
        self.mixed.build((None, 4, shape[-1]))
        self.table = self.add_weight(shape=(9, 2))
        places = np.stack(np.divmod(np.arange(4), 2), -1)
        self.offsets = ((places[:, None] - places[None]) + 1) @ [3, 1]

    def call(self, x):
        _, height, width, channels = x.shape
        x = ops.roll(x, (-1, -1), (1, 2))
        x = ops.reshape(x, (-1, height // 2, 2, width // 2, 2, channels))
        windows = ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, 4, channels))
        mixed = ops.reshape(self.mixed(windows), (-1, 4, 3, 2, channels // 2))
        query, key, value = ops.unstack(ops.transpose(mixed, (2, 0, 3, 1, 4)))
        scores = query @ ops.transpose(key, (0, 1, 3, 2))
        scores += ops.transpose(ops.take(self.table, self.offsets, axis=0), (2, 0, 1))
        windows = ops.transpose(ops.softmax(scores) @ value, (0, 2, 1, 3))
        x = ops.reshape(windows, (-1, height // 2, width // 2, 2, 2, channels))
        return ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, height, width, channels))


def vit(images):
    x = layers.Reshape((4, 6))(layers.Conv2D(6, 2, strides=2)(images))
    x = Tokens()(x)
    x = x + layers.MultiHeadAttention(2, 3)(*[layers.LayerNormalization()(x)] * 2)
    x = x + layers.Dense(6)(layers.Dense(8, activation="gelu")(layers.LayerNormalization()(x)))
    return x[:, 0]


def swin(images):
    x = layers.Conv2D(4, 1)(images)
    return layers.Flatten()(x + Windows()(layers.LayerNormalization()(x)))


def unknown_operations(model):
    """The operations for which no form of a weight's gradient is known."""
    forward, _, x, y, _ = lot_for(model, rows=1)
    found = []

    @tf.function(autograph=False)
    def row(x):  # an argument, so that it is known to depend on the row
        with declaring():
            reads = [tf.identity(variable) for variable in forward.variables]
            outputs, scope, _ = forward.outputs(reads, forward.state(), x)
            forward.loss(scope, x, y, outputs)
            uses = [use for read in reads for use in uses_of(read, Dependence())]
            found.extend(use.unknown for use in uses)
        return outputs

    row(x)
    return [operation.type for operation in found if operation is not None]


@pytest.mark.parametrize("network", [vit, pytest.param(swin, marks=pytest.mark.slow)])
def test_networks(network):
    images = keras.Input((4, 4, 3))
    model = keras.Model(images, layers.Dense(2)(network(images)))
    check_engines(model, engines=["ghost"])
    assert not unknown_operations(model)
