"""Measures what states of an unfinished training cost: `python -m benchmarks.checkpoints`.

One training for each model, with the default settings of `BackupAndRestore`. Measured is the time
that the training waits for the callback, for reservations, states and hooks, and the time of a whole
step with the callback over that without, in turns.
"""

import argparse
import tempfile
import time

import keras
import numpy as np

import tfdp
from tfdp.callbacks import BackupAndRestore

# model, input shape, lot
CASES = (
    ("mlp", (28, 28, 1), 256),
    ("lenet5", (28, 28, 1), 256),
    ("bilstm", (64,), 64),
    ("resnet18", (32, 32, 3), 32),
)


class Clocked(BackupAndRestore):
    """Adds up the time that the training waits for it."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.waited, self.states, self.first = 0.0, 0, 0.0

    def _clocked(self, function, *arguments):
        started = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            self.waited += time.perf_counter() - started

    def begin(self, session):
        self._clocked(super().begin, session)
        self.first = self.first or self.waited

    def reserve(self):
        self._clocked(super().reserve)

    def on_train_batch_begin(self, batch, logs=None):
        self._clocked(super().on_train_batch_begin, batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        self._clocked(super().on_train_batch_end, batch, logs)

    def on_epoch_begin(self, epoch, logs=None):
        self._clocked(super().on_epoch_begin, epoch, logs)

    def _save(self):
        self.states += 1
        super()._save()


class Steps(keras.callbacks.Callback):
    """Stops after so many seconds, and counts the steps after the first ones."""

    def __init__(self, seconds):
        super().__init__()
        self._seconds, self._started, self.steps, self.took = seconds, None, 0, 0.0
        self.others = []

    def on_train_batch_end(self, batch, logs=None):
        if self._started is None:
            if batch >= 5:
                self._started = time.perf_counter()
                for each in self.others:
                    each.waited = 0.0
            return
        self.steps, self.took = self.steps + 1, time.perf_counter() - self._started
        if self.took > self._seconds:
            self.model.stop_training = True


def train(name, shape, lot, seconds, folder=None):
    rng = np.random.default_rng(0)
    n = 4 * lot
    tokens = len(shape) == 1
    x = rng.integers(0, 100, (n, *shape)) if tokens else rng.normal(size=(n, *shape))
    y = rng.integers(0, 2, n)
    model = tfdp.make_private(tfdp.models.build(name, shape, 2))
    model.compile(
        tfdp.DPKerasSGDOptimizer(
            l2_norm_clip=1.0, noise_multiplier=1.0, learning_rate=0.01, momentum=0.9
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    steps, backup = Steps(seconds), None
    callbacks = [steps]
    if folder is not None:
        backup = Clocked(folder)
        callbacks.append(backup)
        steps.others = [backup]
    lots = tfdp.data.make_lots(
        "poisson", x.astype("int32" if tokens else "float32"), y, lot_size=lot
    )
    model.fit(lots, epochs=1, steps_per_epoch=10**6, verbose=0, callbacks=callbacks)
    return steps, backup, model.count_params()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(
        "| model | weights | lot | first state | later states | the training waits | a step, with over "
        "without |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | --- |")
    for name, shape, lot in CASES:
        shares, ratios, first, states = [], [], [], 0
        for _ in range(options.rounds):
            plain, _, weights = train(name, shape, lot, options.seconds)
            with tempfile.TemporaryDirectory() as folder:
                kept, backup, _ = train(name, shape, lot, options.seconds, folder + "/b")
            shares.append(backup.waited / kept.took)
            ratios.append((kept.took / kept.steps) / (plain.took / plain.steps))
            first.append(backup.first)
            states += backup.states
        told = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        print(
            f"| {name} | {weights:,} | {lot} | {np.median(first):.2f} s | {states} | "
            f"{100 * np.median(shares):.2f}% "
            f"(at most {100 * max(shares):.2f}%) | {told} |",
            flush=True,
        )
        keras.utils.clear_session()


if __name__ == "__main__":
    main()
