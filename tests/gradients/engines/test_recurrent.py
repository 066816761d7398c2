"""Rules of recurrent layers: their gradients are those of batches of one."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.gradients.checking import (
    check_engines,
    check_layers,
    check_traced,
    side_by_side,
)
from tests.helpers import private, sgd
from tfdp.layers import NormalizedLSTM, NormalizedLSTMCell


def test_last_outputs():
    check_layers(
        (3, 2),
        layers.LSTM(2, activation="softsign"),
        NormalizedLSTM(3),
        engines=["ghost"],
    )


def test_all_outputs_in_either_direction():
    options = {"return_sequences": True, "go_backwards": True}
    check_layers(
        (2, 2),
        layers.SimpleRNN(2, use_bias=False, **options),
        layers.GRU(2, reset_after=False, use_bias=False, **options),
        engines=["ghost"],
    )


@pytest.mark.slow
def test_normalization_without_weights():
    layer = NormalizedLSTM(3, affine=False, return_sequences=True, go_backwards=True)
    check_layers((2, 2), layer, engines=["ghost"])


def test_masks():
    tokens = keras.Input((3,), dtype="int32")
    hidden = layers.Embedding(4, 3, mask_zero=True)(tokens)
    outputs = [
        layers.SimpleRNN(2, go_backwards=True, return_sequences=True)(hidden),
        layers.Bidirectional(layers.SimpleRNN(2, zero_output_for_mask=True))(hidden),
    ]
    model = keras.Model(tokens, layers.Concatenate()([layers.Flatten()(o) for o in outputs]))
    check_engines(model, integers=4, engines=["ghost"])


def test_states_from_and_for_other_layers():
    sequence, start = keras.Input((4, 3)), keras.Input((2,))
    first = [layers.Dense(2)(start), layers.Dense(2)(start)]
    layer = layers.LSTM(2, return_sequences=True, return_state=True)
    outputs = layer(sequence, initial_state=first)
    check_engines(keras.Model([sequence, start], outputs), engines=["ghost"])


@pytest.mark.slow
def test_dropout_has_the_masks_of_the_exact_engine():
    layer = layers.LSTM(2, dropout=0.3, recurrent_dropout=0.4)
    check_traced(side_by_side((2, 2), layer))


@pytest.mark.slow
def test_dropout_for_each_gate_in_sequences_of_unknown_length():
    model = keras.Sequential([keras.Input((None, 2)), layers.GRU(2, recurrent_dropout=0.2)])
    check_traced(model)


@pytest.mark.slow
def test_under_xla_and_in_microbatches():
    model = side_by_side((2, 2), layers.LSTM(2))
    check_traced(model, rows=4, jit_compile=True, microbatch_size=2)


def test_sequences_of_unknown_length():
    layer = layers.LSTM(2, return_sequences=True, zero_output_for_mask=True)
    tokens = keras.Input((None,), dtype="int32")
    outputs = layer(layers.Embedding(4, 3, mask_zero=True)(tokens))
    model = keras.Model(tokens, layers.GlobalAveragePooling1D()(outputs))
    check_engines(model, integers=4, engines=["ghost"])


@pytest.mark.slow
def test_a_cell_of_its_own():
    model = keras.Sequential([keras.Input((4, 2)), layers.RNN(NormalizedLSTMCell(3))])
    check_engines(model, engines=["ghost"])


@pytest.mark.parametrize("engine", ["ghost", pytest.param("vectorized", marks=pytest.mark.slow)])
def test_an_activation_with_a_gradient_of_its_own_in_sequences_of_unknown_length(engine):
    layer = layers.LSTM(2, activation="silu")
    check_engines(keras.Sequential([keras.Input((None, 3)), layer]), engines=[engine])


@pytest.mark.slow
def test_bfloat16_within_its_own_rounding():
    layer = layers.LSTM(2, dtype="mixed_bfloat16")
    check_engines(side_by_side((1, 2), layer), engines=["ghost"], terms=16, dtype="bfloat16")


def test_a_loop_of_unknown_length_is_unrolled_once_the_data_state_their_length():
    series = np.arange(24, dtype="float32").reshape(12, 2) / 24
    windows = keras.utils.timeseries_dataset_from_array(series, series[:, :1], 4, batch_size=3)
    layer = layers.SimpleRNN(2, activation=lambda x: keras.ops.tanh(x), name="rolled")
    network = keras.Sequential([keras.Input((4, 2)), layer, layers.Dense(1)])
    model = private(sgd(), network, {"loss": "mse"})
    with pytest.raises(NotImplementedError, match=r"'rolled' .*ensure_shape"):
        model.fit(windows, verbose=0)
    stated = windows.map(lambda x, y: (tf.ensure_shape(x, [None, 4, 2]), y))
    model.fit(stated, verbose=0)
    assert model.privacy.steps_taken == 3


def test_one_row_in_the_exact_engine():
    model = side_by_side((2, 2), layers.LSTM(2))
    check_engines(model, rows=1, engines=["vectorized"])
