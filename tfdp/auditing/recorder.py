"""Records what private steps really do: lots, bounded sums, gradients and weights of every step.

The recorder looks from outside: at the data that reach a training step, at what the optimizer is given,
at what it gives to the Keras update rule, and at the weights before and after. What the library says of
its noise is compared with these. (Two of its figures are used: the scale that SGLD reports, which can
only raise what is expected, and the noise that adaptive clipping leaves for the sum.)

A recording is a secret: it holds the training data and un-noised sums. Delete it after the replay.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from tfdp._compat.keras import decayed, watched_update
from tfdp._files import secret_folder
from tfdp.training.dp_model import PrivateTraining

ABOUT, MODEL, FINAL = "about.json", "model.keras", "final.npz"


@contextlib.contextmanager
def record(model, folder: str | os.PathLike) -> Iterator[None]:
    """Context in which every private step of a model is recorded into a secret folder.

    Recording copies all weights, sums and the lot of every step to files, so it is for short trainings
    of small models. It must not be kept, and nothing in it may be released.

    Args:
        model: a private model, compiled and built, that is not compiled with XLA.
        folder: the folder to make; it must not exist, or be empty.

    Raises:
        ValueError: the model cannot be recorded, or the folder is not empty.
        RuntimeError: the model was compiled anew inside the context.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> from tfdp import auditing
        >>> model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
        >>> model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.1), "mse")
        >>> x = np.random.default_rng(0).normal(size=(100, 2)).astype("float32")
        >>> with auditing.record(model, "recording"):
        ...     _ = model.fit(x, x[:, :1], batch_size=20, epochs=4, verbose=0)
        >>> auditing.replay("recording", significance=1e-9).passed
        True
    """
    if not isinstance(model, PrivateTraining) or not getattr(model, "compiled", False):
        raise ValueError(
            f"Expected a compiled private model. Received a {type(model).__name__} that is not one. "
            "Call tfdp.make_private(model) and model.compile first."
        )
    if not model.built:
        raise ValueError(
            "Expected a model that was built. Call it once on data, or give it an Input."
        )
    if model.jit_compile is True:
        raise ValueError(
            "Expected a model that is not compiled with XLA, which cannot call the recorder. Found "
            "jit_compile=True. Compile with jit_compile=False for the recording."
        )
    folder = secret_folder(folder)
    if os.listdir(folder):
        raise ValueError(f"Expected an empty folder for the recording. Found files in {folder}.")
    model.save(os.path.join(folder, MODEL))
    if model.privacy.watch is not None:
        raise ValueError("Expected one recording of a model at a time. Found another one running.")
    recorder = _Recorder(model, folder)
    with recorder.installed():
        try:
            yield
            recorder.whole = True
        finally:
            recorder.finish()


class _Recorder:
    """Writes one file for each step, and what the steps were accounted as.

    Args:
        model: the private model.
        folder: an existing folder.
    """

    def __init__(self, model, folder):
        self._model, self._folder, self._steps = model, folder, 0
        self._layout, self._lot, self._state, self._given = None, None, None, None
        self._run_ids, self._fits = [], []
        self._feed, self._fit = None, -1
        self._optimizer = model.optimizer
        self.whole = False  # whether the training ended without an exception

    @contextlib.contextmanager
    def installed(self):
        """Context in which the model's steps pass through this recorder."""
        model, optimizer = self._model, self._model.optimizer
        update = optimizer.update

        def watch(data):
            self._lot = data
            self._state = [tf.identity(v) for v in model.non_trainable_variables]

        def recorded_update(bounded, session, variables, regularization):
            before = [tf.identity(v) for v in variables]
            self._given = None
            iteration = tf.identity(optimizer.iterations)
            rate = tf.cast(tf.identity(optimizer.learning_rate), tf.float64)
            scale = update(bounded, session, variables, regularization)
            given = [] if self._given is None else self._given
            x, y, weight = keras.utils.unpack_x_y_sample_weight(self._lot)
            parts = {
                "x": x,
                "y": y,
                "weight": weight,
                "state": self._state,
                "sums": list(bounded.sums),
                "before": before,
                "given": list(given),
                "after": [tf.convert_to_tensor(v) for v in variables],
                "means": [tf.convert_to_tensor(v) for v in optimizer._secret_means()],
                "clip": tf.cast(bounded.l2_norm_clip, tf.float32),
                "penalty": [
                    tf.zeros(v.shape) if p is None else tf.cast(p, tf.float32)
                    for p, v in zip(regularization, variables, strict=True)
                ],
                "rate": rate,
                "iteration": tf.cast(iteration, tf.int64),
                "scale": tf.cast(scale, tf.float32),
                "counted": session.place + 1,
            }
            self._layout = {
                k: tf.nest.map_structure(lambda t: None, parts[k]) for k in ("x", "y", "weight")
            }
            run_id = session.run_id
            flat = [
                (k, _exact(t))
                for k, v in parts.items()
                for t in tf.nest.flatten(v)
                if t is not None
            ]
            names = [name for name, _ in flat]
            with tf.control_dependencies([tf.convert_to_tensor(v) for v in variables]):
                tf.numpy_function(
                    lambda *values: self._keep(run_id, names, values), [t for _, t in flat], []
                )
            return scale

        def given(gradients):
            self._given = [tf.identity(g) for g in gradients]

        model.privacy.watch = watch
        object.__setattr__(optimizer, "update", recorded_update)
        try:
            with watched_update(optimizer, given):
                model.train_function = None  # so that the next step is traced with the recorder
                yield
        finally:
            model.privacy.watch = None
            object.__delattr__(optimizer, "update")
            model.train_function = None

    def _keep(self, run_id, names, values):
        self._run_ids.append(run_id)
        self._note_fit()
        self._fits.append(self._fit)
        content = {
            f"{i:04d}.{name}": v for i, (name, v) in enumerate(zip(names, values, strict=True))
        }
        np.savez(os.path.join(self._folder, f"step_{self._steps:06d}.npz"), **content)
        self._steps += 1

    def _note_fit(self):
        """Counts calls of `fit`, and writes the keys of the examples that each draws from."""
        feed = self._model.privacy.training.feed
        if feed is not None and feed is self._feed:
            return
        self._feed, self._fit = feed, self._fit + 1
        lots = None if feed is None else feed.plan.lots
        if lots is not None:
            keys, filled = row_keys(lots.arrays(), len(keras.tree.flatten(lots.inputs)))
            path = os.path.join(self._folder, f"examples_{self._fit:06d}.npz")
            np.savez(path, keys=keys, filled=filled)

    def finish(self):
        """Writes what the recorded steps were accounted as."""
        model = self._model
        if model.optimizer is not self._optimizer:
            raise RuntimeError(
                "The model was compiled anew while it was recorded, so its later steps are not in the "
                "recording, which is not ended. Compile the model before."
            )
        final = {f"{i:04d}": _exact(v).numpy() for i, v in enumerate(model.trainable_variables)}
        np.savez(os.path.join(self._folder, FINAL), **final)
        about = {
            "steps": self._steps,
            "whole": self.whole,
            "layout": self._layout,
            "run_ids": self._run_ids,
            "fits": self._fits,
            "runs": {name: run.to_dict() for name, run in model.privacy.ledger.entries.items()},
            "engine": model.privacy.engine,
            "mean_factor": model.optimizer.mean_factor,
            "decayed": decayed(model.optimizer, model.trainable_variables),
            "trainable": [[*v.shape] for v in model.trainable_variables],
        }
        with open(os.path.join(self._folder, ABOUT), "w") as file:
            json.dump(about, file, indent=2)


def _exact(value):
    """A tensor in a type that NumPy's files have."""
    value = tf.convert_to_tensor(value)
    return tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value


def row_keys(leaves, inputs: int) -> tuple[np.ndarray, np.ndarray]:
    """A number for each row, equal for equal rows, and whether any of its features is not zero.

    Args:
        leaves: arrays [rows, ...] of inputs and then of targets.
        inputs: how many of them are inputs.

    Returns:
        (uint64 [rows], bool [rows]).
    """
    leaves = [np.ascontiguousarray(leaf) for leaf in leaves]
    rows = len(leaves[0])
    flat = [leaf.reshape(rows, -1).view(np.uint8).reshape(rows, -1) for leaf in leaves]
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in np.hstack(flat)]
    filled = [leaf.reshape(rows, -1).astype(bool).any(axis=1) for leaf in leaves[:inputs]]
    return np.frombuffer(b"".join(digests), np.uint64), np.any(filled, axis=0)
