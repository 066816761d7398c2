"""Layers that the tests of TensorFlow Privacy and Opacus list, each as in a batch of one.

The cases are those of tensorflow/privacy at commit 03035d5d, `fast_gradient_clipping/
registry_functions/*_test.py`, and of pytorch/opacus at commit 4d0ebc84, `grad_samples/*_test.py`, which
our other tests do not have. A model has many of them side by side, so that it is
traced once.
"""

import keras
import pytest
from keras import layers

from tests.gradients.reference import check_model

# einsum_dense_test.py, get_einsum_parameter_tuples: equation, shape of an input and of an output, axes
# of the bias.
EINSUMS = [
    ("abc,cd->abd", (2, 3), (2, 4), "b"),
    ("abc,cd->abd", (2, 3), (2, 4), "bd"),
    ("abc,cef->abef", (2, 3), (2, 4, 5), "bf"),
    ("...b,bc->...c", (2, 3), (4,), "c"),
    ("...abc,cd->...abd", (2, 3, 4), (2, 3, 5), "bd"),
    ("...abc,cef->...abef", (2, 3, 4), (2, 3, 5, 6), "bf"),
    ("ab...,bc->ac...", (2, 3), (4, 3), "c"),
    ("abc...,cd->abd...", (2, 3, 4), (2, 5, 4), "bd"),
    ("abc...,cef->abef...", (2, 3, 4), (2, 5, 6, 4), None),
]


def side_by_side(branches):
    """Returns a model of (layers, shape of an input), each with an input of its own."""
    inputs, outputs = [], []
    for made, shape in branches:
        x = keras.Input(shape)
        inputs.append(x)
        for layer in made:
            x = layer(x)
        outputs.append(layers.Flatten()(x))
    return keras.Model(inputs, layers.Concatenate()(outputs))


@pytest.mark.slow
def test_einsum_dense_with_every_equation():
    branches = [
        ([layers.EinsumDense(equation, output, bias_axes=bias, activation="sigmoid")], shape)
        for equation, shape, output, bias in EINSUMS
    ]
    check_model(side_by_side(branches), rows=3)


@pytest.mark.slow
def test_normalizations_over_any_axes():
    """layer_normalization_test.py, group_norm_test.py, instance_norm_test.py, rms_norm_test.py."""
    axes = [((3, 4), [1, 2]), ((3, 4, 5), [1]), ((3, 4, 5), [1, 3]), ((3, 5), [-2, -1])]
    branches = [([layers.LayerNormalization(axis=axis)], shape) for shape, axis in axes]
    branches += [([layers.GroupNormalization(n)], (5, 4, 4)) for n in (1, 2, -1)]
    branches.append(([layers.RMSNormalization()], (4, 5)))
    check_model(side_by_side(branches), rows=4)


class SequenceBias(layers.Layer):
    """Opacus' dp_layers: one more, trained, entry at the end of a sequence."""

    def build(self, shape):
        self.bias = self.add_weight(shape=(1, 1, shape[-1]), initializer="normal")

    def call(self, x):
        last = keras.ops.broadcast_to(self.bias, (keras.ops.shape(x)[0], 1, x.shape[-1]))
        return keras.ops.concatenate([x, last], axis=1)


class PositionEmbedding(layers.Layer):
    """nlp_position_embedding_test.py: weights for every position, as in TensorFlow Models."""

    def build(self, shape):
        self.table = self.add_weight(shape=(6, shape[-1]), initializer="normal")

    def call(self, x):
        return x + keras.ops.broadcast_to(self.table[: x.shape[1]], keras.ops.shape(x))


@pytest.mark.slow
def test_layers_of_ones_own():
    """The graph shows what becomes of their weights."""
    branches = [([PositionEmbedding()], (3, 2)), ([SequenceBias(), layers.Dense(2)], (5, 3))]
    check_model(side_by_side(branches), rows=6, microbatch_size=3)


def test_attention_with_a_key_a_mask_and_another_length():
    """multi_head_attention_test.py, and Opacus' dp_multihead_attention_test.py."""
    query, value, key = keras.Input((2, 3)), keras.Input((3, 4)), keras.Input((3, 4))
    mask = keras.Input((2, 3))
    attention = layers.MultiHeadAttention(2, 2, value_dim=3, output_shape=(3,))
    found = attention(query, value, key=key, attention_mask=mask > 0)
    plain = layers.MultiHeadAttention(1, 2, use_bias=False)(query, value)
    outputs = layers.Dense(1)(layers.Concatenate()([found, plain]))
    check_model(keras.Model([query, value, key, mask], outputs), rows=4)


@pytest.mark.slow
def test_bags_of_embeddings():
    """embedding_test.py: sums of the same rows, weighted, before a dense layer."""
    ids = keras.Input((2, 3), dtype="int32")
    found = layers.Embedding(4, 2)(ids)
    weighted = found * keras.ops.reshape(keras.ops.arange(12.0), (2, 3, 2))
    bag = layers.Flatten()(weighted)
    check_model(
        keras.Model(ids, [layers.Dense(1)(bag), bag]), rows=8, integers=4, microbatch_size=2
    )
