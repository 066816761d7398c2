"""Saving and loading private models restores everything, including the ledger."""

import copy
import pickle
import zipfile

import h5py
import keras
import numpy as np
import pytest
from helpers import LOSS, data, sgd, si_dpsgd, steps, weights
from keras import layers

import tfdp
from tests.training.small import linear, small, train
from tfdp.optimizers import make_dp_optimizer_class


class _Dense(keras.Model):
    def __init__(self, units=3, **kwargs):
        super().__init__(**kwargs)
        self.units, self.out = units, layers.Dense(units)
        self.build((None, 4))

    def build(self, shape):
        self.out.build(shape)
        self.built = True

    def call(self, x):
        return self.out(x)

    def get_config(self):
        return {"units": self.units, "name": self.name}


@keras.saving.register_keras_serializable(package="tests")
class Registered(_Dense):
    pass


@keras.saving.register_keras_serializable(package="tests")
class Mine(tfdp.DPModel, _Dense):
    pass


def functional(cls):
    x = keras.Input((4,))
    return cls(x, layers.Dense(3)(x))


MODELS = {
    "sequential": (linear, keras.Sequential),
    "functional": (lambda: functional(keras.Model), type(functional(keras.Model))),
    "subclassed": (Registered, Registered),
    "DPModel subclassed": (Mine, Mine),
}


@pytest.mark.parametrize("kind", MODELS)
def test_models(kind, tmp_path):
    make, expected = MODELS[kind]
    model = small(model=make(), compiled={"metrics": ["accuracy"]})
    train(model)
    model.save(tmp_path / "a.keras")
    loaded = keras.models.load_model(tmp_path / "a.keras")
    assert isinstance(loaded, expected) and type(loaded).__name__ == type(model).__name__
    np.testing.assert_array_equal(weights(loaded), weights(model))
    if not isinstance(loaded, tfdp.DPModel | tfdp.DPSequential):
        assert type(loaded) is expected  # the file stores the class of the plain model
        with pytest.raises(RuntimeError, match="make_private"):
            loaded.fit(*data(8), verbose=0)
        tfdp.make_private(loaded)
    assert loaded.privacy.ledger == model.privacy.ledger
    assert train(loaded).history["accuracy"]
    assert [run.steps for run in loaded.privacy.ledger.runs] == [2, 2]


# Update rules with and without slots; classes that exist only after a call; optimizers with variables
# of their own.
OPTIMIZERS = {
    "Adam, adaptive": lambda: tfdp.DPKerasAdamOptimizer(
        l2_norm_clip=1.0, noise_multiplier=1.0, clipping="adaptive", use_ema=True
    ),
    "AdamW, microbatches": lambda: make_dp_optimizer_class(keras.optimizers.AdamW)(
        l2_norm_clip=1.0, noise_multiplier=1.0, num_microbatches=2
    ),
    "Lion, correlated": lambda: tfdp.optimizers.make_matrix_optimizer_class(keras.optimizers.Lion)(
        l2_norm_clip=1.0, noise_multiplier=1.0, bands=2, steps=4
    ),
    "Lamb, discrete": lambda: tfdp.optimizers.make_discrete_optimizer_class(keras.optimizers.Lamb)(
        l2_norm_clip=1.0, noise_multiplier=1.0
    ),
    "SI-DPSGD": lambda: si_dpsgd(
        momentum=0.9, rate=keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.5)
    ),
}


def saved(model, folder):
    model.save(folder / "a.keras")
    return tfdp.make_private(keras.models.load_model(folder / "a.keras"))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers(kind, tmp_path):
    model = small(OPTIMIZERS[kind]())
    train(model)
    for copied in (saved(model, tmp_path), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert type(copied.optimizer) is type(model.optimizer)
        assert copied.optimizer.get_config() == model.optimizer.get_config()
        for a, b in zip(copied.optimizer.variables, model.optimizer.variables, strict=True):
            np.testing.assert_array_equal(a, b)
        assert copied.privacy.ledger == model.privacy.ledger
    train(copied)
    assert (steps(copied), steps(model)) == (4, 2)
    if kind == "SI-DPSGD":
        rates = [r for run in copied.privacy.ledger.runs for r in run.schedule("learning_rates")]
        np.testing.assert_allclose(rates, 0.5 * 0.5 ** (np.arange(4) / 2), rtol=1e-6)


def test_a_restored_run_never_repeats_noise(tmp_path):
    def trained(model):
        before = weights(model)
        train(model, batch_size=8)
        return weights(model) - before

    def wide():
        return keras.Sequential([keras.Input((4,)), layers.Dense(20)])

    for seed in (None, 3):
        options = {"clip": 1e-6, "noise": 1e6, "seed": seed}  # the update is almost only noise
        model = small(sgd(**options), wide())
        changes = [trained(model)]
        model.save(tmp_path / "a.keras")
        changes.append(trained(model))
        if seed is None:
            for _ in range(2):
                changes.append(trained(saved(small(sgd(**options), wide()), tmp_path)))
        else:
            other = small(sgd(**options), wide())
            other.optimizer.build(other.trainable_variables)
            other.load_weights(tmp_path / "a.keras")  # and the optimizer with its iterations
            changes[1:] = [trained(other)]
        for i, a in enumerate(changes):
            for b in changes[:i]:
                assert np.mean(np.isclose(a, b, rtol=1e-3)) < 0.2


def test_neither_seeds_nor_metrics_of_private_data_are_in_a_file(tmp_path):
    seed = 987654321987
    model = small(sgd(seed=seed), seed=seed, compiled={"metrics": ["accuracy"]})
    train(model)
    model.save(tmp_path / "a.keras")
    model.save_weights(tmp_path / "a.weights.h5")
    contents = [(tmp_path / "a.weights.h5").read_bytes()]
    with zipfile.ZipFile(tmp_path / "a.keras") as archive:
        contents += [archive.read(name) for name in archive.namelist()]
    for form in (str(seed).encode(), seed.to_bytes(8, "little")):
        assert not any(form in content for content in contents)
    names = []
    with h5py.File(tmp_path / "a.weights.h5") as content:
        content.visit(names.append)
    assert names and not any("metric" in name or "loss" in name for name in names)


def test_slots_of_a_plain_optimizer_are_refused():
    plain = linear()
    plain.compile(keras.optimizers.SGD(), loss=LOSS)
    plain.optimizer.build(plain.trainable_variables)
    store = {str(i): v.numpy() for i, v in enumerate(plain.optimizer.variables)}
    model = small()
    train(model)
    with pytest.raises(ValueError, match="ledger"):
        model.optimizer.load_own_variables(store)


@pytest.mark.filterwarnings("ignore:Skipping variable loading")
def test_slots_of_another_optimizer_are_left_out_and_its_ledger_is_not():
    model, store = small(), {}
    train(model)
    model.optimizer.save_own_variables(store)
    other = small(sgd(momentum=0.9))
    train(other)
    before = [v.numpy() for v in other.optimizer.variables]
    other.optimizer.load_own_variables(store)
    for variable, value in zip(other.optimizer.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    assert [run.steps for run in other.privacy.ledger.runs] == [2, 2]


def adam():
    return tfdp.DPKerasAdamOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0)


@pytest.mark.parametrize("trained", [False, True])
def test_weights_that_were_saved_before_the_first_step_are_loaded(trained, tmp_path):
    model = small(adam())
    model.save_weights(tmp_path / "a.weights.h5")
    other = small(adam(), linear(seed=1))
    if trained:
        train(other)
    other.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(weights(other), weights(model))
    assert steps(other) == (2 if trained else 0)  # what was spent stays spent
    train(other)
    assert steps(other) == (4 if trained else 2)


def test_an_optimizer_and_its_copy_count_each_step_once():
    model = small()
    train(model)
    copied = pickle.loads(pickle.dumps(model.optimizer))
    assert type(copied) is type(model.optimizer) and copied.ledger == model.privacy.ledger
    model.compile(copied, LOSS, run_eagerly=True)
    train(model)
    assert [run.steps for run in model.privacy.ledger.runs] == [2, 2]


def test_the_backup_of_keras_goes_on_and_its_ledger_counts_against_the_budget(tmp_path):
    class Interrupts(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise InterruptedError

    def model(**settings):
        options = {"l2_norm_clip": 1e3, "noise_multiplier": 1e-9, "learning_rate": 0.1}
        return small(tfdp.DPKerasAdamOptimizer(**options), **settings)

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)

    alone, first, second = model(), model(), model()
    train(alone, epochs=3)
    with pytest.raises(InterruptedError):
        train(first, epochs=3, callbacks=[backup(), Interrupts()])
    history = train(second, epochs=3, callbacks=[backup()])
    assert history.epoch == [2] and int(second.optimizer.iterations) == 6
    np.testing.assert_allclose(weights(second), weights(alone), rtol=1e-4, atol=1e-5)
    assert [run.steps for run in second.privacy.ledger.runs] == [4, 2]
    limited = model(budget=tfdp.PrivacyBudget(1e3, 1e-5))
    with pytest.raises(tfdp.accounting.BudgetExhausted):
        train(limited, epochs=4, callbacks=[backup()])
    assert steps(limited) == 6
