"""DP dropout and SGLD: the paper's step and schedule, Langevin noise and implied dropout rates."""

import keras
import numpy as np
import pytest
from helpers import data, fit, plain, private, weights

import tfdp
from tests.noise.assertions import assert_normal
from tests.optimizers.step_suite import (
    CLIP,
    clipped_by_layer,
    gradients_of_rows,
    set_flat,
    wide,
)
from tests.rounding import FUNCTION, assert_close, rounding, terms_of
from tfdp.optimizers.langevin import PowerDecay


def dp_dropout(noise=0.0, clip=CLIP, rate=0.8, **kwargs):
    return tfdp.DPDropoutOptimizer(rate, l2_norm_clip=clip, noise_multiplier=noise, **kwargs)


def sgld(noise=0.0, clip=CLIP, rate=0.8, num_examples=24, **kwargs):
    return tfdp.SGLDOptimizer(
        rate, l2_norm_clip=clip, noise_multiplier=noise, num_examples=num_examples, **kwargs
    )


def test_two_steps_by_hand():
    """Half steps at the rate eta_0 / t^gamma; every layer is clipped at C."""
    model = private(dp_dropout(learning_rate_exponent=0.5))
    reference, (x, y) = plain(), data(16)
    for t, rows in enumerate((slice(0, 8), slice(8, 16)), start=1):
        total = sum(clipped_by_layer(row) for row in gradients_of_rows(reference, x[rows], y[rows]))
        set_flat(reference, weights(reference) - 0.8 / t**0.5 / 2 * total / 8)
    fit(model, rows=16)
    assert_close(weights(model), weights(reference), terms_of(model, 8, steps=2))


def test_sgld_adds_the_larger_of_langevin_noise_and_private_noise():
    model = private(sgld(noise=3.0), wide())
    before = weights(model)
    model.train_on_batch(*data(8))
    # The private noise is 0.8 / 2 * 3 C / 8, and smaller.
    assert_normal(weights(model) - before, (0.8 / 24) ** 0.5)


def test_implied_dropout_rates():
    model = private(dp_dropout(noise=1.6, clip=0.5, learning_rate_exponent=0.0))
    fit(model)
    expected = {}
    for layer in model.layers:
        squares = np.concatenate([w.ravel() for w in layer.get_weights()]) ** 2
        name = layer.kernel.path.rpartition("/")[0]
        alpha = 4 * 0.5**2 * 0.8**2 / squares.mean()
        expected[f"dropout_alpha/{name}"] = alpha
    assert model.optimizer.scalars(model.trainable_variables) == pytest.approx(
        expected, rel=rounding(20 + 3 + FUNCTION)
    )
    zero = keras.Variable(np.zeros(3), name="kernel")
    assert set(dp_dropout(noise=1.0).scalars([zero]).values()) == {np.inf}
    assert set(dp_dropout(noise=0.0).scalars([zero]).values()) == {0.0}


def test_rates_of_the_schedule():
    steps = [PowerDecay(0.1, 1.0)(t) for t in range(4)]
    assert_close(steps, [0.1, 0.05, 0.1 / 3, 0.025], 2 * FUNCTION)
    rounds = [PowerDecay(0.1, 2.0, steps_per_round=2)(t) for t in range(4)]
    assert_close(rounds, [0.1, 0.1, 0.025, 0.025], 2 * FUNCTION)


def test_a_configuration_comes_back():
    for optimizer in (
        dp_dropout(learning_rate_exponent=0.5, steps_per_epoch=2, composition="zcdp_a"),
        sgld(rate=keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5), clipping="global"),
    ):
        again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
        assert again.get_config() == optimizer.get_config()
        run = again.mechanism_fields(plain().trainable_variables)
        assert run["composition"] == optimizer.composition


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"composition": "rdp"}, "composition"),
        ({"learning_rate_exponent": float("nan")}, "learning_rate_exponent"),
        ({"rate": PowerDecay(0.1, 1.0), "learning_rate_exponent": 1.0}, "learning_rate_exponent"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        dp_dropout(**options)


def test_sgld_needs_the_number_of_examples():
    with pytest.raises(ValueError, match="num_examples"):
        sgld(num_examples=0)
