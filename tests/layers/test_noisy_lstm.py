"""NoisyLSTM is Keras' LSTM at kernels that are drawn once for a lot."""

import keras
import numpy as np
import pytest

from tfdp.layers import NoisyLSTM


def inputs():
    return np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")


def built(units=3, features=4, noise_stddev=0.5, **options):
    layer = NoisyLSTM(units, noise_stddev=noise_stddev, **options)
    layer.build((None, 5, features))
    return layer


def plain_at_the_draw(layer, **options):
    """Keras' LSTM with the kernels that the noisy one draws next."""
    plain = keras.layers.LSTM(layer.units, **options)
    cell = layer.cell
    plain.build((None, 5, cell.kernel.shape[0]))
    rows = cell.kernel.shape[0] + cell.recurrent_kernel.shape[0]
    noise = layer.draw_noise((rows, 4 * layer.units)).numpy()
    plain.cell.kernel.assign(cell.kernel + noise[: cell.kernel.shape[0]])
    plain.cell.recurrent_kernel.assign(cell.recurrent_kernel + noise[cell.kernel.shape[0] :])
    if plain.use_bias:
        plain.cell.bias.assign(cell.bias)
    return plain


@pytest.mark.parametrize(
    ("options", "masked"),
    [
        ({"return_sequences": True, "go_backwards": True}, True),
        ({"activation": "relu", "return_state": True, "use_bias": False, "unroll": True}, False),
    ],
    ids=str,
)
def test_is_the_lstm_of_keras_at_the_drawn_kernels(options, masked):
    layer, x = built(**options), inputs()
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool) if masked else None
    plain = plain_at_the_draw(layer, **options)
    wanted = keras.tree.flatten(plain(x, mask=mask))
    found = keras.tree.flatten(layer(x, mask=mask, training=True))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert int(layer.weight_noise_state.numpy()[1]) == 1  # one draw, whatever the number of steps


def test_calls_draw_anew_in_training_only():
    layer, x = built(), inputs()
    assert not np.allclose(layer(x, training=True), layer(x, training=True))
    np.testing.assert_array_equal(layer(x), layer(x))


def test_dropout_draws_anew_in_each_call():
    """Its seed is written inside of the scope that holds the drawn kernels."""
    layer, x = built(noise_stddev=0.0, dropout=0.5), inputs()
    assert not np.allclose(layer(x, training=True), layer(x, training=True))
