"""TensorFloat-32 is off before a GPU computes a norm, and stays as it is without a GPU."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.gradients.precision import keep_float32_products


@pytest.fixture
def devices(monkeypatch):
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    found = []
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: found)
    tf.config.experimental.enable_tensor_float_32_execution(True)
    yield found
    tf.config.experimental.enable_tensor_float_32_execution(before)


def test_without_a_gpu_nothing_changes(devices):
    keep_float32_products()
    assert tf.config.experimental.tensor_float_32_execution_enabled()


def test_with_a_gpu_it_is_turned_off(devices):
    devices.append("GPU:0")
    keep_float32_products()
    assert not tf.config.experimental.tensor_float_32_execution_enabled()


def compiled():
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    optimizer = tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    model.compile(optimizer, loss="mse", run_eagerly=True)
    return model


def test_it_is_off_at_every_step(devices):
    """Somebody turns it on again in the middle of a training."""
    devices.append("GPU:0")
    seen = []

    class Loss(keras.losses.MeanSquaredError):
        def call(self, y, predicted):
            seen.append(tf.config.experimental.tensor_float_32_execution_enabled())
            return super().call(y, predicted)

    class TurnsItOn(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            tf.config.experimental.enable_tensor_float_32_execution(True)

    model = compiled()
    model.compile(model.optimizer, Loss(), run_eagerly=True)
    x, y = np.zeros((12, 3), "float32"), np.zeros((12, 2), "float32")
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[TurnsItOn()])
    assert len(seen) >= 3
    assert not any(seen)


def test_training_turns_it_off(devices):
    devices.append("GPU:0")
    model = compiled()
    model.train_on_batch(np.zeros((4, 3), "float32"), np.zeros((4, 2), "float32"))
    assert not tf.config.experimental.tensor_float_32_execution_enabled()
