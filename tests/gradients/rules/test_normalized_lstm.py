"""The rule of NormalizedLSTM against a loop over rows, and that a wrong rule would be noticed."""

import keras
import pytest
from keras import layers

from tfdp.gradients.engines import ghost
from tfdp.gradients.rules import normalized_lstm
from tfdp.gradients.testing import check_model, check_rule
from tfdp.layers import NormalizedLSTM, NormalizedLSTMCell

CONFIGURATIONS = [
    {},
    {"affine": False},
    {"return_sequences": True},
    {"go_backwards": True, "affine": False},
    {"return_sequences": True, "go_backwards": True, "zero_output_for_mask": True},
]


@pytest.mark.parametrize("options", CONFIGURATIONS, ids=str)
def test_gradients(options):
    check_rule(NormalizedLSTM(3, **options), (5, 4))


def test_bidirectional_and_masked():
    x = keras.Input((6,), dtype="int32")
    y = layers.Embedding(4, 5, mask_zero=True)(x)
    y = layers.Bidirectional(NormalizedLSTM(3, return_sequences=True))(y)
    y = layers.Bidirectional(NormalizedLSTM(3, affine=False))(y)
    model = keras.Model(x, layers.Dense(2)(y))
    check_model(model, integers=4, vectorizes=False)


def test_in_microbatches_and_compiled_by_xla():
    x = keras.Input((4, 3))
    model = keras.Model(x, NormalizedLSTM(3)(x))
    check_model(model, rows=6, microbatch_size=2)
    check_model(model, jit_compile=True)


def test_beside_code_that_could_mix_rows():
    x = keras.Input((4, 3))
    y = layers.Lambda(lambda x: 2 * x)(NormalizedLSTM(3)(x))
    check_model(keras.Model(x, y))


def test_a_cell_in_a_plain_rnn_needs_another_engine():
    """The rule is for the layer: the weights of a cell in `keras.layers.RNN` are read in a loop."""
    x = keras.Input((4, 3))
    model = keras.Model(x, layers.RNN(NormalizedLSTMCell(3))(x))
    assert "loop" in ghost.supports(model)


def test_a_wrong_rule_is_noticed(monkeypatch):
    monkeypatch.setattr(normalized_lstm, "_before", lambda upstream, normalized, factor: upstream)
    with pytest.raises(AssertionError):
        check_rule(NormalizedLSTM(3), (5, 4))
