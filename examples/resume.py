"""A job on preemptible machines of a cloud: `python examples/resume.py`.

Start the same program again, and the training resumes. Steps that are lost by a kill stay counted. Here
the program sends the signal to itself, in the middle of its training.
"""

import os
import signal
import sys
import tempfile

import keras
import numpy as np

import tfdp

# Your job has one folder on a disk that outlives the machine. It is as secret as the data.
folder = os.environ.setdefault("BACKUP", os.path.join(tempfile.mkdtemp(), "backup"))
first = not os.path.exists(folder)

rng = np.random.default_rng(0)
x = rng.normal(size=(1000, 8)).astype("float32")
y = (x[:, :1] > 0).astype("float32")
model = tfdp.make_private(keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)]))
optimizer = tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.5, learning_rate=0.5)
loss = keras.losses.BinaryCrossentropy(from_logits=True)
model.compile(optimizer, loss, metrics=[keras.metrics.BinaryAccuracy(threshold=0.0, name="hits")])


def preempt(step, logs):
    """Ends the machine, as the cloud would, after 25 of the 60 steps."""
    if first and model.privacy.steps_taken == 25:
        os.kill(os.getpid(), signal.SIGTERM)


backup = tfdp.callbacks.BackupAndRestore(folder)
callbacks = [backup, keras.callbacks.LambdaCallback(on_train_batch_end=preempt)]
try:
    model.fit(x[:900], y[:900], batch_size=90, epochs=6, verbose=0, callbacks=callbacks)
except SystemExit:
    print(f"interrupted after {model.privacy.steps_taken} steps")
    os.execv(sys.executable, [sys.executable, __file__])  # the same command again
hits = model.evaluate(x[900:], y[900:], return_dict=True, verbose=0)["hits"]
print(f"resumed {backup.restarts} time, {backup.lost_steps} steps lost, accuracy {hits:.1%}")
print(model.privacy.spent(delta=1e-4))
