"""DP-SGD with the update rules of Keras optimizers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import LOSS, clipped_sum, data, fit, plain, private, sgd, weights

import tfdp
from tests.rounding import assert_close, terms_of
from tfdp.optimizers import MECHANISMS, DPKerasOptimizer, make_dp_optimizer_class


def test_microbatches_are_averaged_as_in_tensorflow_privacy():
    model = private(sgd(noise=0.0, clip=100.0, num_microbatches=2))
    x, y = data(8)
    # Nothing is clipped, so the mean of the group means is the plain mean.
    expected = weights(model) - 0.5 * clipped_sum(model, x, y, 100.0) / 8
    model.train_on_batch(x, y)
    assert_close(weights(model), expected, terms_of(model, 8))
    assert model.privacy.current_run.contribution.microbatch_size == 4
    with pytest.raises(ValueError, match="divisor of the lot size 8"):
        sgd(num_microbatches=3).microbatch_size(8)


def test_weight_regularizers_come_after_the_noise_and_are_not_clipped():
    layer = keras.layers.Dense(3, kernel_regularizer=keras.regularizers.L2(5.0))
    model = private(sgd(noise=0.0, clip=1e-6), model=keras.Sequential([keras.Input((4,)), layer]))
    kernel = layer.kernel.numpy()
    model.train_on_batch(*data(8))
    assert_close(
        layer.kernel.numpy(),
        kernel - 0.5 * 10.0 * kernel,
        terms_of(model, 8),
        10.0 * np.max(np.abs(kernel)),
    )


def test_without_clipping_and_noise_it_is_the_base_optimizer():
    made = make_dp_optimizer_class(keras.optimizers.Adam)
    model, reference = private(made(l2_norm_clip=1e3, noise_multiplier=0.0)), plain()
    reference.compile(keras.optimizers.Adam(), LOSS, run_eagerly=True)
    for each in (model, reference):
        fit(each)
    assert_close(weights(model), weights(reference), terms_of(model, 8, steps=3))


def test_global_seeds_do_not_reach_the_noise_and_a_users_seed_does():
    def trained(**kwargs):
        model = private(sgd(**kwargs), compiled={"run_eagerly": True}, engine="loop")
        keras.utils.set_random_seed(1)
        model.train_on_batch(*data(2))
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
        ({"loss_scale_factor": 2.0}, "loss_scale_factor"),
        ({"noise": float("nan")}, "noise_multiplier"),
        ({"clip": 0.0}, "l2_norm_clip"),
        ({"num_microbatches": 0}, "num_microbatches"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        sgd(**options)


@pytest.mark.parametrize("mechanism", ["dpsgd", "matrix", "discrete_sgd"])
def test_a_private_class_is_made_once_from_a_plain_optimizer(mechanism):
    make = MECHANISMS[mechanism]
    made = make(keras.optimizers.Adagrad)
    assert made is make(keras.optimizers.Adagrad)
    assert issubclass(made, DPKerasOptimizer) and issubclass(made, keras.optimizers.Adagrad)
    for bad in (made, keras.optimizers.LossScaleOptimizer, int, "sgd"):
        with pytest.raises(TypeError):
            make(bad)


def test_the_seed_is_in_no_config():
    config = sgd(seed=123456).get_config()
    assert "seed" not in config and "123456" not in repr(config)
    again = tfdp.DPKerasSGDOptimizer.from_config(config)
    assert again.l2_norm_clip == 1.0 and not again.seeded
