"""Trains the same on one device, and on several logical ones or machines: a program of its own.

    python -m tests.training.replica_cases DEVICES CASE...

TensorFlow divides the CPU before it starts only. The output has one line for each case: a JSON object
with its name and what differed, or null. With TF_CONFIG, each machine has one device.
"""

import contextlib
import functools
import hashlib
import json
import os
import sys
import tempfile
import traceback
from contextlib import nullcontext
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.rounding import assert_close, terms_of
from tests.seeds import seed_keras
from tfdp.training import training
from tfdp.training.replicas import copies_of

ROWS, DEVICES = 50, 4
_DRAW = np.random.default_rng(0)
X = _DRAW.normal(size=(ROWS, 4)).astype("float32")
Y = _DRAW.integers(0, 3, ROWS)
PUBLIC = _DRAW.normal(size=(12, 4)).astype("float32")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def net(*inner):
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(5), *inner, keras.layers.Dense(3)]
    )


def with_dropout():
    return net(keras.layers.Dropout(0.3, seed=1))


def sgd(kind=tfdp.DPKerasSGDOptimizer, **more):
    options = {"l2_norm_clip": 1.0, "noise_multiplier": 0.5, "learning_rate": 0.1, "seed": 3}
    return kind(**(options | more))


def matrix():
    return sgd(tfdp.optimizers.MatrixDPSGDOptimizer, bands=3, steps=10)


def si_dpsgd(**more):
    return sgd(tfdp.SIDPSGDOptimizer, **({"momentum": 0.9} | more))


def averaged(**more):
    return sgd(use_ema=True, ema_overwrite_frequency=2, **more)


def on_lots(sampling, epochs=2, f=None, **options):
    def fit(model, **more):
        lots = tfdp.data.make_lots(sampling, X, Y, seed=7, **({"lot_size": 10} | options))
        lots._view_words = lots._words  # else they are secret, and differ
        lots = lots if f is None else lots.map(f)
        return model.fit(lots, epochs=epochs, verbose=0, **more).history

    return fit


def on_arrays(model, **options):
    return model.fit(X, Y, **({"batch_size": 9, "epochs": 2, "verbose": 0} | options)).history


def on_batches(batches):
    return lambda model: model.fit(batches(), epochs=2, verbose=0, shuffle=False).history


def pairs():
    for first in range(0, ROWS, 9):
        yield X[first : first + 9], Y[first : first + 9]


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return [*pairs()][index]


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(9)


def one_by_one(model):
    """After the first step one replica's copy is changed, and the third one has to mend it."""
    training._BETWEEN = 3
    found = []
    for i in (0, 7, 14):
        found.append(model.train_on_batch(X[i : i + 7], Y[i : i + 7], return_dict=True))
        if i == 0:
            _change_a_copy(model)
    return _columns(found)


def own_loop(model):
    return _columns(model.privacy.steps(X, Y, batch_size=9, epochs=2))


def _columns(logs):
    logs = [*logs]
    return {name: [each[name] for each in logs] for name in logs[0]}


def and_evaluated(model):
    return on_arrays(model) | evaluations(model, 33)


def evaluated(model):
    found = on_arrays(model, epochs=1, validation_data=(X[:33], Y[:33]), validation_batch_size=16)
    return found | evaluations(model, 1, 5, 33)


def evaluations(model, *sizes):
    """Of shares of unequal size, or without rows."""
    found = {}
    for rows in sizes:
        x, y = X[:rows], Y[:rows]
        source = tfdp.data.as_source((x, y))
        found[f"evaluate {rows}"] = model.evaluate(x, y, batch_size=8, verbose=0)
        found[f"source {rows}"] = model.evaluate(source, batch_size=8, verbose=0)
        found[f"predict {rows}"] = model.predict(x, batch_size=8, verbose=0)
    return found


def drifted(model):
    """One replica's copy is changed, and the end of the epoch has to mend it."""

    def drift(epoch, logs):
        if epoch == 1:
            _change_a_copy(model)

    callback = keras.callbacks.LambdaCallback(on_epoch_begin=drift)
    return on_arrays(model, callbacks=[callback])


def _change_a_copy(model):
    for copy in getattr(model.trainable_variables[0].value, "values", [])[1:2]:
        copy.assign_add(tf.fill(copy.shape, 1e-7))


def tuned(example, seed):
    return example[0] + tf.random.stateless_normal([4], seed), example[1]


def public():
    return tfdp.fix(net(keras.layers.BatchNormalization()), PUBLIC)


def private_statistics():
    return net(tfdp.layers.PrivateBatchNormalization())


def recurrent():
    inner = [keras.layers.Reshape((5, 1)), keras.layers.LSTM(3, dropout=0.2, seed=3)]
    return net(*inner)


def random():
    inner = [tfdp.layers.NoisyDense(5, noise_stddev=0.1, seed=4), keras.layers.GaussianNoise(0.3)]
    return net(*inner)


def penalized():
    return net(keras.layers.Dense(5, kernel_regularizer="l2"))


EAGER = {"run_eagerly": True}
USERS = {"privacy_ids": np.arange(ROWS) % 23, "examples_per_person": 3, "lot_size": 6}
SOME = np.where(np.arange(ROWS) < 30, 0.0, 1.0)
CASES = {
    "together": {
        "optimizer": lambda: averaged(clipping="adaptive"),
        "model": with_dropout,
        "fit": and_evaluated,
    },
    "adaptive": {"optimizer": lambda: sgd(clipping="adaptive"), "model": with_dropout},
    "matrix": {"optimizer": matrix, "fit": on_lots("cyclic_poisson", groups=3)},
    "si_dpsgd": {"optimizer": si_dpsgd, "fit": on_lots("cyclic")},
    "smaller": {"optimizer": averaged, "fit": on_lots("poisson", 1, lot_size=2)},
    "evaluated": {"fit": evaluated},
    "one_by_one": {"fit": one_by_one},
    "drifted": {"fit": drifted},
    "own_loop": {"fit": own_loop, "model": with_dropout},
    "adam": {"optimizer": lambda: sgd(tfdp.DPKerasAdamOptimizer, clipping="per_layer")},
    "update_rule": {
        "optimizer": lambda: tfdp.SIDPSGDOptimizer(
            l2_norm_clip=1.0,
            noise_multiplier=0.5,
            update_rule=keras.optimizers.Adam(0.01),
            guarantee="claimed",
            seed=3,
        ),
        "fit": on_lots("cyclic"),
    },
    "discrete": {"optimizer": lambda: sgd(tfdp.DiscreteSGDOptimizer, codebook_size=50)},
    "laplace": {"optimizer": lambda: sgd(tfdp.DiscreteSGDOptimizer, noise="laplace", encode=False)},
    "sgld": {"optimizer": lambda: sgd(tfdp.SGLDOptimizer, num_examples=ROWS)},
    "dp_dropout": {"optimizer": lambda: sgd(tfdp.DPDropoutOptimizer)},
    "microbatches": {
        "optimizer": lambda: sgd(num_microbatches=5),
        "fit": on_lots("poisson", microbatch_size=2),
    },
    "augmented": {"fit": on_lots("poisson", augmentations=3, f=tuned)},
    "users": {"fit": on_lots("poisson", **USERS)},
    "physical": {
        "fit": lambda model: on_arrays(model, batch_size=14),
        "private": {"physical_batch_size": 3},
    },
    "lot_of_one": {"fit": on_lots("cyclic", 1, lot_size=1)},
    "allocation": {"fit": on_lots("random_allocation")},
    "shuffled": {"fit": on_lots("shuffle"), "compiled": {"steps_per_execution": 3}},
    "fixed_size": {"fit": on_lots("fixed_size", 1), "compiled": EAGER},
    "weighted": {"fit": lambda model: on_arrays(model, sample_weight=SOME)},
    "in_order": {"fit": lambda model: on_arrays(model, shuffle=False)},
    "dataset": {"fit": on_batches(dataset)},
    "dataset_in_microbatches": {
        "optimizer": lambda: sgd(num_microbatches=3),
        "fit": on_batches(dataset),
    },
    "generator": {"fit": lambda model: model.fit(pairs(), epochs=1, verbose=0).history},
    "pydataset": {"fit": on_batches(Batches)},
    "evaluated_eagerly": {"fit": evaluated, "compiled": EAGER},
    "public": {"model": public},
    "private_statistics": {"model": private_statistics},
    "recurrent": {"model": recurrent},
    "random": {"model": random},
    "penalized": {"model": penalized},
}


def resumed(case):
    """The case with a fit that is interrupted after four steps and resumed in another model."""

    def stop(model, batch, logs):
        if model.privacy.steps_taken == 4:
            raise KeyboardInterrupt

    def made(devices):
        with tempfile.TemporaryDirectory() as folder:
            backup = functools.partial(tfdp.callbacks.BackupAndRestore, folder, save_freq=1)

            def interrupted(model):
                end = keras.callbacks.LambdaCallback(
                    on_train_batch_end=functools.partial(stop, model)
                )
                with contextlib.suppress(KeyboardInterrupt):
                    case["fit"](model, callbacks=[backup(), end])
                return {}

            trained(devices, **case | {"fit": interrupted})
            again = lambda model: case["fit"](model, callbacks=[backup()])  # noqa: E731
            return trained(devices, **case | {"fit": again})

    return made


@functools.cache
def strategy(devices):
    if "TF_CONFIG" in os.environ:
        return tf.distribute.MultiWorkerMirroredStrategy()
    # Other reductions of TensorFlow remember the devices of the first strategy.
    reduction = tf.distribute.ReductionToOneDevice()
    names = [f"CPU:{i}" for i in range(devices)]
    return tf.distribute.MirroredStrategy(names, cross_device_ops=reduction)


def trained(devices, optimizer=sgd, model=net, fit=on_arrays, compiled=None, private=None):
    """Returns (model, logs) of a training on so many devices."""
    with contextlib.nullcontext() if devices == 1 else strategy(devices).scope():
        seed_keras(0)
        made = tfdp.make_private(model(), seed=5, **(private or {}))
        made.compile(optimizer(), LOSS, **({"metrics": ["accuracy"]} | (compiled or {})))
    return made, fit(made)


def compare(made, devices):
    """Compares weights, logs, diagnostics and ledger, and the replicas' copies bit for bit."""
    (one, logs), (several, other) = made(1), made(devices)
    terms = terms_of(one, ROWS, steps=max(1, one.privacy.steps_taken))
    for a, b in zip(one.get_weights(), several.get_weights(), strict=True):
        assert_close(b, a, terms, max(1.0, np.max(np.abs(a), initial=0)))
    for name, values in logs.items():
        assert_close(other[name], values, terms, max(1.0, np.max(np.abs(values))), message=name)
    figures = one.privacy.diagnostics(), several.privacy.diagnostics()
    for a, b in zip(*(figure.values() for figure in figures), strict=True):
        assert_close(b, a, terms, max(1.0, abs(a)))
    assert one.privacy.ledger.runs[0].steps == several.privacy.ledger.runs[0].steps
    if devices > 1:
        for variable in [*several.trainable_variables, *several.optimizer.variables]:
            first, *others = getattr(variable.value, "values", [variable])
            for copy in others:
                np.testing.assert_array_equal(copy.numpy(), first.numpy())


def refuses(kind, match, fit):
    """A case that several machines refuse before the first step."""

    def checked(devices):
        made = []
        with pytest.raises(kind, match=match):
            trained(devices, fit=lambda model: made.append(model) or fit(model))
        assert made[0].privacy.ledger.runs == []

    return checked


def on_machine():
    return json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def other_data(model):
    rows = ROWS - on_machine()
    return model.fit(X[:rows], Y[:rows], batch_size=10, verbose=0)


def other_people(model):
    ids = np.roll(np.arange(ROWS) // 2, on_machine())
    people = {"privacy_ids": ids, "examples_per_person": 2}
    return model.fit(tfdp.data.make_lots("poisson", X, Y, lot_size=6, **people), verbose=0)


def other_weights(model):
    model.layers[0].bias.assign(np.full(5, on_machine()))
    return on_arrays(model)


def other_rate(model):
    model.optimizer.learning_rate = 0.1 + on_machine()
    return on_arrays(model)


def in_equal_shards(model):
    lots = tfdp.data.make_lots("poisson", X[:25], Y[:25], lot_size=10, shard_of=50)
    return model.fit(lots, verbose=0)


def of_shard(model, total=ROWS):
    part = slice(30) if on_machine() else slice(30, ROWS)
    lots = tfdp.data.make_lots("poisson", X[part], Y[part], lot_size=10, shard_of=total)
    return model.fit(lots, verbose=0).history


def deviation(devices):
    """Secret noise has the nominal deviation, and all copies have it; later steps trace nothing."""
    with strategy(devices).scope():
        model = keras.Sequential([keras.Input((100,)), keras.layers.Dense(100, use_bias=False)])
        made = tfdp.make_private(model)
        made.compile(sgd(noise_multiplier=2.0, learning_rate=1.0, seed=None), "mse")
    before = made.get_weights()[0]
    zeros = np.zeros((16, 100), "float32")  # whose gradients are zero
    made.train_on_batch(zeros, zeros)
    with mock.patch.object(tf, "function", side_effect=AssertionError("traced again")):
        for _ in range(3):
            made.train_on_batch(zeros, zeros)
    assert made.privacy.ledger.runs[0].steps == 4
    found = np.std(made.get_weights()[0] - before) / np.sqrt(4)
    assert 0.95 < found / (2.0 / 16) < 1.05, found  # of 10,000 draws: seven deviations
    assert copies_of(made)()


def outside(devices):
    """An optimizer or a model of one device is refused: replicas have no copies of its variables."""
    several = strategy(devices)
    for of_model, of_optimizer in ((several.scope, nullcontext), (nullcontext, several.scope)):
        with of_optimizer():
            optimizer = sgd()
        with of_model():
            model = tfdp.make_private(net())
        with several.scope():
            model.compile(optimizer, LOSS)
        with pytest.raises(ValueError, match="outside of the strategy's scope"):
            on_arrays(model)


def shared(devices):
    """A strategy whose replicas share one copy of the weights is refused."""
    names = [f"CPU:{i}" for i in range(devices)]
    kind = tf.distribute.experimental.CentralStorageStrategy
    with kind(names, parameter_device="CPU:0").scope():
        model = tfdp.make_private(net())
        model.compile(sgd(), LOSS)
    with pytest.raises(NotImplementedError, match="CentralStorageStrategy cannot"):
        on_arrays(model)


def again(devices):
    """A fit that is interrupted and resumed in one process counts once on every machine."""
    cluster = json.dumps(json.loads(os.environ["TF_CONFIG"])["cluster"])
    folder = os.path.join(tempfile.gettempdir(), hashlib.sha256(cluster.encode()).hexdigest())

    def fit(model, at=None):
        def end(batch, logs):
            if model.privacy.steps_taken == at:
                raise KeyboardInterrupt

        backup = tfdp.callbacks.BackupAndRestore(folder, save_freq=1)
        end = keras.callbacks.LambdaCallback(on_train_batch_end=end)
        with contextlib.suppress(KeyboardInterrupt):
            on_lots("shuffle")(model, callbacks=[backup, end])

    model, _ = trained(devices, fit=lambda model: fit(model, at=4))
    fit(model)
    assert [run.steps for run in model.privacy.ledger.runs] == [10]


CHECKS = {
    "deviation": deviation,
    "outside": outside,
    "shared": shared,
    "again": again,
}
REFUSALS = {
    "other_data": refuses(ValueError, "have different examples", other_data),
    "other_people": refuses(ValueError, "disagree on the ids of people. Run", other_people),
    "equal_shards": refuses(ValueError, "have the same examples", in_equal_shards),
    "other_weights": refuses(ValueError, "disagree on the weights. Run", other_weights),
    "other_rate": refuses(ValueError, "disagree on the learning rate. Run", other_rate),
    "wrong_shards": refuses(ValueError, "have 50 examples", lambda m: of_shard(m, total=51)),
    "own_batches": refuses(NotImplementedError, "Pass arrays", on_batches(dataset)),
}


def main(devices, *names):
    if "TF_CONFIG" not in os.environ:
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * DEVICES
        tf.config.set_logical_device_configuration(cpu, logical)
    strategy(int(devices))  # collective operations have to be configured first
    if planted := os.environ.get("TFDP_PLANTED_FAULT"):
        from tests.faults import FAULTS

        FAULTS[planted].plant(setattr)
    checks = CHECKS | REFUSALS
    for name in names:
        case = CASES.get(name.removeprefix("resumed_"), {})
        made = resumed(case) if name.startswith("resumed_") else functools.partial(trained, **case)
        difference = None
        try:
            checks[name](int(devices)) if name in checks else compare(made, int(devices))
        except Exception:
            difference = traceback.format_exc()[-3000:]
        print(json.dumps({name: difference}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
