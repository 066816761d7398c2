"""Words and numbers that are looked up: for all rows at once, and for each as if it were alone."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tests.gradients.reference import MedianClip, assert_equal_sums, loop_bounded_sum
from tests.rounding import terms_of
from tfdp.gradients.engines import ghost
from tfdp.gradients.forward import Forward

WORDS = ["a", "b", "c"]


def looking_up():
    """A model with words, texts and numbers; an Embedding or a Dense layer behind each."""
    word, text = keras.Input((), dtype="string"), keras.Input((1,), dtype="string")
    number, value = keras.Input((2,), dtype="int64"), keras.Input((2,))
    texts = layers.TextVectorization(
        vocabulary=WORDS, output_sequence_length=3, standardize=None, split="whitespace"
    )
    counts = layers.TextVectorization(vocabulary=WORDS, output_mode="count", standardize=None)
    crossed = layers.HashedCrossing(5)((number[:, :1], text))
    found = [
        layers.StringLookup(vocabulary=WORDS)(word),
        layers.IntegerLookup(vocabulary=[3, 5])(number),
        layers.Hashing(4)(number),
        layers.Discretization(bin_boundaries=[-0.5, 0.5])(value),
        texts(text),
        crossed,
    ]
    hidden = [layers.Flatten()(layers.Embedding(7, 2)(codes)) for codes in found]
    found = [counts(text), layers.StringLookup(vocabulary=WORDS, output_mode="multi_hot")(text)]
    hidden += [layers.Flatten()(layers.Dense(2)(codes)) for codes in found]
    return keras.Model([word, text, number, value], layers.Dense(1)(layers.Concatenate()(hidden)))


def lot():
    return (
        tf.constant(["a", "c", "none"]),
        tf.constant([["a b"], ["c"], ["none a a"]]),
        tf.constant([[3, 1], [5, 5], [0, 3]], tf.int64),
        tf.constant([[0.1, -2.0], [0.7, 0.4], [-0.6, 9.0]]),
    )


def test_gradients_are_those_of_batches_of_one():
    model = looking_up()
    model.compile("sgd", "mse")
    y, weight = tf.constant([[1.0], [2.0], [0.5]]), tf.ones([3])
    given = (Forward(model), MedianClip(1.0), [*lot()], y, weight, tf.constant(0))
    assert_equal_sums(
        ghost.bounded_sum(*given), loop_bounded_sum(*given), terms_of(model, 3, length=3)
    )


def test_other_rows_move_no_bit():
    model, before = looking_up(), lot()
    longer = tf.constant([["a b"], ["b " * 50], ["x" * 1000]])
    after = (
        tf.constant(["a", "", "b" * 100]),
        longer,
        tf.constant([[3, 1], [2**62, -(2**62)], [1, 1]], tf.int64),
        tf.constant([[0.1, -2.0], [1e30, np.nan], [-1e30, np.inf]]),
    )
    np.testing.assert_array_equal(model([*before])[0], model([*after])[0])


def test_they_train():
    model = tfdp.make_private(looking_up(), engine="loop")
    optimizer = tfdp.DPKerasSGDOptimizer(0.1, l2_norm_clip=1.0, noise_multiplier=1.0)
    model.compile(optimizer, "mse", run_eagerly=True)
    y = np.ones((3, 1), "float32")
    model.fit([*lot()], y, batch_size=3, verbose=0)
    assert model.privacy.steps_taken == 1


def test_a_text_that_is_padded_to_the_longest_is_refused_by_name():
    text = keras.Input((1,), dtype="string")
    codes = layers.TextVectorization(vocabulary=WORDS, name="unpadded")(text)
    pooled = layers.GlobalAveragePooling1D()(layers.Embedding(9, 2)(codes))
    model = keras.Model(text, layers.Dense(1)(pooled))
    model.compile("sgd", "mse")
    given = tf.constant([["a b"], ["c"]]), tf.zeros([2, 1]), tf.ones([2]), tf.constant(0)
    with pytest.raises(NotImplementedError, match="unpadded"):
        ghost.bounded_sum(Forward(model), MedianClip(1.0), *given)
