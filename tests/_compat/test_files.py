"""The layout of Keras' files of weights is as `_compat.files` expects it."""

import io
import zipfile

import keras
import numpy as np
import pytest

from tfdp._compat.files import saved_under, steps_of_optimizer

_NAME = "something_of_ours"


@keras.saving.register_keras_serializable(package="test_files")
class Noted(keras.optimizers.SGD):
    """Saves an array besides its variables, as private optimizers save their ledger."""

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store[_NAME] = np.frombuffer(b"noted", np.uint8)

    def load_own_variables(self, store):
        self.found = bytes(np.asarray(store[_NAME]))


@pytest.fixture
def model():
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(300)])
    made.compile(Noted(), "mse")
    made.optimizer.build(made.trainable_variables)
    return made


def _texts(path):
    return [bytes(found) for found in saved_under(path, _NAME)]


def test_what_an_object_saved_is_in_every_kind_of_file(model, tmp_path):
    model.save(tmp_path / "m.keras")
    assert _texts(tmp_path / "m.keras") == [b"noted"]
    assert keras.models.load_model(tmp_path / "m.keras").optimizer.found == b"noted"
    model.save_weights(tmp_path / "m.weights.h5")
    assert _texts(tmp_path / "m.weights.h5") == [b"noted"]
    assert _texts(io.BytesIO((tmp_path / "m.weights.h5").read_bytes())) == [b"noted"]  # a pickle
    model.save_weights(tmp_path / "m.weights.json", max_shard_size=3e-6)  # in GB
    assert len([*tmp_path.glob("m_*.weights.h5")]) > 1
    assert set(_texts(tmp_path / "m.weights.json")) == {b"noted"}


@pytest.mark.parametrize("content", [None, b"no such format"])
def test_other_files_hold_none(tmp_path, content):
    path = tmp_path / "other"
    if content is not None:
        path.write_bytes(content)
    assert _texts(path) == []


@pytest.mark.parametrize("damage", [slice(40, 2000), slice(3000, None)])
def test_damaged_files_are_named(model, tmp_path, damage):
    model.save_weights(tmp_path / "whole.weights.h5")
    weights = bytearray((tmp_path / "whole.weights.h5").read_bytes())
    weights[damage] = b"" if damage.stop is None else b"\xff" * 1960
    with zipfile.ZipFile(tmp_path / "model.keras", "w") as archive:
        archive.writestr("model.weights.h5", bytes(weights))
    with pytest.raises(ValueError, match=r"model\.keras"):
        _texts(tmp_path / "model.keras")


def test_steps_of_optimizer(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.save(tmp_path / "new.keras")
    model.fit(np.zeros((4, 2)), np.zeros((4, 1)), batch_size=2, verbose=0)
    model.save(tmp_path / "trained.keras")
    assert [steps_of_optimizer(tmp_path / f"{n}.keras") for n in ("new", "trained")] == [0, 2]
