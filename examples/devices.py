"""Training on several devices or machines: `python examples/devices.py`.

On a machine without GPUs, the CPU is divided into two devices. On several machines, run it on each of
them with TF_CONFIG. The weights are those of one device, apart from rounding.
"""

import os

import keras
import numpy as np
import tensorflow as tf

import tfdp

if "TF_CONFIG" in os.environ:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
else:
    if not tf.config.list_physical_devices("GPU"):
        halves = [tf.config.LogicalDeviceConfiguration()] * 2
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, halves)
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    strategy = tf.distribute.MirroredStrategy([device.name for device in devices])

rng = np.random.default_rng(0)  # every machine has the same data
x = rng.normal(size=(1000, 8)).astype("float32")
y = (x[:, :1] > 0).astype("float32")

keras.utils.set_random_seed(0)
with strategy.scope():
    model = tfdp.make_private(keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)]))
    optimizer = tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.5, learning_rate=0.5)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])

model.fit(x[:800], y[:800], batch_size=80, epochs=5, verbose=0)
found = model.evaluate(x[800:], y[800:], verbose=0, return_dict=True)
spent = model.privacy.spent(delta=1e-4)
print(f"{strategy.num_replicas_in_sync} devices: accuracy {found['accuracy']:.1%}, {spent}")
