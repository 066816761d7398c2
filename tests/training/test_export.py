"""A release holds the weights and nothing secret, and loads without tfdp."""

import io
import subprocess
import sys
import zipfile

import h5py
import keras
import numpy as np
import pytest
from helpers import data, sgd, si_dpsgd, weights
from keras import layers

import tfdp
from tests.rounding import assert_close, terms_of
from tests.training.small import linear, small, train

WITHOUT_TFDP = """
import sys
sys.modules["tfdp"] = None  # importing it raises ImportError
import keras, numpy as np
model = keras.models.load_model("a.keras")
np.save("y.npy", model.predict(np.load("x.npy"), verbose=0))
"""


def with_dropout():
    x = keras.Input((4,))
    model = keras.Model(x, layers.Dense(3)(layers.Dropout(0.5, seed=3)(x)))
    return small(sgd(momentum=0.9), model=model)


def sequential():
    return small(si_dpsgd(momentum=0.9))


@pytest.fixture
def without_tfdp(monkeypatch):
    """Lets Keras know no class of tfdp, and no import find one."""

    def forget():
        for name in [name for name in sys.modules if name.partition(".")[0] == "tfdp"]:
            monkeypatch.setitem(sys.modules, name, None)
        known = keras.saving.get_custom_objects()
        for name in [name for name in known if name.startswith("tfdp>")]:
            monkeypatch.delitem(known, name)

    return forget


def test_a_release_loads_without_tfdp_and_holds_nothing_else(tmp_path, without_tfdp):
    model = with_dropout()
    train(model)
    tfdp.export(model, tmp_path / "a.keras")
    with zipfile.ZipFile(tmp_path / "a.keras") as archive:
        assert b"tfdp" not in b"".join(archive.read(n) for n in archive.namelist())
        content = io.BytesIO(archive.read("model.weights.h5"))
    names = []
    with h5py.File(content) as file:
        file.visit(names.append)
    assert names and not any("optimizer" in name for name in names)
    x = data()[0]
    expected = model(x)
    without_tfdp()
    assert_close(keras.models.load_model(tmp_path / "a.keras")(x), expected, terms_of(model))


@pytest.mark.slow
@pytest.mark.parametrize("make", [sequential, with_dropout])
def test_a_release_loads_in_a_process_without_tfdp(make, tmp_path):
    model, x = make(), data()[0]
    tfdp.export(model, tmp_path / "a.keras")
    np.save(tmp_path / "x.npy", x)
    subprocess.run([sys.executable, "-c", WITHOUT_TFDP], check=True, timeout=120, cwd=tmp_path)
    assert_close(np.load(tmp_path / "y.npy"), model(x), terms_of(model))


@keras.saving.register_keras_serializable(package="test_release")
class Own(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.out = layers.Dense(3)

    def build(self, shape):
        self.out.build(shape)

    def call(self, x):
        return self.out(x)


@pytest.mark.parametrize("make", [with_dropout, lambda: small(model=Own())])
def test_private_classes_become_plain_ones(make, tmp_path):
    model = make()
    train(model)
    tfdp.export(model, tmp_path / "a.keras")
    loaded = keras.models.load_model(tmp_path / "a.keras")
    assert not hasattr(loaded, "privacy") and not loaded.compiled
    np.testing.assert_array_equal(weights(loaded), weights(model))


@pytest.mark.parametrize("mode", ["int4", pytest.param("int8", marks=pytest.mark.slow)])
def test_quantized_layers_with_a_common_map_of_policies_are_released_and_saved(mode, tmp_path):
    """So are those of a task that KerasHub has loaded or copied."""
    policies = keras.dtype_policies.DTypePolicyMap()
    for name in ("one", "head"):
        policies[name] = keras.dtype_policies.get(f"{mode}_from_float32")
    x = keras.Input((4,))
    one = layers.Dense(8, name="one", dtype=policies, activation="relu")
    head = layers.Dense(3, name="head", dtype=policies)
    model = keras.Model(x, head(one(x)))
    head.enable_lora(2)
    model = small(model=model)
    before = model.predict(data()[0], verbose=0)
    train(model)
    expected = model.predict(data()[0], verbose=0)
    model.privacy.release(tmp_path / "a.keras")
    model.save(tmp_path / "b.keras")
    for name in "ab":
        found = keras.models.load_model(tmp_path / f"{name}.keras")
        rounded = found.predict(data()[0], verbose=0) - expected  # Keras merges the factors
        assert np.abs(rounded).max() < np.abs(expected - before).max() / 4
    assert len(found.privacy.ledger.runs) == len(model.privacy.ledger.runs) == 1


def test_a_release_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("disk full")

    model, path = tfdp.make_private(linear()), tmp_path / "a.keras"
    path.write_text("earlier")
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        with pytest.raises(OSError, match="disk full"):
            tfdp.export(model, path)
    assert path.read_text() == "earlier"
    tfdp.export(model, path)
    np.testing.assert_array_equal(weights(keras.models.load_model(path)), weights(model))
    assert [p.name for p in tmp_path.iterdir()] == ["a.keras"]


@keras.saving.register_keras_serializable(package="test_release")
class NamedLikeASeed(layers.Layer):
    def build(self, shape):
        self.offset = self.add_weight(name="seed_generator_state", shape=(2,))

    def call(self, x):
        return x + keras.ops.sum(self.offset)


def test_the_random_state_of_training_is_not_released(tmp_path):
    network = [keras.Input((4,)), NamedLikeASeed(), layers.Dropout(0.5, seed=3), layers.Dense(3)]
    model = small(model=keras.Sequential(network))
    train(model)
    tfdp.export(model, tmp_path / "a.keras")
    loaded = keras.models.load_model(tmp_path / "a.keras")
    np.testing.assert_array_equal(loaded.layers[0].offset, model.layers[0].offset)
    states = [np.array(m.layers[1].seed_generator.state) for m in (model, loaded)]
    assert not np.array_equal(*states)


def test_bad_requests(tmp_path):
    with pytest.raises(ValueError, match=r"\.keras"):
        tfdp.export(linear(), tmp_path / "a.h5")

    class NoConfig(keras.Model):
        def __init__(self, units):
            super().__init__()
            self.out = layers.Dense(units)

        def call(self, x):
            return self.out(x)

    model = NoConfig(3)
    model(np.zeros((1, 4)))
    with pytest.raises(NotImplementedError):
        tfdp.export(model, tmp_path / "a.keras")
    assert not list(tmp_path.iterdir())
