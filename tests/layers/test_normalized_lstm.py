"""NormalizedLSTM computes Ba et al.'s equations, keeps examples apart, and its files are complete."""

import keras
import numpy as np
import pytest

from tfdp.layers import NormalizedLSTM, NormalizedLSTMCell


def inputs(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def randomized(layer, width):
    """Builds a layer and gives random values to all of its weights."""
    layer.build((None, None, width))
    generator = np.random.default_rng(1)
    for variable in layer.trainable_variables:
        variable.assign(generator.normal(size=variable.shape))
    return layer


def norm(x, scale=1.0, offset=0.0):
    """Layer normalization over all features of each row."""
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + offset


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def equations(layer, x):
    """Equations 20 to 22 of Ba et al. 2016, in float64."""
    weights = [np.float64(v) for v in layer.trainable_variables]
    kernel, recurrent_kernel, *affine = weights
    first, second, third = (affine[:2], affine[2:4], affine[4:]) if affine else ([], [], [])
    hidden = carry = np.zeros((len(x), layer.cell.units))
    for step in range(x.shape[1]):
        gates = norm(x[:, step] @ kernel, *first) + norm(hidden @ recurrent_kernel, *second)
        i, f, candidate, o = np.split(gates, 4, axis=1)
        carry = sigmoid(f) * carry + sigmoid(i) * np.tanh(candidate)
        hidden = sigmoid(o) * np.tanh(norm(carry, *third))
    return hidden


@pytest.mark.parametrize("affine", [True, False])
def test_is_the_equations(affine):
    layer, x = randomized(NormalizedLSTM(4, affine=affine), 3), inputs(5, 7, 3)
    np.testing.assert_allclose(layer(x), equations(layer, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("affine", "weights"), [(True, 112 + 72), (False, 112)])
def test_number_of_weights(affine, weights):
    assert randomized(NormalizedLSTM(4, affine), 3).count_params() == weights


@pytest.mark.parametrize("scale", [0.1, 50.0])
def test_the_scale_of_a_kernel_is_irrelevant(scale):
    layer, x = randomized(NormalizedLSTM(4), 3), inputs(5, 7, 3)
    before = layer(x).numpy()
    for kernel in (layer.cell.kernel, layer.cell.recurrent_kernel):
        kernel.assign(scale * kernel)
    np.testing.assert_allclose(layer(x), before, atol=2e-2)


def test_examples_do_not_mix():
    layer, x = randomized(NormalizedLSTM(4), 3), inputs(5, 7, 3)
    alone = np.concatenate([layer(x[i : i + 1]) for i in range(5)])
    np.testing.assert_allclose(layer(x), alone, rtol=1e-4, atol=1e-5)


def test_masked_steps_do_not_count():
    layer, x = randomized(NormalizedLSTM(4), 3), inputs(5, 7, 3)
    mask = np.arange(7) < np.full((5, 1), 4)
    np.testing.assert_allclose(layer(x, mask=mask), layer(x[:, :4]), rtol=1e-5, atol=1e-6)


def test_saved_and_loaded(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((7, 3)),
            keras.layers.Bidirectional(NormalizedLSTM(4, return_sequences=True)),
            NormalizedLSTM(2, affine=False, epsilon=1e-3, dtype="float32", name="last"),
        ]
    )
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    x = inputs(5, 7, 3)
    np.testing.assert_allclose(loaded(x), model(x), rtol=1e-6)
    assert loaded.layers[1].get_config() == model.layers[1].get_config()
    assert loaded.layers[1].cell.get_config() == model.layers[1].cell.get_config()
    assert loaded.layers[0].forward_layer.return_sequences


def test_cell_round_trip():
    cell = NormalizedLSTMCell(4, affine=False, epsilon=0.1)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(cell))
    assert again.get_config() == cell.get_config()


@pytest.mark.parametrize("options", [{"units": 0}, {"units": 2, "epsilon": 0.0}], ids=str)
@pytest.mark.parametrize("kind", [NormalizedLSTM, NormalizedLSTMCell])
def test_bad_arguments_are_refused(kind, options):
    with pytest.raises(ValueError, match=f"Expected {list(options)[-1]}"):
        kind(**options)
