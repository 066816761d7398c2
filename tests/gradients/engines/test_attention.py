"""Transformers: their gradients are those of batches of one."""

import keras
import pytest
from keras import layers

from tests.gradients.checking import check_engines, check_traced


def transformer(dropout=0.0):
    tokens = keras.Input((5,), dtype="int32")
    x = layers.Embedding(9, 4, mask_zero=True)(tokens)
    attended = layers.MultiHeadAttention(2, 3, dropout=dropout)(x, x)
    x = layers.LayerNormalization()(layers.Add()([x, attended]))
    x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(4, activation="gelu")(x)]))
    x = layers.Dropout(dropout)(layers.GlobalAveragePooling1D()(x))
    return keras.Model(tokens, layers.Dense(2)(x))


def test_self_attention():
    check_engines(transformer(), integers=9, engines=["ghost"])


def test_cross_attention_of_one_layer_on_two_pairs():
    a, b, layer = keras.Input((4, 6)), keras.Input((5, 6)), layers.MultiHeadAttention(2, 3, 4)
    model = keras.Model([a, b], layers.Concatenate(1)([layer(a, b), layer(b, a)]))
    check_engines(model, engines=["ghost"])


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_dropout_has_the_masks_of_the_exact_engine(jit_compile):
    """Under XLA, TensorFlow draws other numbers."""
    dropout = 0.0 if jit_compile else 0.2
    model = transformer(dropout)
    check_traced(model, rows=4, integers=9, microbatch_size=2, jit_compile=jit_compile)
