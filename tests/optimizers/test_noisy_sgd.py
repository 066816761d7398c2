"""NoisySGD is Keras' SGD on gradients with noise of the stated scale."""

import keras
import numpy as np

from tests.noise.assertions import assert_normal, assert_unrelated
from tfdp.optimizers import NoisySGD


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
        assert_normal(step / -0.5 - gradient, 0.3)


def test_steps_and_weights_have_noise_of_their_own():
    zeros = [np.zeros(5000, np.float32)] * 2
    assert_unrelated(*moved(NoisySGD(1.0, update_noise=1.0), zeros))
    twice, _ = moved(NoisySGD(1.0, update_noise=1.0), zeros, steps=2)
    assert_normal(twice, np.sqrt(2))


def test_without_noise_it_is_sgd():
    options = {"momentum": 0.9, "nesterov": True}
    ours = moved(NoisySGD(0.1, **options), gradients(), steps=3)
    theirs = moved(keras.optimizers.SGD(0.1, **options), gradients(), steps=3)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_seed_fixes_the_noise_and_is_in_the_configuration():
    optimizer = NoisySGD(1.0, update_noise=1.0, seed=3, momentum=0.9)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert again.get_config() == optimizer.get_config()
    other = NoisySGD(1.0, update_noise=1.0, seed=4)
    (one, _), (same, _), (different, _) = (
        moved(each, gradients()) for each in (optimizer, again, other)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, different)
