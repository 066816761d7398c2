"""The layout of Keras' files of weights is as `_compat.files` expects it."""

import io
import json
import zipfile

import keras
import numpy as np
import pytest

from tfdp._compat.files import saved_under

_NAME = "something_of_ours"


@keras.saving.register_keras_serializable(package="test_files")
class Noted(keras.optimizers.SGD):
    """Saves an array besides its variables, as private optimizers save their ledger."""

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store[_NAME] = np.frombuffer(b"noted", np.uint8)

    def load_own_variables(self, store):
        self.found = bytes(np.asarray(store[_NAME]))


def _model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(300)])
    model.compile(Noted(), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def _texts(path):
    return [bytes(found) for found in saved_under(path, _NAME)]


def test_a_saved_model_is_an_archive_with_the_weights_in_hdf5(tmp_path):
    path = tmp_path / "model.keras"
    _model().save(path)
    with zipfile.ZipFile(path) as archive:
        assert [n for n in archive.namelist() if n.endswith(".h5")] == ["model.weights.h5"]
    assert _texts(path) == [b"noted"]
    assert keras.models.load_model(path).optimizer.found == b"noted"


def test_files_of_weights_and_pickles_are_hdf5(tmp_path):
    path = tmp_path / "model.weights.h5"
    _model().save_weights(path)
    assert _texts(path) == [b"noted"]
    content = io.BytesIO(path.read_bytes())
    content.read(10)
    assert _texts(content) == [b"noted"]


def test_shards_are_named_in_a_map(tmp_path):
    path = tmp_path / "model.weights.json"
    _model().save_weights(path, max_shard_size=3e-6)  # the size is in GB
    shards = json.loads(path.read_text())["weight_map"].values()
    names = {n for shard in shards for n in ([shard] if isinstance(shard, str) else shard)}
    assert names and all((tmp_path / name).is_file() for name in names)
    assert set(_texts(path)) == {b"noted"}


@pytest.mark.parametrize("content", [None, b"", b"no such format"])
def test_other_files_hold_none(tmp_path, content):
    path = tmp_path / "other"
    if content is not None:
        path.write_bytes(content)
    assert _texts(path) == []


@pytest.mark.parametrize("damage", ["of the weights", "their end is missing"])
def test_damaged_files_are_named(tmp_path, damage):
    _model().save_weights(tmp_path / "whole.weights.h5")
    weights = bytearray((tmp_path / "whole.weights.h5").read_bytes())
    if damage == "of the weights":
        weights[40:2000] = b"\xff" * 1960
    else:
        del weights[3000:]
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.weights.h5", bytes(weights))
    with pytest.raises(ValueError, match=r"model\.keras"):
        _texts(path)


def test_damaged_and_missing_maps_of_shards_are_named(tmp_path):
    path = tmp_path / "model.weights.json"
    with pytest.raises(FileNotFoundError):
        _texts(path)
    path.write_text('{"weight_map": {"a": 5}}')
    with pytest.raises(ValueError, match=r"model\.weights\.json"):
        _texts(path)
