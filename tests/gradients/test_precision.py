"""TensorFloat-32 is off before a GPU computes a norm, and stays as it is without a GPU."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import private
from tfdp.gradients.precision import keep_float32_products

enabled = tf.config.experimental.tensor_float_32_execution_enabled
enable = tf.config.experimental.enable_tensor_float_32_execution


@pytest.fixture
def devices(monkeypatch):
    before, found = enabled(), []
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: found)
    enable(True)
    yield found
    enable(before)


def test_without_a_gpu_nothing_changes(devices):
    keep_float32_products()
    assert enabled()


def test_it_is_off_at_every_step(devices):
    """Somebody turns it on again in the middle of a training."""
    devices.append("GPU:0")
    seen = []

    class Loss(keras.losses.MeanSquaredError):
        def call(self, y, predicted):
            seen.append(enabled())
            return super().call(y, predicted)

    turn_on = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: enable(True))
    model = private(compiled={"loss": Loss(), "metrics": [], "run_eagerly": True})
    x, y = np.zeros((8, 4), "float32"), np.zeros((8, 3), "float32")
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[turn_on])
    assert len(seen) >= 2
    assert not any(seen)
