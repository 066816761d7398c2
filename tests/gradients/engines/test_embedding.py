"""Rules of tables: Embedding and ReversibleEmbedding, also where one table is used several times."""

import keras
import pytest
import tensorflow as tf
from keras import layers

from tests.gradients.checking import beside, check_engines, check_layers, check_traced


def tied(size=9, width=4, **options):
    tokens, table = (
        keras.Input((5,), dtype="int32"),
        layers.ReversibleEmbedding(size, width, **options),
    )
    hidden = layers.Dense(width, activation="tanh")(table(tokens))
    return keras.Model(tokens, layers.Flatten()(table(hidden, reverse=True)))


def tied_by_operations():
    tokens, table = keras.Input((5,), dtype="int32"), layers.Embedding(9, 4)
    states = layers.Dense(4, activation="tanh")(table(tokens))

    def logits(states):
        return keras.ops.matmul(states, keras.ops.transpose(table.embeddings))

    return keras.Model(tokens, layers.Lambda(logits)(states))


def test_tables():
    plain, masked = layers.Embedding(5, 3), layers.Embedding(5, 3, mask_zero=True)
    check_layers((7,), plain, masked, integers=5)


def test_one_table_for_two_inputs():
    a, b, table = (
        keras.Input((5,), dtype="int32"),
        keras.Input((3,), dtype="int32"),
        layers.Embedding(9, 4),
    )
    model = keras.Model([a, b], layers.Concatenate(1)([table(a), table(b)]))
    check_engines(model, integers=9, engines=["ghost"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: beside(tied(), tied(logit_soft_cap=2.0), tied(tie_weights=False)),
        lambda: tied(700, 32),
        tied_by_operations,
    ],
    ids=["small", "large", "by operations"],
)
def test_tables_that_also_make_the_outputs(make):
    # The norms of large tables are sums of many squares.
    check_engines(make(), integers=9, engines=["ghost"])


@pytest.mark.slow
def test_a_tied_table_under_xla_and_in_microbatches():
    check_traced(tied(), rows=4, integers=9, microbatch_size=2, jit_compile=True)


def test_a_tied_table_keeps_its_mask():
    tokens, table = (
        keras.Input((5,), dtype="int32"),
        layers.ReversibleEmbedding(4, 3, mask_zero=True),
    )
    hidden = layers.SimpleRNN(3, return_sequences=True)(table(tokens))
    model = keras.Model(tokens, table(hidden, reverse=True))
    check_engines(model, integers=3, engines=["ghost"])


def test_other_uses_of_a_table_outside_of_its_layer():
    tokens, table = keras.Input((5,), dtype="int32"), layers.Embedding(9, 4)
    states = layers.Dense(4)(table(tokens))
    lengths = layers.Lambda(lambda h: h + tf.norm(table.embeddings))(states)
    check_engines(keras.Model(tokens, lengths), integers=9, engines=["ghost"])
