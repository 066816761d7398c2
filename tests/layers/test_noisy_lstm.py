"""NoisyLSTM is Keras' LSTM at kernels that are drawn once for a lot, with the stated scale."""

import keras
import numpy as np
import pytest
import scipy.stats

from tfdp.layers import NoisyLSTM

SIGNIFICANCE = 1e-9


def inputs_of(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


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
    "options",
    [
        {},
        {"return_sequences": True, "go_backwards": True},
        {"return_state": True, "use_bias": False},
        {"activation": "relu", "recurrent_activation": "hard_sigmoid", "unroll": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True])
def test_is_the_lstm_of_keras_at_the_drawn_kernels(options, masked):
    layer, x = built(**options), inputs_of((2, 5, 4))
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool) if masked else None
    plain = plain_at_the_draw(layer, **options)
    wanted = keras.tree.flatten(plain(x, mask=mask))
    found = keras.tree.flatten(layer(x, mask=mask, training=True))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert int(layer.weight_noise_state.numpy()[1]) == 1  # one draw, whatever the number of steps


def test_the_kernels_are_noisy_by_the_stated_deviation_and_the_bias_is_not():
    layer = built(40, 60, noise_stddev=0.7)
    before = [layer.cell.kernel.numpy(), layer.cell.recurrent_kernel.numpy()]
    noise = plain_at_the_draw(layer)
    found = np.concatenate(
        [(noise.cell.kernel - before[0]).numpy(), (noise.cell.recurrent_kernel - before[1]).numpy()]
    ).ravel()
    assert found.size == 16_000
    assert scipy.stats.kstest(found / 0.7, "norm").pvalue > SIGNIFICANCE
    for factor in (2 / 3, 3 / 2):
        assert scipy.stats.kstest(found / (0.7 * factor), "norm").pvalue < SIGNIFICANCE
    np.testing.assert_array_equal(layer.cell.kernel, before[0])  # the means stay as they are
    # The first test compares with Keras' layer, whose bias is the learned one.


def test_calls_draw_anew_in_training_only():
    layer, x = built(), inputs_of((2, 5, 4))
    first, second = layer(x, training=True), layer(x, training=True)
    assert not np.allclose(first, second)
    np.testing.assert_array_equal(layer(x), layer(x))
    mean = built(noise_at_inference=False)
    plain = plain_at_the_draw(built(noise_stddev=0.0))
    for own, other in zip(plain.cell.weights, mean.cell.weights, strict=True):
        own.assign(other)
    np.testing.assert_allclose(mean(x), plain(x), rtol=1e-5, atol=1e-6)


def test_dropout_draws_anew_in_each_call():
    """Its seed is written inside of the scope that holds the drawn kernels."""
    layer, x = built(noise_stddev=0.0, dropout=0.5), inputs_of((4, 5, 4))
    assert not np.allclose(layer(x, training=True), layer(x, training=True))


def test_saved_and_loaded(tmp_path):
    x = inputs_of((2, 5, 4))
    model = keras.Sequential(
        [keras.Input((5, 4)), keras.layers.Bidirectional(built(seed=3)), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    model.fit(x, np.zeros((2, 1)), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(x), model(x), rtol=1e-6)
    for one, other in zip(loaded.layers[:1], model.layers[:1], strict=True):
        assert one.forward_layer.get_config() == other.forward_layer.get_config()
        assert one.backward_layer.get_config() == other.backward_layer.get_config()
    model.save_weights(tmp_path / "model.weights.h5")
    loaded.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(loaded(x, training=True), model(x, training=True), rtol=1e-6)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), "much"])
def test_other_deviations_are_refused(bad):
    with pytest.raises((ValueError, TypeError), match="noise_stddev"):
        NoisyLSTM(3, noise_stddev=bad)
