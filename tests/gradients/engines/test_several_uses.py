"""Layers that are called several times: their gradients are those of batches of one, and bounded."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.gradients.checking import check_engines, check_traced, lot_for, summing
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import ghost


def twice(layer, *shapes):
    """Applies a layer to several inputs."""
    inputs = [keras.Input(shape) for shape in shapes]
    outputs = [layers.Flatten()(layer(x)) for x in inputs]
    return keras.Model(inputs, layers.Concatenate()(outputs))


def chain():
    x, layer = keras.Input((4,)), layers.Dense(4, activation="tanh")
    depthwise, image = layers.SeparableConv2D(2, 1), layers.Dense(18)(layer(layer(layer(x))))
    image = layers.Reshape((3, 3, 2))(image)
    return keras.Model(x, layers.Flatten()(depthwise(depthwise(image))))


def nested():
    inner = [keras.Input((6,)), layers.Dense(6, activation="tanh"), layers.LayerNormalization()]
    inner, x = keras.Sequential(inner), keras.Input((6,))
    return keras.Model(x, layers.Dense(2)(inner(inner(x))))


def frames():
    inner = [keras.Input((5, 5, 1)), layers.Conv2D(2, 3), layers.Flatten(), layers.Dense(3)]
    inner = layers.TimeDistributed(keras.Sequential(inner))
    over_time = layers.TimeDistributed(layers.Dense(3, activation="tanh"))
    return keras.Sequential([keras.Input((3, 5, 5, 1)), inner, over_time])


MODELS = {
    "images of other sizes": lambda: twice(layers.Conv2D(3, 3), (6, 6, 2), (9, 7, 2)),
    "loops": lambda: twice(layers.SimpleRNN(2), (3, 2), (2, 2)),
    "chain": chain,
    "nested": nested,
    "frames": frames,
}


@pytest.mark.parametrize("name", MODELS)
def test_layers_that_are_called_several_times(name):
    check_engines(MODELS[name](), engines=["ghost"])


@pytest.mark.slow
@pytest.mark.parametrize("make", [nested, frames])
def test_several_calls_under_xla_and_in_microbatches(make):
    check_traced(make(), rows=4, microbatch_size=2, jit_compile=True)


@pytest.mark.slow
def test_a_masked_recurrent_layer_that_is_called_twice():
    tokens, again = keras.Input((3,), dtype="int32"), layers.LSTM(2, return_sequences=True)
    hidden = layers.Embedding(3, 2, mask_zero=True)(tokens)
    check_engines(keras.Model(tokens, again(again(hidden))), integers=3, engines=["ghost"])


# -- LoRA ------------------------------------------------------------------------------------------

ADAPTED = {
    "dense": (lambda: layers.Dense(5, use_bias=False), (7, 4)),
    "query": (lambda: layers.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de"), (7, 4)),
    "transposed kernel": (lambda: layers.EinsumDense("ab,cb->ac", 5), (4,)),
}


def adapted(name, frozen=True):
    make, shape = ADAPTED[name]
    layer = make()
    model = twice(layer, shape, shape)
    layer.enable_lora(2, lora_alpha=3)
    layer._kernel.trainable = not frozen
    return model


@pytest.mark.parametrize("name", ADAPTED)
def test_adapters(name):
    check_engines(adapted(name), engines=["ghost"])


def test_adapters_beside_a_kernel_that_is_trained():
    check_engines(adapted("query", frozen=False), engines=["ghost"])


@pytest.mark.slow
def test_adapters_under_xla_and_in_microbatches():
    check_traced(adapted("query"), rows=4, microbatch_size=2, jit_compile=True)


@pytest.mark.parametrize("kind", [layers.Embedding, layers.ReversibleEmbedding])
def test_adapters_of_tables(kind):
    tokens, table = keras.Input((5,), dtype="int32"), kind(9, 4)
    hidden = layers.Dense(4, activation="tanh")(table(tokens))
    reverse = kind is layers.ReversibleEmbedding
    model = keras.Model(tokens, table(hidden, reverse=True) if reverse else hidden)
    table.enable_lora(2, lora_alpha=3)
    check_engines(model, integers=9, engines=["ghost"])


def test_a_stack_of_kernels_with_adapters():
    model = twice(layers.EinsumDense("abc,bc->abc", (4, 3)), (4, 3))
    model.layers[1].enable_lora(1)
    check_engines(model, engines=["ghost"])


# -- one example against all others ------------------------------------------------------------------


def pooled(layer, lora=False):
    x = keras.Input((4, 4))
    model = keras.Model(x, layers.Dense(3)(layers.GlobalAveragePooling1D()(layer(x))))
    if lora:
        layer.enable_lora(2)
        layer.lora_kernel_b.assign(np.random.default_rng(0).normal(size=layer.lora_kernel_b.shape))
    return model


def siamese():
    a, b, layer = keras.Input((4,)), keras.Input((4,)), layers.Dense(3)
    return keras.Model([a, b], layers.Subtract()([layer(a), layer(b)]))


def weighted_words(size):
    tokens, factors = keras.Input((4,), dtype="int32"), keras.Input((4, 1))
    table = layers.ReversibleEmbedding(size, 16)
    hidden = layers.Multiply()([table(tokens), factors])
    logits = table(layers.Lambda(lambda h: tf.tanh(h * 1e-3))(hidden), reverse=True)
    return keras.Model([tokens, factors], layers.GlobalAveragePooling1D()(logits))


NEIGHBOURS = {
    "siamese": siamese,
    "LoRA": lambda: pooled(layers.Dense(4), lora=True),
    "tied": lambda: weighted_words(9000),
}
EXTREMES = {"cancelling": [1e12, -1e12, 1e12, -1e12], "huge": 1e15, "not finite": np.nan}


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_one_example_moves_the_sum_by_the_clip_norm_at_most(name):
    model = NEIGHBOURS[name]()
    forward, _, x, y, present = lot_for(model, rows=64, integers=9)
    sums, absent = summing(ghost.bounded_sum, forward, GlobalL2Clip(1.0)), tf.range(64) > 0
    for kind, extreme in EXTREMES.items():
        inputs = [np.array(part) for part in tf.nest.flatten(x)]
        for part in inputs:
            column = np.reshape(extreme, (-1,) + (1,) * (part.ndim - 2))
            part[0] = 7 if part.dtype == np.int32 else column
        changed = tf.nest.pack_sequence_as(x, [tf.constant(part) for part in inputs])
        with_it, _ = sums(changed, y, present)
        without, _ = sums(changed, y, tf.cast(absent, tf.float32))
        assert np.all(np.isfinite(without)), kind
        assert tf.norm(with_it - without) <= 1.0, kind
