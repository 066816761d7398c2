"""A release holds the weights and nothing secret, and loads without tfdp."""

import io
import subprocess
import sys
import zipfile
from unittest import mock

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import data, fit, private, sgd, si_dpsgd, weights
from keras import layers

import tfdp

WITHOUT_TFDP = """
import sys
sys.modules["tfdp"] = None  # importing it raises ImportError
import keras, numpy as np
model = keras.models.load_model(sys.argv[1])
np.save(sys.argv[2], model.predict(np.load(sys.argv[3]), verbose=0))
"""


def model_of(kind):
    if kind == "sequential":
        return private(si_dpsgd(momentum=0.9))
    x = keras.Input((4,))
    model = keras.Model(x, layers.Dense(3)(layers.Dropout(0.5, seed=3)(x)))
    return private(sgd(momentum=0.9), model=model)


@pytest.mark.parametrize("kind", ["sequential", "functional"])
def test_a_release_loads_without_tfdp_and_holds_nothing_else(kind, tmp_path):
    model = model_of(kind)
    fit(model)
    path = tmp_path / "a.keras"
    tfdp.export(model, path)
    with zipfile.ZipFile(path) as archive:
        assert b"tfdp" not in b"".join(archive.read(n) for n in archive.namelist())
        (tmp_path / "w.h5").write_bytes(archive.read("model.weights.h5"))
    names = []
    with h5py.File(tmp_path / "w.h5") as content:
        content.visit(names.append)
    assert not any("optimizer" in name for name in names)
    np.save(tmp_path / "x.npy", data()[0])
    arguments = [str(tmp_path / name) for name in ("a.keras", "y.npy", "x.npy")]
    subprocess.run([sys.executable, "-c", WITHOUT_TFDP, *arguments], check=True, timeout=120)
    np.testing.assert_allclose(
        np.load(tmp_path / "y.npy"), model.predict(data()[0], verbose=0), atol=1e-6
    )


def test_private_classes_become_plain_ones(tmp_path):
    x = keras.Input((4,))
    for model in (
        tfdp.DPModel(x, layers.Dense(3)(x)),
        tfdp.DPSequential([keras.Input((4,)), layers.Dense(3)]),
    ):
        model.compile(sgd(), loss="mse")
        tfdp.export(model, tmp_path / "a.keras")
        loaded = keras.models.load_model(tmp_path / "a.keras")
        assert "tfdp" not in type(loaded).__module__ and not loaded.compiled
        np.testing.assert_array_equal(weights(loaded), weights(model))


def test_a_release_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    model = model_of("sequential")
    path = tmp_path / "a.keras"
    path.write_text("earlier")
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", mock.Mock(side_effect=OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            tfdp.export(model, path)
    assert path.read_text() == "earlier"
    assert [p.name for p in tmp_path.iterdir()] == ["a.keras"]
    tfdp.export(model, path)
    np.testing.assert_array_equal(weights(keras.models.load_model(path)), weights(model))
    assert [p.name for p in tmp_path.iterdir()] == ["a.keras"]


def test_a_release_goes_to_other_file_systems_of_tensorflow():
    model = model_of("sequential")
    tfdp.export(model, "ram://a.keras")
    content = tf.io.gfile.GFile("ram://a.keras", "rb").read()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert "model.weights.h5" in archive.namelist()


def test_the_random_state_of_training_is_not_released(tmp_path):
    model = model_of("functional")
    fit(model)
    tfdp.export(model, tmp_path / "a.keras")
    loaded = keras.models.load_model(tmp_path / "a.keras")
    states = [
        [v.numpy() for v in m.non_trainable_variables if v.name == "seed_generator_state"]
        for m in (model, loaded)
    ]
    assert not np.array_equal(*states)


@keras.saving.register_keras_serializable(package="test_release")
class NamedLikeASeed(layers.Layer):
    def build(self, shape):
        self.offset = self.add_weight(name="seed_generator_state", shape=(2,))

    def call(self, x):
        return x + keras.ops.sum(self.offset)


def test_a_weight_that_is_named_like_a_seed_is_released(tmp_path):
    model = keras.Sequential([keras.Input((4,)), NamedLikeASeed(), layers.Dropout(0.5, seed=3)])
    tfdp.export(model, tmp_path / "a.keras")
    loaded = keras.models.load_model(tmp_path / "a.keras")
    np.testing.assert_array_equal(loaded.layers[0].offset, model.layers[0].offset)


def test_bad_requests(tmp_path):
    with pytest.raises(ValueError, match=r"ends in '.keras'"):
        tfdp.export(private(), tmp_path / "a.h5")

    class NoConfig(keras.Model):
        def __init__(self, units):
            super().__init__()
            self.out = layers.Dense(units)

        def call(self, x):
            return self.out(x)

    model = NoConfig(3)
    model(np.zeros((1, 4)))
    with pytest.raises(ValueError, match="NoConfig"):
        tfdp.export(private(model=model), tmp_path / "a.keras")
    assert not list(tmp_path.iterdir())
