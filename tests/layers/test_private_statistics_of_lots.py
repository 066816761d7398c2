"""Batch normalization as the paper writes it: moments of the lot, and private averages for tests."""

import keras
import numpy as np
import pytest
from keras import layers

from tests.helpers import private, sgd
from tfdp import accounting
from tfdp.experiments import Experiment
from tfdp.experiments import run as run_experiment
from tfdp.layers import PrivateBatchNormalization

L = 6


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def network(**arguments):
    keras.utils.set_random_seed(2)
    layer = PrivateBatchNormalization(statistics="batch", truncation=0.9, share=0.25, **arguments)
    model = keras.Sequential(
        [
            keras.Input((3, 4)),
            layers.Dense(5),
            layer,
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(2),
        ]
    )
    return model, layer


def test_training_normalizes_by_the_lot_and_testing_by_the_running_statistics():
    layer = PrivateBatchNormalization(statistics="batch", epsilon=1e-5)
    x = draw(7, 3, 4)
    mean, variance = x.mean((0, 1)), x.var((0, 1))
    expected = (x - mean) / np.sqrt(variance + 1e-5)
    np.testing.assert_allclose(layer(x, training=True), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer(x), x / np.sqrt(1 + 1e-5), rtol=1e-5)  # mean 0, variance 1
    copy = PrivateBatchNormalization.from_config(layer.get_config())
    assert copy.statistics == "batch" and layer.uses_lot_statistics


def test_a_plain_step_is_equations_9_and_10():
    model, layer = network(rate=0.8)
    x, y = draw(L, 3, 4), draw(L, 2, seed=1)
    inputs = model.layers[0](x).numpy()
    model.compile(keras.optimizers.SGD(0.5), "mse")
    model.fit(x, y, batch_size=L, shuffle=False, verbose=0)
    alpha, shown = 0.5 * 0.25 * 0.8, np.clip(inputs, -0.9, 0.9)
    np.testing.assert_allclose(layer.running_mean, alpha * shown.mean((0, 1)), rtol=1e-3, atol=1e-6)
    expected = (1 - alpha) + alpha * np.square(shown).mean((0, 1))
    np.testing.assert_allclose(layer.running_variance, expected, rtol=1e-4)


def bounded(model, x, y, weight, clip):
    optimizer = sgd(noise=0.0, clip=clip)
    model = private(optimizer, model, {"loss": "mse", "metrics": None})
    before = [v.numpy() for v in model.trainable_variables]
    model.fit(x, y, sample_weight=weight, batch_size=len(x), shuffle=False, epochs=1, verbose=0)
    rate = float(optimizer.learning_rate)
    return [(b - v.numpy()) / rate for b, v in zip(before, model.trainable_variables, strict=True)]


def test_without_clipping_a_private_step_is_the_plain_one():
    x, y = draw(L, 3, 4), draw(L, 2, seed=1)
    plain, _ = network()
    start = [v.numpy() for v in plain.trainable_variables]
    plain.compile(keras.optimizers.SGD(0.1), "mse")
    plain.fit(x, y, batch_size=L, shuffle=False, verbose=0)
    found = bounded(network()[0], x, y, None, 1e6)
    for before, after, step in zip(start, plain.trainable_variables, found, strict=True):
        np.testing.assert_allclose((before - after.numpy()) / 0.1, step, rtol=2e-3, atol=2e-5)


def test_one_example_moves_the_sum_by_at_most_what_is_accounted():
    clip, moved = 0.1, []
    x, y = draw(L, 3, 4), draw(L, 2, seed=1)
    for scale in (1.0, 1e3):
        other = x.copy()
        other[0] *= scale
        some = bounded(network()[0], other, y, None, clip)
        less = bounded(network()[0], other, y, np.array([0.0] + [1.0] * (L - 1)), clip)
        moved.append(
            L * np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(some, less, strict=True)))
        )
    # More than one clip norm: the others moved, too.
    assert clip < max(moved) <= (2 * L - 1) * clip * (1 + 1e-5)


def test_it_is_accounted_as_statistics_over_the_lot():
    small = {
        "mechanism": "dpsgd", "model": "mlp", "normalization": "private_batch", "statistics": "batch",
        "noise_multiplier": 4.0, "steps": 2, "seed": 1,
    }  # fmt: skip
    result = run_experiment(Experiment(**small, sampling="cyclic", batch_size=479), verbose=0)
    assert result.run.contribution.batch_statistics
    step = accounting.Run(
        mechanism="dpsgd", sampling="cyclic", num_examples=1437, lot_size=479, steps=2,
        noise_multiplier=4.0 / (2 * 479 - 1),
    )  # fmt: skip
    assert result.proven.epsilon == pytest.approx(accounting.proven(step, 1e-5).epsilon, rel=1e-3)
    # The paper counts every example as if it moved its own gradient only.
    assert result.claimed.epsilon < 20 < result.proven.epsilon
    poisson = run_experiment(Experiment(**small, sampling="poisson", batch_size=256), verbose=0)
    assert poisson.proven.epsilon == float("inf")
    with pytest.raises(ValueError, match="statistics='batch'"):
        run_experiment(Experiment(**small, batch_size=256, engine="ghost"), verbose=0)
