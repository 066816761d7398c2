"""Keras' files of weights take a text beside their arrays, as `_compat.files` expects it."""

import keras
import numpy as np
import pytest

from tfdp._compat.files import optimizer_in, read_text, texts_in, write_text

_NAME, _TEXT = "something_of_ours", "noted"


@keras.saving.register_keras_serializable(package="test_files")
class Noted(keras.Sequential):
    """Saves a text beside its variables, as private models save their ledger."""

    def save_own_variables(self, store):
        write_text(store, _NAME, _TEXT)
        super().save_own_variables(store)

    def load_own_variables(self, store):
        self.found = read_text(store, _NAME)
        super().load_own_variables(store)
        self.slots = optimizer_in(store)


def network(kind=Noted):
    return kind([keras.Input((2,)), keras.layers.Dense(300)])


@pytest.fixture
def model():
    made = network()
    made.compile("sgd", "mse")
    made.fit(np.zeros((1, 2)), np.zeros((1, 300)), verbose=0)
    return made


def test_every_kind_of_file_has_text_and_optimizer_and_a_plain_model_reads_the_rest(
    model, tmp_path
):
    model.save(tmp_path / "m.keras")
    loaded = [keras.models.load_model(tmp_path / "m.keras")]
    model.save_weights(tmp_path / "m.weights.h5")
    model.save_weights(tmp_path / "m.weights.json", max_shard_size=3e-6)  # in GB
    assert len([*tmp_path.glob("m_*.weights.h5")]) > 1
    for name in ("m.keras", "m.weights.h5", "m.weights.json"):
        for kind in (Noted, keras.Sequential):
            loaded.append(network(kind))
            loaded[-1].load_weights(tmp_path / name)
    for each in loaded:
        np.testing.assert_array_equal(each.get_weights()[0], model.get_weights()[0])
        if isinstance(each, Noted):
            assert each.found == _TEXT and int(each.slots["0"]) == 1
    for name in ("m.keras", "m.weights.h5"):
        assert texts_in(tmp_path / name, _NAME) == [_TEXT]


def test_a_plain_file_has_none(tmp_path):
    network(keras.Sequential).save_weights(tmp_path / "m.weights.h5")
    model = network()
    model.load_weights(tmp_path / "m.weights.h5")
    assert model.found is None and model.slots == {}
    assert texts_in(tmp_path / "m.weights.h5", _NAME) == []


def test_layers_may_pass_their_variables_on_in_a_dict():
    store, model = {}, network()
    model.save_own_variables(store)
    model.load_own_variables(store)
    assert store == {} and model.found is None
