"""Files and copies of private models are private models, with everything that was spent."""

import copy
import importlib.util
import json
import pathlib
import pickle
import re
import zipfile

import h5py
import keras
import numpy as np
import pytest
from helpers import LOSS, data, sgd, si_dpsgd, steps, weights
from keras import layers

import tfdp
from tests.rounding import FUNCTION, assert_close, terms_of
from tests.training import small as of_small
from tests.training.small import linear, small
from tfdp.training import files

DELTA = 1e-5
BUDGET = tfdp.PrivacyBudget(9.0, DELTA)


def train(model, **options):
    """Takes a step."""
    return of_small.train(model, **{"batch_size": 8} | options)


class Unregistered(keras.Model):
    def __init__(self, units=3, **kwargs):
        super().__init__(**kwargs)
        self.units, self.out = units, layers.Dense(units)
        self.scale = self.add_weight(
            name="scale", shape=(), initializer="ones"
        )  # of the model's own

    def build(self, shape):
        self.out.build(shape)
        self.built = True

    def call(self, x):
        return self.scale * self.out(x)


@keras.saving.register_keras_serializable(package="tests")
class Registered(Unregistered):
    def get_config(self):
        return {"units": self.units, "name": self.name}


@keras.saving.register_keras_serializable(package="tests")
class OwnCompile(Registered):
    """Compiles itself, as tasks of KerasHub do, and takes other arguments than Keras."""

    def __init__(self, units=3, **kwargs):
        super().__init__(units, **kwargs)
        if not isinstance(self, tfdp.training.private_training.PrivateTraining):
            self.compile("sgd", LOSS)

    def compile(self, optimizer, fn, run_eagerly=True):
        super().compile(optimizer=optimizer, run_eagerly=run_eagerly)
        self.fn = fn

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.fn(y, y_pred)


def functional():
    x = keras.Input((4,))
    return keras.Model(x, layers.Dense(3)(x))


def with_lora():
    model = linear()
    model.layers[0].enable_lora(2)
    return model


def with_lambda():
    return keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Lambda(lambda x: 2 * x)])


def built(cls):
    model = cls()
    model.build((None, 4))
    return model


MODELS = {
    "sequential": linear,
    "functional": functional,
    "registered": lambda: built(Registered),
    "unregistered": lambda: built(Unregistered),
    "own compile": lambda: built(OwnCompile),
    "LoRA": with_lora,
    "lambda": with_lambda,
    "inside another": lambda: keras.Sequential([keras.Input((4,)), tfdp.make_private(linear())]),
}


def load(path, **options):
    options = {"custom_objects": {"Unregistered": Unregistered}, "safe_mode": False} | options
    return keras.models.load_model(path, **options)


def into_new(name):
    """Loads weights into a new private model, before it is compiled."""

    def loaded(kind, folder, model):
        model = tfdp.make_private(MODELS[kind]())
        model.load_weights(folder / name)
        return model

    return loaded


def copied(copies):
    def made(kind, folder, model):
        with keras.saving.custom_object_scope({"Unregistered": Unregistered}):
            return copies(model)

    return made


# Every way to a model with the same weights; each is given the kind, the folder and the model.
WAYS = {
    "model.save": lambda k, f, m: load(f / "m.keras"),
    "save_model": lambda k, f, m: load(f / "s.keras"),
    "compile=False": lambda k, f, m: load(f / "m.keras", compile=False),
    "ModelCheckpoint": lambda k, f, m: load(f / "c.keras"),
    "pickle": copied(lambda m: pickle.loads(pickle.dumps(m))),
    "deepcopy": copied(copy.deepcopy),
    "weights": into_new("m.weights.h5"),
    "weights of a model": into_new("m.keras"),
    "shards": into_new("m.weights.json"),
    "weights of ModelCheckpoint": into_new("c.weights.h5"),
}


def spent(model):
    return model.privacy.spent(DELTA).epsilon


def recompiled(model, kind):
    loss = {"fn": LOSS} if kind == "own compile" else {"loss": LOSS}
    model.compile(sgd(noise=3.0), **loss, run_eagerly=True)
    return model


# A sequential model is in most tests of this file, and the others are like one that is tested here.
COVERED = ("sequential", "registered", "lambda")
KINDS = [pytest.param(k, marks=[pytest.mark.slow] if k in COVERED else []) for k in MODELS]


@pytest.mark.filterwarnings("ignore:.*compile..:UserWarning", "ignore:.*lambda:UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_files_and_copies_of_every_model_keep_what_was_spent(kind, tmp_path):
    model = tfdp.make_private(MODELS[kind](), budget=BUDGET, engine="loop")
    recompiled(model, kind)
    checkpoints = [
        keras.callbacks.ModelCheckpoint(tmp_path / "c.keras"),
        keras.callbacks.ModelCheckpoint(tmp_path / "c.weights.h5", save_weights_only=True),
    ]
    every = kind == "functional"
    train(model, callbacks=checkpoints if every else [])
    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    if every:
        keras.models.save_model(model, tmp_path / "s.keras")
        model.save_weights(tmp_path / "m.weights.json", max_shard_size=1e-6)
    inputs = data(8)[0]
    for name in WAYS if every else ("model.save", "deepcopy", "weights"):
        made = WAYS[name](kind, tmp_path, model)
        assert type(made) is type(model), name
        assert 0 < spent(made) == spent(model) < np.inf, name
        assert made.privacy.budget == BUDGET, name
        assert_close(made(inputs), model(inputs), terms_of(model, length=8), message=name)
        tfdp.make_private(made)
        assert spent(made) == spent(model), name
        if name == "model.save":
            if kind == "own compile":
                recompiled(made, kind)
            assert int(made.optimizer.iterations) == (0 if kind == "own compile" else 1)
            train(made)
            assert (steps(made), steps(model)) == (2, 1) and spent(made) > spent(model)


def test_a_loaded_model_trains_at_once_and_keeps_its_metrics(tmp_path):
    model = small(compiled={"metrics": ["accuracy"]})
    train(model)
    model.save(tmp_path / "a.keras")
    loaded = load(tmp_path / "a.keras")
    assert isinstance(loaded, keras.Sequential) and type(loaded).__name__ == "Sequential"
    assert train(loaded).history["accuracy"]
    with pytest.raises(ValueError, match="private optimizer"):
        loaded.compile("sgd", LOSS)


def test_without_tfdp_the_file_names_the_import(tmp_path, monkeypatch):
    small().save(tmp_path / "a.keras")
    monkeypatch.delitem(keras.saving.get_custom_objects(), "tfdp>PrivateModel")
    with pytest.raises(TypeError, match="import tfdp"):
        keras.models.load_model(tmp_path / "a.keras")


def test_a_plain_model_reads_the_numbers_of_a_private_file(tmp_path):
    for kind in ("registered", "inside another"):
        model = recompiled(tfdp.make_private(MODELS[kind](), engine="loop"), kind)
        train(model)
        model.save_weights(tmp_path / "a.weights.h5")
        plain = MODELS[kind]()
        plain.load_weights(tmp_path / "a.weights.h5")
        np.testing.assert_array_equal(weights(plain), weights(model))


def test_a_file_holds_the_settings(tmp_path):
    made = small(engine="vectorized", physical_batch_size=4, public_preprocessing=True)
    made.save(tmp_path / "a.keras")
    for loaded in (load(tmp_path / "a.keras"), copy.deepcopy(made)):
        privacy = loaded.privacy
        assert (privacy.engine, privacy.physical_batch_size) == ("vectorized", 4)
        assert privacy.public_preprocessing is True


def test_the_configuration_is_that_of_the_plain_class_and_one_entry():
    model = tfdp.make_private(functional())
    plain = keras.Model.from_config(model.get_config())
    assert type(plain) is type(functional())
    assert not hasattr(plain, "privacy") and plain.count_params() == model.count_params()
    for config in (model.get_config(), plain.get_config()):
        again = type(model).from_config(config)
        assert type(again) is type(model) and again.privacy.ledger.runs == []


def test_a_long_ledger_is_saved(tmp_path):
    """HDF5 limits the attributes of a group to 64 kB, unless they are text of variable length."""
    model = small(sgd(noise=[3.0 + i / 1e4 for i in range(20_000)]))
    train(model)
    model.save(tmp_path / "a.keras")
    assert len(model.privacy.ledger.to_json()) > 1e5
    assert load(tmp_path / "a.keras").privacy.ledger == model.privacy.ledger


@pytest.mark.parametrize("compiled", [False, True])
def test_a_file_of_a_plain_training_leaves_nothing_proven_until_it_is_declared(compiled, tmp_path):
    plain = linear()
    plain.compile("sgd", LOSS)
    plain.fit(*data(8), verbose=0)
    plain.save_weights(tmp_path / "a.weights.h5")
    model = small() if compiled else tfdp.make_private(linear())
    model.load_weights(tmp_path / "a.weights.h5")
    if compiled:
        with pytest.raises(ValueError, match="start='public'"):
            spent(model)
    else:
        assert spent(model) == np.inf
    tfdp.make_private(model, start="public")
    assert spent(model) == 0.0


WORDS = {
    "save",
    "load",
    "export",
    "weights",
    "quantize",
    "lora",
    "preset",
    "state",
    "clone",
    "file",
}


def named(owner, prefix):
    """The public functions and classes of a class or module that may write or read weights."""
    for name in dir(owner):
        words = {*re.findall("[a-z]+", re.sub("([A-Z])", r"_\1", name).lower())}
        if name[0] != "_" and words & WORDS and callable(getattr(owner, name)):
            yield prefix + name


def test_machines_other_than_the_chief_write_no_file_of_a_private_model(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "writes", lambda model: False)
    model = small()
    model.save(tmp_path / "a.keras")
    model.save_weights(tmp_path / "c.weights.h5")
    model.export(tmp_path / "d", verbose=False)
    assert not [*tmp_path.iterdir()]
    monkeypatch.undo()
    model.save(tmp_path / "a.keras")
    assert len([*tmp_path.iterdir()]) == 1


def test_every_writer_and_reader_of_weights_is_on_the_page():
    found = {
        f"keras.callbacks.{n}" for n, v in vars(keras.callbacks).items() if isinstance(v, type)
    }
    for module in ("export", "models", "saving"):
        found |= {*named(getattr(keras, module), f"keras.{module}.")}
    found |= {*named(keras, "keras.")}
    classes = [keras.Model]
    if importlib.util.find_spec("keras_hub"):
        import keras_hub

        found |= {*named(keras_hub, "keras_hub.")}
        classes += [each for each in vars(keras_hub.models).values() if isinstance(each, type)]
    found |= {name for each in classes for name in named(each, "model.")}
    page = (pathlib.Path(tfdp.__file__).parents[1] / "docs" / "saving.md").read_text()
    table = re.findall("^[|] (?:keep|are|bring|hold) .*", page, re.MULTILINE)
    assert found - {*re.findall("`(.*?)`", "".join(table))} == set()


class Task(Registered):
    """Has the presets of KerasHub's tasks: a configuration and weights in a folder."""

    def save_lora_weights(self, filepath):
        with h5py.File(filepath, "w") as file:
            file["lora/0"] = self.out.bias.numpy()

    def load_lora_weights(self, filepath):
        with h5py.File(filepath) as file:
            self.out.bias.assign(file["lora/0"][()])

    def save_to_preset(self, preset_dir):
        preset_dir.mkdir()
        config = keras.saving.serialize_keras_object(self)
        (preset_dir / "task.json").write_text(json.dumps(config))
        self.save_weights(preset_dir / "task.weights.h5")

    @classmethod
    def from_preset(cls, preset):
        config = json.loads((preset / "task.json").read_text())
        assert config["class_name"] == "Task" and "tfdp" not in json.dumps(config["config"])
        model = built(lambda: cls(config["config"]["units"]))
        model.compile("sgd", LOSS)
        model.load_weights(preset / "task.weights.h5")
        return model


def test_a_preset_keeps_its_class_and_brings_the_ledger(tmp_path):
    model = small(model=built(Task), budget=BUDGET)
    early = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: model.save_to_preset(tmp_path / f"preset_{epoch}")
    )
    train(model, epochs=2, callbacks=[early])
    model.save_to_preset(tmp_path / "preset")
    assert type(model) is not Task
    for folder in ("preset_1", "preset"):  # of one during the training, the whole plan counts
        loaded = tfdp.from_preset(Task, tmp_path / folder)
        assert spent(loaded) == spent(model) and loaded.privacy.budget == BUDGET
    np.testing.assert_array_equal(weights(loaded), weights(model))
    plain = Task.from_preset(tmp_path / "preset")
    assert type(plain) is Task
    (tmp_path / "preset" / "privacy.json").unlink()
    with pytest.raises(ValueError, match=r"privacy\.json"):
        tfdp.from_preset(Task, tmp_path / "preset")


def test_a_file_of_low_rank_factors_brings_the_ledger(tmp_path):
    model = small(model=built(Task), budget=BUDGET)
    train(model)
    model.save_lora_weights(tmp_path / "a.lora.h5")
    for other in (tfdp.make_private(built(Task)), built(Task)):
        other.load_lora_weights(tmp_path / "a.lora.h5")
        np.testing.assert_array_equal(other.out.bias, model.out.bias)
        if type(other) is not Task:
            assert spent(other) == spent(model) > 0 and other.privacy.budget == BUDGET


# Update rules with and without slots; classes that exist only after a call; optimizers with variables
# of their own.
OPTIMIZERS = {
    "Adam, adaptive": lambda: tfdp.DPKerasAdamOptimizer(
        l2_norm_clip=1.0, noise_multiplier=1.0, clipping="adaptive", use_ema=True
    ),
    "Lion, correlated": lambda: tfdp.optimizers.make_matrix_optimizer_class(keras.optimizers.Lion)(
        l2_norm_clip=1.0, noise_multiplier=1.0, bands=2, steps=4
    ),
    "SI-DPSGD": lambda: si_dpsgd(
        momentum=0.9, rate=keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.5)
    ),
}


def saved(model, folder):
    model.save(folder / "a.keras")
    return load(folder / "a.keras")


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
    assert (steps(copied), steps(model)) == (2, 1)
    if kind == "SI-DPSGD":
        rates = [r for run in copied.privacy.ledger.runs for r in run.schedule("learning_rates")]
        assert_close(rates, 0.5 * 0.5 ** (np.arange(2) / 2), 2 * FUNCTION)


def test_a_restored_run_never_repeats_noise(tmp_path):
    def trained(model):
        before = weights(model)
        train(model)
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
            changes.append(trained(saved(small(sgd(**options), wide()), tmp_path)))
        else:
            other = small(sgd(**options), wide())
            other.optimizer.build(other.trainable_variables)
            other.load_weights(tmp_path / "a.keras")  # and the optimizer with its iterations
            changes[1:] = [trained(other)]
        for i, a in enumerate(changes):
            for b in changes[:i]:
                assert np.mean(np.isclose(a, b)) < 0.2


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


@pytest.mark.filterwarnings("ignore:Skipping variable loading")
def test_slots_of_another_optimizer_are_left_out_and_the_ledger_is_not(tmp_path):
    model = small()
    train(model)
    model.save_weights(tmp_path / "a.weights.h5")
    other = small(sgd(momentum=0.9))
    train(other)
    before = [v.numpy() for v in other.optimizer.variables]
    other.load_weights(tmp_path / "a.weights.h5")
    for variable, value in zip(other.optimizer.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    assert [run.steps for run in other.privacy.ledger.runs] == [1, 1]


def adam():
    return tfdp.DPKerasAdamOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0)


def test_weights_that_were_saved_before_the_first_step_are_loaded(tmp_path):
    model = small(adam())
    model.save_weights(tmp_path / "a.weights.h5")
    other = small(adam(), linear(seed=1))
    train(other)
    other.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(weights(other), weights(model))
    assert steps(other) == 1  # what was spent stays spent
    train(other)
    assert steps(other) == 2


def test_an_optimizer_and_its_copy_count_each_step_once():
    model = small()
    train(model)
    copied = pickle.loads(pickle.dumps(model.optimizer))
    assert type(copied) is type(model.optimizer)
    model.compile(copied, LOSS, run_eagerly=True)
    train(model)
    assert [run.steps for run in model.privacy.ledger.runs] == [1, 1]
