"""Small private models and data for the tests of training."""

import io
import pathlib
import pickle
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from tensorflow.python.framework.test_util import IsMklEnabled

import tfdp
from tests.seeds import seed_keras
from tfdp._compat import float32_products
from tfdp.gradients import norms
from tfdp.noise import philox

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
# On a CPU, TensorFlow computes gradients of grouped and of dilated convolutions, and convolutions with
# channels_first, with oneDNN only. (`tests/conftest.py` asks for it on x86.)
EVERY_CONVOLUTION = IsMklEnabled() or bool(tf.config.list_physical_devices("GPU"))
needs_every_convolution = pytest.mark.skipif(
    not EVERY_CONVOLUTION, reason="TensorFlow lacks this convolution on a CPU without oneDNN"
)


def take_gpu_paths(monkeypatch):
    """From now on, what computes otherwise on a GPU does so here."""
    for module in (float32_products, norms, philox):
        monkeypatch.setattr(module, "on_gpu", lambda: True)
    monkeypatch.setattr(philox, "on_plain_cpu", lambda: False)


class Rows:
    """A source of one's own: an object that returns a row by its index."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def data(rows=24, seed=0):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(rows, 4)).astype("float32"), draw.integers(0, 3, rows)


def plain(seed=0):
    seed_keras(seed)
    return keras.Sequential(
        [keras.Input((4,)), layers.Dense(5, activation="tanh"), layers.Dense(3)]
    )


def sgd(noise=1.0, clip=1.0, rate=0.5, **kwargs):
    return tfdp.DPKerasSGDOptimizer(
        l2_norm_clip=clip, noise_multiplier=noise, learning_rate=rate, **kwargs
    )


def si_dpsgd(noise=1.0, clip=1.0, rate=0.5, **kwargs):
    return tfdp.SIDPSGDOptimizer(
        l2_norm_clip=clip, noise_multiplier=noise, learning_rate=rate, **kwargs
    )


def private(optimizer=None, model=None, compiled=None, **kwargs):
    """Returns a private model, compiled without metrics, which take time to trace.

    `compiled` goes to compile, `kwargs` to make_private.
    """
    made = tfdp.make_private(plain() if model is None else model, **kwargs)
    made.compile(sgd() if optimizer is None else optimizer, **({"loss": LOSS} | (compiled or {})))
    return made


def fit(model, epochs=1, rows=24, **kwargs):
    """Trains with lots of 8 in fixed order, three in an epoch."""
    options = {"batch_size": 8, "shuffle": False, "verbose": 0} | kwargs
    return model.fit(*data(rows), epochs=epochs, **options)


def weights(model):
    return np.concatenate([w.ravel() for w in model.get_weights()])


def steps(model):
    """Returns the number of private steps in the ledger."""
    return sum(run.steps for run in model.privacy.ledger.runs)


def clipped_sum(model, x, y, clip):
    """Returns the sum of clipped gradients, by a plain tape over one example at a time."""
    total = 0.0
    for row in range(len(x)):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(
                x[row : row + 1], y[row : row + 1], model(x[row : row + 1], training=True)
            )
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        flat = np.concatenate([tf.convert_to_tensor(g).numpy().ravel() for g in gradients])
        total = total + flat * min(1.0, clip / np.linalg.norm(flat))
    return total


def arrays_in(path):
    """Yields the bytes of every file, every archive member and every HDF5 array in a folder."""
    for file in sorted(pathlib.Path(path).rglob("*")):
        if file.is_dir():
            continue
        content = file.read_bytes()
        yield content
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                for name in archive.namelist():
                    content = archive.read(name)
                    yield content
                    if name.endswith(".h5"):
                        yield from _in_h5(io.BytesIO(content))
        elif content[:4] == b"\x89HDF":
            yield from _in_h5(file)


def _in_h5(file):
    found = []
    with h5py.File(file) as content:
        content.visititems(
            lambda _, item: found.append(item[()]) if isinstance(item, h5py.Dataset) else None
        )
    return [np.asarray(item).tobytes() for item in found]


def _checkpoint(model, folder):
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(folder / "ckpt"))


def _with_callback(make):
    def save(model, folder):
        model.fit(*data(), batch_size=8, verbose=0, callbacks=[make(folder)])

    return save


# All ways to write a model into a folder.
SAVES = {
    "save": lambda m, f: m.save(f / "m.keras"),
    "save_weights": lambda m, f: m.save_weights(f / "m.weights.h5"),
    "checkpoint": _checkpoint,
    "export": lambda m, f: m.export(str(f / "saved"), verbose=False),
    "tfdp.export": lambda m, f: tfdp.export(m, f / "m.keras"),
    "pickle": lambda m, f: (f / "m.pickle").write_bytes(pickle.dumps(m)),
    "ModelCheckpoint": _with_callback(lambda f: keras.callbacks.ModelCheckpoint(f / "m.keras")),
}
