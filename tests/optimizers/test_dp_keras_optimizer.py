"""DP-SGD with the update rules of Keras optimizers."""

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from helpers import LOSS, clipped_sum, data, fit, plain, private, sgd, weights

import tfdp
from tfdp.optimizers import DPKerasOptimizer, make_dp_optimizer_class


def test_without_noise_an_update_is_the_clipped_mean_over_the_nominal_lot():
    model = private(sgd(noise=0.0, clip=0.3))
    x, y = data(8)
    before = weights(model)
    expected = before - 0.5 * clipped_sum(model, x, y, 0.3) / 8
    fit(model, rows=8)
    np.testing.assert_allclose(weights(model), expected, atol=1e-6)


def test_the_divisor_is_the_nominal_lot_however_many_were_drawn():
    model = private(sgd(noise=0.0, clip=0.3))
    x, y = data(8)
    expected = weights(model) - 0.5 * clipped_sum(model, x[:3], y[:3], 0.3) / 8
    fit(model, rows=8, sample_weight=np.array([1.0] * 3 + [0.0] * 5))
    np.testing.assert_allclose(weights(model), expected, atol=1e-6)


def test_microbatches_are_averaged_as_in_tensorflow_privacy():
    model = private(sgd(noise=0.0, clip=100.0, num_microbatches=2))
    x, y = data(8)
    # Nothing is clipped, so the mean of the group means is the plain mean.
    expected = weights(model) - 0.5 * clipped_sum(model, x, y, 100.0) / 8
    fit(model, rows=8)
    np.testing.assert_allclose(weights(model), expected, atol=1e-6)
    assert model.privacy.current_run.microbatch_size == 4


@pytest.mark.parametrize("physical_batch_size", [None, 2])
def test_noise_once_per_lot_with_the_right_scale(physical_batch_size):
    noise = []
    for factor in (0.0, 3.0):
        model = private(
            sgd(noise=factor, clip=0.2, rate=8.0),
            model=wide(),
            physical_batch_size=physical_batch_size,
        )
        before = weights(model)
        x, y = np.ones((8, 4), np.float32), np.zeros(8, int)
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        noise.append(weights(model) - before)
    drawn = noise[1] - noise[0]  # rate / L * N(0, (z C)^2) = N(0, 0.6^2)

    def p_value(stddev):
        tail, square = scipy.stats.chi2(len(drawn)), (drawn**2).sum() / stddev**2
        return min(tail.cdf(square), tail.sf(square))

    assert p_value(0.6) > 1e-9
    assert max(p_value(0.4), p_value(0.9)) < 1e-9


def wide():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(400), keras.layers.Dense(3)])


def test_weight_regularizers_come_after_the_noise_and_are_not_clipped():
    layer = keras.layers.Dense(3, kernel_regularizer=keras.regularizers.L2(5.0))
    model = private(sgd(noise=0.0, clip=1e-6), model=keras.Sequential([keras.Input((4,)), layer]))
    kernel = layer.kernel.numpy()
    fit(model, rows=8)
    np.testing.assert_allclose(layer.kernel.numpy(), kernel - 0.5 * 10.0 * kernel, atol=1e-5)


@pytest.mark.parametrize("base", [keras.optimizers.Adam, keras.optimizers.RMSprop])
def test_the_rule_of_the_base_optimizer_is_applied(base):
    model = private(make_dp_optimizer_class(base)(l2_norm_clip=0.3, noise_multiplier=0.0))
    reference = plain()
    optimizer, (x, y) = base(), data(8)
    reference.compile(loss=LOSS)
    for _ in range(2):
        flat = clipped_sum(reference, x, y, 0.3) / 8
        split = np.split(flat, np.cumsum([np.prod(v.shape) for v in reference.variables])[:-1])
        gradients = [
            tf.constant(g.reshape(v.shape), tf.float32)
            for g, v in zip(split, reference.variables, strict=True)
        ]
        optimizer.apply(gradients, reference.trainable_variables)
    fit(model, epochs=2, rows=8)
    np.testing.assert_allclose(weights(model), weights(reference), atol=1e-5)


def test_global_seeds_do_not_reach_the_noise_and_a_users_seed_does():
    def trained(**kwargs):
        model = private(sgd(**kwargs))
        keras.utils.set_random_seed(1)
        fit(model)
        return weights(model)

    assert np.mean(trained() == trained()) < 0.1  # a few float32 numbers may be equal by chance
    np.testing.assert_array_equal(trained(seed=3), trained(seed=3))


def test_gradients_from_elsewhere_are_refused():
    optimizer = sgd()
    variable = keras.Variable(tf.ones(3))
    for apply in (
        lambda: optimizer.apply([tf.ones(3)], [variable]),
        lambda: optimizer.apply_gradients([(tf.ones(3), variable)]),
    ):
        with pytest.raises(RuntimeError, match="make_private"):
            apply()
    np.testing.assert_array_equal(variable.numpy(), np.ones(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient_accumulation_steps": 2}, "physical_batch_size"),
        ({"loss_scale_factor": 2.0}, "wrong norm"),
        ({"noise": -1.0}, "noise_multiplier"),
        ({"noise": float("nan")}, "noise_multiplier"),
        ({"clip": 0.0}, "l2_norm_clip"),
        ({"num_microbatches": 0}, "num_microbatches"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        sgd(**options)


def test_num_microbatches_divides_the_lot():
    with pytest.raises(ValueError, match="divisor of the lot size 8"):
        fit(private(sgd(num_microbatches=3)))


def test_factory():
    made = make_dp_optimizer_class(keras.optimizers.Adagrad)
    assert made is make_dp_optimizer_class(keras.optimizers.Adagrad)
    assert issubclass(made, DPKerasOptimizer) and issubclass(made, keras.optimizers.Adagrad)
    for bad in (made, keras.optimizers.LossScaleOptimizer, int, "sgd"):
        with pytest.raises(TypeError):
            make_dp_optimizer_class(bad)


def test_the_seed_is_in_no_config():
    config = sgd(seed=123456).get_config()
    assert "seed" not in config and "123456" not in repr(config)
    assert sgd(seed=1).seeded and not sgd().seeded
    assert tfdp.DPKerasSGDOptimizer.from_config(config).l2_norm_clip == 1.0


@pytest.mark.parametrize(
    ("clip", "noise"), [(1e-21, 1.0), (1e-38, 1.0), (1e-20, 1e-6), (1e-20, (1.0, 1e-6))]
)
def test_noise_below_the_normal_numbers_of_float32_is_refused(clip, noise):
    with pytest.raises(ValueError, match="float32 has the distribution"):
        tfdp.DPKerasSGDOptimizer(l2_norm_clip=clip, noise_multiplier=noise, learning_rate=0.1)
    tfdp.DPKerasSGDOptimizer(l2_norm_clip=1e-20, noise_multiplier=(1e-4, 0.0), learning_rate=0.1)
