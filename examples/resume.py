"""A job that may be killed at any time: `python examples/resume.py`, then the same command again.

The backup holds weights, optimizer, ledger and the place in the data. Steps that a kill loses stay
counted. This program interrupts itself once, to show it.
"""

import os
import shutil
import signal
import tempfile

import keras
import numpy as np

import tfdp


class Interrupt(keras.callbacks.Callback):
    """Sends Ctrl-C in the third epoch; a cloud sends SIGTERM, or just kills."""

    def on_epoch_end(self, epoch, logs=None):
        """Interrupts the third epoch."""
        if epoch == 2:
            os.kill(os.getpid(), signal.SIGINT)


def train(folder, *callbacks):
    """The whole job; it does not know whether it runs for the first time."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 8)).astype("float32")
    y = (x[:, :1] > 0).astype("float32")
    model = tfdp.make_private(keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)]))
    optimizer = tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.5, learning_rate=0.5)
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
    backup = tfdp.callbacks.BackupAndRestore(folder)  # as secret as the data
    model.fit(x, y, batch_size=100, epochs=6, verbose=0, callbacks=[backup, *callbacks])
    return model


folder = os.path.join(tempfile.mkdtemp(), "backup")
try:
    train(folder, Interrupt())
except KeyboardInterrupt:
    print("interrupted after three epochs; the same call resumes")
model = train(folder)
print(f"{model.privacy.steps_taken} steps, {model.privacy.spent(delta=1e-4)}")
shutil.rmtree(os.path.dirname(folder))
