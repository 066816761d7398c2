"""Saving and loading `.keras` files of private models restores everything, including the ledger."""

import copy
import importlib
import os
import pathlib
import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest
from helpers import LOSS, data, fit, plain, private, sgd, si_dpsgd, steps, weights
from keras import layers

import tfdp
from tfdp.accounting import Ledger
from tfdp.optimizers import make_dp_optimizer_class


@keras.saving.register_keras_serializable(package="tests")
class Registered(keras.Model):
    def __init__(self, units=3, **kwargs):
        super().__init__(**kwargs)
        self.units, self.out = units, layers.Dense(units)

    def build(self, shape):
        self.out.build(shape)

    def call(self, x):
        return self.out(x)

    def get_config(self):
        return super().get_config() | {"units": self.units}


@keras.saving.register_keras_serializable(package="tests")
class Mine(tfdp.DPModel):
    def __init__(self, units=3, **kwargs):
        super().__init__(**kwargs)
        self.units, self.out = units, layers.Dense(units)

    def build(self, shape):
        self.out.build(shape)

    def call(self, x):
        return self.out(x)

    def get_config(self):
        return super().get_config() | {"units": self.units}


def functional(cls):
    x = keras.Input((4,))
    return cls(x, layers.Dense(3)(x))


def built(model):
    model.build((None, 4))
    return model


MODELS = {
    "sequential": (plain, keras.Sequential),
    "functional": (lambda: functional(keras.Model), type(functional(keras.Model))),
    "subclassed": (lambda: built(Registered()), Registered),
    "DPSequential": (
        lambda: tfdp.DPSequential([keras.Input((4,)), layers.Dense(3)]),
        tfdp.DPSequential,
    ),
    "DPModel": (lambda: functional(tfdp.DPModel), tfdp.DPModel),
    "DPModel subclassed": (lambda: built(Mine()), Mine),
}


@pytest.mark.parametrize("kind", MODELS)
def test_models(kind, tmp_path):
    make, expected = MODELS[kind]
    model = private(model=make())
    fit(model)
    model.save(tmp_path / "a.keras")
    loaded = keras.models.load_model(tmp_path / "a.keras")
    assert isinstance(loaded, expected) and type(loaded).__name__ == type(model).__name__
    np.testing.assert_array_equal(weights(loaded), weights(model))
    if not isinstance(loaded, tfdp.DPModel | tfdp.DPSequential):
        assert type(loaded) is expected  # the file stores the class of the plain model
        with pytest.raises(RuntimeError, match="make_private"):
            loaded.fit(*data(), verbose=0)
        tfdp.make_private(loaded)
    assert loaded.privacy.ledger == model.privacy.ledger
    assert fit(loaded).history["accuracy"]
    assert [run.steps for run in loaded.privacy.ledger.runs] == [3, 3]


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_dp_optimizer_class(keras.optimizers.Adam)(l2_norm_clip=1, noise_multiplier=1),
        lambda: make_dp_optimizer_class(keras.optimizers.AdamW)(l2_norm_clip=1, noise_multiplier=1),
        lambda: sgd(momentum=0.9, num_microbatches=4),
        lambda: si_dpsgd(momentum=0.9, nesterov=True),
        lambda: si_dpsgd(rate=keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.5)),
        lambda: si_dpsgd(update_rule=keras.optimizers.Adam(0.01), guarantee="claimed"),
    ],
)
def test_optimizers(make, tmp_path):
    model = private(make())
    fit(model)
    model.save(tmp_path / "a.keras")
    loaded = tfdp.make_private(keras.models.load_model(tmp_path / "a.keras"))
    assert type(loaded.optimizer) is type(model.optimizer)
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for a, b in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert loaded.privacy.ledger == model.privacy.ledger
    fit(loaded)
    assert sum(run.steps for run in loaded.privacy.ledger.runs) == 6
    if getattr(model.privacy.current_run, "learning_rates", None) is not None:
        rates = [r for run in loaded.privacy.ledger.runs for r in run.schedule("learning_rates")]
        fit(model)
        alone = [r for run in model.privacy.ledger.runs for r in run.schedule("learning_rates")]
        np.testing.assert_allclose(rates, alone)


def test_a_restored_run_never_repeats_noise(tmp_path):
    def trained(model):
        before = weights(model)
        fit(model, rows=8)
        return weights(model) - before

    model = private(sgd(clip=1e-6, noise=1e6))  # the update is almost only noise
    trained(model)
    model.save(tmp_path / "a.keras")
    changes = [trained(model)]
    for _ in range(2):
        changes.append(trained(tfdp.make_private(keras.models.load_model(tmp_path / "a.keras"))))
    seeded = [private(sgd(clip=1e-6, noise=1e6, seed=3)) for _ in range(2)]
    changes.append(trained(seeded[0]))
    seeded[0].save(tmp_path / "b.keras")
    with keras.saving.custom_object_scope({}):
        seeded[1].load_weights(tmp_path / "b.keras")  # loads the optimizer with its iterations, too
    if seeded[1].optimizer.iterations.numpy():
        changes.append(trained(seeded[1]))
    for i, a in enumerate(changes):
        for b in changes[:i]:
            assert np.mean(np.isclose(a, b, rtol=1e-3)) < 0.2


def test_a_users_seed_is_in_no_file(tmp_path):
    seed = 987654321987
    model = private(sgd(seed=seed), seed=seed)
    fit(model)
    model.save(tmp_path / "a.keras")
    model.save_weights(tmp_path / "a.weights.h5")
    import zipfile

    contents = [(tmp_path / "a.weights.h5").read_bytes()]
    with zipfile.ZipFile(tmp_path / "a.keras") as archive:
        contents += [archive.read(name) for name in archive.namelist()]
    for form in (str(seed).encode(), seed.to_bytes(8, "little")):
        assert not any(form in content for content in contents)


def test_metrics_of_private_data_are_in_no_file(tmp_path):
    import h5py

    model = private()
    fit(model)
    model.save_weights(tmp_path / "a.weights.h5")
    names = []
    with h5py.File(tmp_path / "a.weights.h5") as content:
        content.visit(names.append)
    assert not any("metric" in name or "loss" in name for name in names)


def test_a_file_without_a_ledger_is_refused(tmp_path):
    model = plain()
    model.compile(keras.optimizers.SGD(), loss=LOSS)
    model.fit(*data(), verbose=0)
    store = {str(i): v.numpy() for i, v in enumerate(model.optimizer.variables)}
    private_model = private()
    fit(private_model)
    with pytest.raises(ValueError, match="no privacy ledger"):
        private_model.optimizer.load_own_variables(store)


def test_a_ledger_that_knows_less_is_not_loaded():
    model, store = private(), {}
    fit(model)
    model.optimizer.save_own_variables(store)
    earlier = Ledger()
    for run in model.privacy.ledger.runs:
        earlier.record(earlier.open(run), 1)
    store["tfdp_ledger"] = np.frombuffer(earlier.to_json().encode(), np.uint8)
    other = private()
    other.optimizer.build(other.trainable_variables)
    with pytest.raises(ValueError, match="has taken 3 steps, and its ledger knows of 1"):
        other.optimizer.load_own_variables(store)


@pytest.mark.filterwarnings("ignore:Skipping variable loading")
def test_slots_of_another_optimizer_are_left_out_and_its_ledger_is_not():
    model = private()
    fit(model)
    store = {}
    model.optimizer.save_own_variables(store)
    other = private(sgd(momentum=0.9))
    fit(other)
    before = [v.numpy() for v in other.optimizer.variables]
    other.optimizer.load_own_variables(store)
    for variable, value in zip(other.optimizer.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    assert [run.steps for run in other.privacy.ledger.runs] == [3, 3]


def _matrix(base):
    return tfdp.optimizers.make_matrix_optimizer_class(base)(
        l2_norm_clip=1.0, noise_multiplier=1.0, bands=2, steps=6
    )


# Update rules with and without slots; classes that exist only after a call; optimizers with variables
# of their own.
OPTIMIZERS = {
    "SGD": sgd,
    "Adam": lambda: tfdp.DPKerasAdamOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0),
    "adaptive": lambda: tfdp.DPKerasAdamOptimizer(
        l2_norm_clip=1.0, noise_multiplier=1.0, clipping="adaptive"
    ),
    "use_ema": lambda: sgd(use_ema=True),
    "Muon": lambda: make_dp_optimizer_class(keras.optimizers.Muon)(
        l2_norm_clip=1.0, noise_multiplier=1.0
    ),
    "Lion, correlated": lambda: _matrix(keras.optimizers.Lion),
    "Lamb, discrete": lambda: tfdp.optimizers.make_discrete_optimizer_class(keras.optimizers.Lamb)(
        l2_norm_clip=1.0, noise_multiplier=1.0
    ),
    "SI-DPSGD": lambda: si_dpsgd(momentum=0.9),
}


def _saved(model, folder):
    model.save(folder / "a.keras")
    return tfdp.make_private(keras.models.load_model(folder / "a.keras"))


COPIES = {
    "save": _saved,
    "pickle": lambda model, folder: pickle.loads(pickle.dumps(model)),
    "deepcopy": lambda model, folder: copy.deepcopy(model),
}


@pytest.mark.parametrize(
    ("kind", "how"),
    [("Adam", "save"), ("Adam", "deepcopy"), *((kind, "pickle") for kind in OPTIMIZERS)],
)
@pytest.mark.parametrize("trained", [False, True])
def test_models_are_copied_before_and_after_the_first_step(kind, how, trained, tmp_path):
    model = private(OPTIMIZERS[kind]())
    if trained:
        fit(model)
    copied = COPIES[how](model, tmp_path)
    assert copied.privacy.ledger == model.privacy.ledger
    if trained:
        for a, b in zip(copied.optimizer.variables, model.optimizer.variables, strict=True):
            np.testing.assert_array_equal(a, b)
    fit(copied)
    assert steps(copied) == (6 if trained else 3)
    assert steps(model) == (3 if trained else 0)


@pytest.mark.parametrize("built", [False, True])
def test_weights_that_were_saved_before_the_first_step_are_loaded(built, tmp_path):
    model = private(OPTIMIZERS["Adam"]())
    model.save_weights(tmp_path / "a.weights.h5")
    other = private(OPTIMIZERS["Adam"](), model=plain(seed=1))
    if built:
        fit(other)
    other.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(weights(other), weights(model))
    assert steps(other) == (3 if built else 0)  # what was spent stays spent
    fit(other)
    assert steps(other) == (6 if built else 3)


def test_weights_of_a_trained_model_are_loaded_before_the_first_step(tmp_path):
    model = private(OPTIMIZERS["Adam"]())
    fit(model)
    model.save_weights(tmp_path / "a.weights.h5")
    other = private(OPTIMIZERS["Adam"]())
    with pytest.warns(UserWarning, match="Skipping variable loading"):  # as in Keras
        other.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(weights(other), weights(model))
    assert other.privacy.ledger == model.privacy.ledger
    fit(other)
    assert [run.steps for run in other.privacy.ledger.runs] == [3, 3]


def test_an_optimizer_and_its_copy_count_each_step_once():
    model = private()
    fit(model)
    copied = pickle.loads(pickle.dumps(model.optimizer))
    assert type(copied) is type(model.optimizer) and copied.ledger == model.privacy.ledger
    model.compile(copied, LOSS)
    fit(model)
    assert [run.steps for run in model.privacy.ledger.runs] == [3, 3]


_OWN = """
import keras

class Mine(keras.optimizers.Adam):
    pass

class SGD(keras.optimizers.SGD):
    pass
"""
_IN_ANOTHER_PROCESS = """
import pickle, sys
from own_optimizers import *
model = pickle.load(open("model.pkl", "rb"))
optimizer = pickle.load(open("optimizer.pkl", "rb"))
assert isinstance(optimizer, eval(sys.argv[1])) and type(model.optimizer) is type(optimizer)
assert sum(run.steps for run in model.privacy.ledger.runs) == 3
assert optimizer.ledger == model.privacy.ledger
"""


@pytest.mark.parametrize("name", ["Mine", "SGD"])
def test_another_process_unpickles_an_optimizer_of_a_users_own(name, tmp_path, monkeypatch):
    (tmp_path / "own_optimizers.py").write_text(_OWN)
    monkeypatch.syspath_prepend(tmp_path)
    base = getattr(importlib.import_module("own_optimizers"), name)
    model = private(make_dp_optimizer_class(base)(l2_norm_clip=1.0, noise_multiplier=1.0))
    fit(model)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    (tmp_path / "optimizer.pkl").write_bytes(pickle.dumps(model.optimizer))
    root = pathlib.Path(tfdp.__file__).resolve().parents[1]
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _IN_ANOTHER_PROCESS, name],
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(tmp_path)])},
    )


def test_a_users_class_does_not_take_the_place_of_keras_own_of_its_name():
    class SGD(keras.optimizers.SGD):
        pass

    assert make_dp_optimizer_class(SGD) is not tfdp.DPKerasSGDOptimizer
    config = keras.saving.serialize_keras_object(sgd())
    assert type(keras.saving.deserialize_keras_object(config)) is tfdp.DPKerasSGDOptimizer


def test_loading_never_takes_a_ledger_back(tmp_path):
    model = private()
    fit(model)
    model.save_weights(tmp_path / "a.weights.h5")
    fit(model)
    model.load_weights(tmp_path / "a.weights.h5")
    assert sum(run.steps for run in model.privacy.ledger.runs) == 6


class _Interrupted(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise InterruptedError


def test_backup_and_restore_goes_on_as_in_keras_and_counts_each_step_once(tmp_path):
    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path)

    def model():
        options = {"l2_norm_clip": 1e6, "noise_multiplier": 0.0, "learning_rate": 0.1}
        return private(tfdp.DPKerasAdamOptimizer(**options))

    alone = model()
    fit(alone, epochs=4)
    first = model()
    with pytest.raises(InterruptedError):
        fit(first, epochs=4, callbacks=[backup(), _Interrupted()])
    second = model()
    history = fit(second, epochs=4, callbacks=[backup()])
    assert history.epoch == [2, 3] and int(second.optimizer.iterations) == 12
    np.testing.assert_allclose(weights(second), weights(alone), rtol=1e-5, atol=1e-6)
    assert [run.steps for run in second.privacy.ledger.runs] == [6, 6]


def test_the_best_weights_are_restored_with_their_ledger():
    model = private(sgd(noise=0.0, clip=1e6, rate=0.1))
    x, y = data()
    before = weights(model)
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    # Training on other labels than those of the validation soon makes the validation worse.
    model.fit(
        *(x, (y + 1) % 3),
        batch_size=8,
        shuffle=False,
        verbose=0,
        epochs=20,
        validation_data=(x, y),
        callbacks=[stopping],
    )
    assert stopping.stopped_epoch > stopping.best_epoch and not np.array_equal(
        weights(model), before
    )
    assert model.privacy.steps_taken == 3 * (stopping.stopped_epoch + 1)  # also those undone
    assert steps(model) == 60  # of all epochs that were planned
    again = private(sgd(noise=0.0, clip=1e6, rate=0.1))
    again.fit(
        x, (y + 1) % 3, batch_size=8, shuffle=False, verbose=0, epochs=stopping.best_epoch + 1
    )
    np.testing.assert_allclose(weights(model), weights(again), rtol=1e-5, atol=1e-6)
