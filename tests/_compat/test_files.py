"""The layout of Keras' files of weights is as `_compat.files` expects it."""

import io
import json
import zipfile

import h5py
import keras
import numpy as np
import pytest

from tfdp._compat.files import saved_under
from tfdp.experiments.result_files import content_digest, digest

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


def test_files_of_weights_are_hdf5(tmp_path):
    path = tmp_path / "model.weights.h5"
    _model().save_weights(path)
    assert _texts(path) == [b"noted"]


def test_shards_are_named_in_a_map(tmp_path):
    path = tmp_path / "model.weights.json"
    _model().save_weights(path, max_shard_size=3e-6)  # the size is in GB
    shards = json.loads(path.read_text())["weight_map"].values()
    names = {n for shard in shards for n in ([shard] if isinstance(shard, str) else shard)}
    assert names and all((tmp_path / name).is_file() for name in names)
    assert set(_texts(path)) == {b"noted"}


def test_pickles_are_loaded_from_bytes_in_memory(tmp_path):
    path = tmp_path / "model.weights.h5"
    _model().save_weights(path)
    content = io.BytesIO(path.read_bytes())
    content.read(10)
    assert _texts(content) == [b"noted"]


def test_what_was_saved_comes_back_by_name(tmp_path):
    _model().save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").optimizer.found == b"noted"


@pytest.mark.parametrize("content", [None, b"", b"no such format"])
def test_other_files_hold_none(tmp_path, content):
    path = tmp_path / "other"
    if content is not None:
        path.write_bytes(content)
    assert _texts(path) == []


def _archive(path, content):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.weights.h5", content)
    return bytearray(path.read_bytes())


@pytest.mark.parametrize("damage", ["of the archive", "of the weights", "their end is missing"])
def test_damaged_files_are_told(tmp_path, damage):
    _model().save_weights(tmp_path / "whole.weights.h5")
    weights = bytearray((tmp_path / "whole.weights.h5").read_bytes())
    path = tmp_path / "model.keras"
    if damage == "of the weights":
        weights[40:2000] = b"\xff" * 1960
    elif damage == "their end is missing":
        del weights[3000:]
    written = _archive(path, bytes(weights))
    if damage == "of the archive":
        written[3000] ^= 0xFF
        path.write_bytes(written)
    with pytest.raises(ValueError, match=r"a whole file of weights. Found .*model\.keras"):
        _texts(path)


@pytest.mark.parametrize("content", ["[]", '{"weight_map": []}', '{"weight_map": {"a": 5}}'])
def test_damaged_maps_of_shards_are_told(tmp_path, content):
    (tmp_path / "model.weights.json").write_text(content)
    with pytest.raises(ValueError, match="a whole file of weights"):
        _texts(tmp_path / "model.weights.json")


@pytest.mark.parametrize("error", [OverflowError, TypeError])
def test_whatever_the_reader_of_hdf5_says_of_damage_is_told(tmp_path, monkeypatch, error):
    def damaged(*_):
        raise error("of some damage")

    path = tmp_path / "model.keras"
    _model().save(path)
    monkeypatch.setattr(h5py, "File", damaged)
    with pytest.raises(ValueError, match="of some damage"):
        _texts(path)
    assert content_digest(str(path)) == digest(str(path))


def test_missing_files_are_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        _texts(tmp_path / "missing.weights.json")
