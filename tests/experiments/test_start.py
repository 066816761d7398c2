"""Training starts from public weights only, and changes only the layers that are named."""

import json

import numpy as np
import pytest

from tests.seeds import seed_keras
from tfdp import models
from tfdp.experiments import Experiment, run
from tfdp.experiments.public_data import public_examples
from tfdp.experiments.start import begin, check_public, freeze, load, output_layers

SMALL = {"model": "mlp", "batch_size": 64, "steps": 1, "seed": 3}


def private(path, **settings):
    settings = {"noise_multiplier": 1.0, **SMALL, **settings}
    return Experiment(initial_weights=path and str(path), **settings)


def pretrained(path, classes=10, **options):
    """Writes a network with weights of its own, and returns it."""
    seed_keras(77)
    model = models.build("mlp", (8, 8, 1), classes, **options)
    model.save(path)
    return model


def result_of(folder, dataset, mechanism="none"):
    """Writes a model with the record of its training; returns the path of the model."""
    pretrained(folder / "model.keras")
    record = {"settings": {"dataset": dataset, "mechanism": mechanism}}
    (folder / "run.json").write_text(json.dumps(record))
    return str(folder / "model.keras")


class TestLoading:
    def test_all_weights_are_loaded_but_the_output_layer_of_other_classes(self, tmp_path):
        name = "model.keras"
        public = pretrained(tmp_path / name, classes=100)
        same = models.build("mlp", (8, 8, 1), 100)
        assert load(same, str(tmp_path / name)) == ()
        assert all(map(np.array_equal, same.get_weights(), public.get_weights()))
        model = models.build("mlp", (8, 8, 1), 10)
        drawn = model.get_layer("logits").get_weights()
        assert load(model, str(tmp_path / name)) == ("logits",)
        for layer in model.layers:
            kept = drawn if layer.name == "logits" else public.get_layer(layer.name).get_weights()
            for mine, other in zip(layer.get_weights(), kept, strict=True):
                np.testing.assert_array_equal(mine, other)

    def test_public_examples_stay_those_of_this_training(self, tmp_path):
        public = public_examples("digits", 5)
        for number, seed in ((5, 1), (6, 2)):
            others = public_examples("digits", number, seed=seed)
            path = tmp_path / f"{number}.keras"
            file = pretrained(path, normalization="batch", public_data=others)
            model = models.build("mlp", (8, 8, 1), 10, "batch", public_data=public)
            assert load(model, str(path)) == ()
            np.testing.assert_array_equal(model.layers[0].examples, public)
            mine, other = (m.layers[0].network.get_weights() for m in (model, file))
            assert all(map(np.array_equal, mine, other))

    def test_another_network_is_refused(self, tmp_path):
        pretrained(tmp_path / "model.keras", normalization="layer_affine")
        for name, normalization in (("hidden_500", "none"), ("mlp", "none")):
            model = models.build(name, (8, 8, 1), 10, normalization)
            with pytest.raises(ValueError, match=name):
                load(model, str(tmp_path / "model.keras"))
        (tmp_path / "a.keras").write_text("no network")
        with pytest.raises(ValueError, match=r"a\.keras"):
            load(model, str(tmp_path / "a.keras"))


class TestWhereWeightsComeFrom:
    @pytest.mark.parametrize(
        ("dataset", "mechanism"), [("digits", "dpsgd"), ("mnist", "dpsgd"), ("digits", "none")]
    )
    def test_weights_that_owe_something_to_private_data_are_refused(
        self, tmp_path, dataset, mechanism
    ):
        path = result_of(tmp_path, dataset, mechanism)
        with pytest.raises(ValueError, match=f"trained on {dataset}"):
            run(private(path), verbose=0)
        # Without privacy anything goes.
        assert dataset in check_public(Experiment(**SMALL, mechanism="none"), path)

    def test_data_that_are_made_of_the_same_are_the_same(self, tmp_path):
        path = result_of(tmp_path, "ag_news_characters")
        news = Experiment(dataset="ag_news_subset", model="bilstm", noise_multiplier=1.0)
        with pytest.raises(ValueError, match="ag_news_characters"):
            check_public(news, path)

    def test_weights_of_other_data_are_declared_public(self, tmp_path):
        result = run(private(result_of(tmp_path, "mnist")), verbose=0)
        assert result.run.start == "public"
        assert "trained on mnist" in result.notes[0]

    def test_weights_without_a_record_are_declared_public(self, tmp_path):
        pretrained(tmp_path / "model.keras", classes=100)
        model = models.build("mlp", (8, 8, 1), 10)
        (note,) = begin(private(tmp_path / "model.keras"), model)
        assert "unknown data" in note and "logits" in note
        assert begin(private(None), model) == []

    def test_a_file_with_a_ledger_is_refused(self, tmp_path):
        result = run(Experiment(noise_multiplier=1.0, **SMALL), verbose=0)
        assert result.run.start == "assumed" and result.notes == ()
        result.model.save(tmp_path / "model.keras")
        with pytest.raises(ValueError, match="ledger"):
            run(private(tmp_path / "model.keras"), verbose=0)


class TestFreezing:
    def frozen(self, trainable, **options):
        model = models.build("mlp", (8, 8, 1), 10, "layer_affine", **options)
        freeze(model, trainable)
        return {layer.name for layer in model.layers if layer.trainable_variables}

    def test_names_and_patterns(self):
        assert self.frozen("logits") == {"logits"}
        assert self.frozen("logits*, dense_1") == {"logits", "logits_norm", "dense_1"}

    @pytest.mark.parametrize("trainable", ["conv_1", "logits,conv*", ""])
    def test_what_is_not_there_is_refused(self, trainable):
        with pytest.raises(ValueError, match="--trainable_layers"):
            self.frozen(trainable)

    def test_inside_of_public_examples(self):
        public = public_examples("digits", 5)
        model = models.build("mlp", (8, 8, 1), 10, "batch", public_data=public)
        freeze(model, "logits")
        assert {v.path.split("/")[-2] for v in model.trainable_variables} == {"logits"}
        assert [layer.name for layer in output_layers(model)] == ["logits", "logits_norm"]

    def test_frozen_vectors_cannot_be_trained(self):
        model = models.build("bilstm", (5,), 2)
        model.get_layer("embedding").trainable = False
        with pytest.raises(ValueError, match="embedding"):
            freeze(model, "embedding,logits")
        freeze(model, "bilstm,logits")
        assert len(model.trainable_variables) == 8
