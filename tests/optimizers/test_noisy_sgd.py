"""NoisySGD is Keras' SGD on gradients with noise of the stated scale."""

import keras
import numpy as np
import pytest
import scipy.stats

from tfdp.optimizers import NoisySGD

SIGNIFICANCE = 1e-9


def moved(optimizer, gradients, steps=1):
    """How far weights, which start at zero, move when they get the same gradients in every step."""
    variables = [keras.Variable(np.zeros_like(g)) for g in gradients]
    optimizer.build(variables)
    for _ in range(steps):
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], variables)
    return [v.numpy() for v in variables]


def gradients():
    return [np.full((100, 100), 2.0, np.float32), np.full((5000,), -1.0, np.float32)]


def test_noise_has_the_stated_scale_and_the_gradient_as_its_mean():
    for gradient, step in zip(
        gradients(), moved(NoisySGD(0.5, update_noise=0.3), gradients()), strict=True
    ):
        noise = np.ravel(step / -0.5 - gradient) / 0.3
        assert scipy.stats.kstest(noise, "norm").pvalue > SIGNIFICANCE
        assert scipy.stats.kstest(noise * 1.5, "norm").pvalue < SIGNIFICANCE
        assert scipy.stats.kstest(noise / 1.5, "norm").pvalue < SIGNIFICANCE


def test_steps_and_weights_have_noise_of_their_own():
    zeros = [np.zeros(5000, np.float32)] * 2
    one, other = moved(NoisySGD(1.0, update_noise=1.0), zeros)
    limit = scipy.stats.norm.isf(SIGNIFICANCE) / np.sqrt(5000)
    assert abs(np.corrcoef(one, other)[0, 1]) < limit
    twice, _ = moved(NoisySGD(1.0, update_noise=1.0), zeros, steps=2)
    assert scipy.stats.kstest(twice / np.sqrt(2), "norm").pvalue > SIGNIFICANCE


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
def test_without_noise_it_is_sgd(options):
    ours = moved(NoisySGD(0.1, **options), gradients(), steps=3)
    theirs = moved(keras.optimizers.SGD(0.1, **options), gradients(), steps=3)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_seed_fixes_the_noise():
    one, same, other = (
        moved(NoisySGD(1.0, update_noise=1.0, seed=s), gradients())[0] for s in (3, 3, 4)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other)


def test_saved_and_loaded(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(NoisySGD(0.1, update_noise=0.2, seed=1, momentum=0.9), "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for each in (model, loaded):
        each.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    np.testing.assert_allclose(loaded.get_weights()[0], model.get_weights()[0], rtol=1e-6)


@pytest.mark.parametrize("options", [{"update_noise": -1.0}, {"update_noise": float("nan")}])
def test_bad_noise_is_refused(options):
    with pytest.raises(ValueError, match="Expected update_noise"):
        NoisySGD(0.1, **options)
