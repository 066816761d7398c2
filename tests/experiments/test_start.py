"""Training starts from public weights only, and changes only the layers that are named."""

import json

import keras
import numpy as np
import pytest

from tfdp import models
from tfdp.experiments import Experiment, run
from tfdp.experiments.public_data import public_examples
from tfdp.experiments.report import record
from tfdp.experiments.start import (
    UNKNOWN,
    begin,
    earlier_trainings,
    freeze,
    load,
    may_share_records,
    output_layers,
)

SMALL = {"model": "mlp", "batch_size": 64, "steps": 1, "seed": 3}


def private(path, **settings):
    settings = {"noise_multiplier": 1.0, **SMALL, **settings}
    return Experiment(initial_weights=path and str(path), **settings)


def pretrained(path, classes=10, **options):
    """Writes a network with weights of its own, and returns it."""
    keras.utils.set_random_seed(77)
    model = models.build("mlp", (8, 8, 1), classes, **options)
    model.save(path)
    return model


def result_of(folder, *trainings):
    """Writes a model with the record of trainings, each a dict; returns the path of the model."""
    path = folder / "model.keras"
    pretrained(path)
    (folder / "run.json").write_text(json.dumps({"trained_on": trainings}))
    return str(path)


def on(dataset, mechanism="none", **more):
    return {"dataset": dataset, "mechanism": mechanism, **more}


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
        ("trainings", "fact"),
        [
            ([on("digits", "dpsgd")], "dpsgd on digits"),
            ([on("mnist", "dpsgd")], "dpsgd on mnist"),
            ([on("digits")], "trained on digits"),
            # The weights began with private data, and were then trained on public ones.
            ([on("digits"), on("mnist")], "trained on digits"),
            ([on("mnist", public_data="digits")], "trained on digits"),
        ],
        ids=str,
    )
    def test_weights_that_owe_something_to_private_data_are_refused(
        self, tmp_path, trainings, fact
    ):
        path = result_of(tmp_path, *trainings)
        with pytest.raises(ValueError, match=fact):
            run(private(path), verbose=0)
        # Without privacy anything goes.
        assert earlier_trainings(Experiment(**SMALL, mechanism="none"), path) == (*trainings,)

    def test_data_that_are_made_of_the_same_are_the_same(self, tmp_path):
        path = result_of(tmp_path, on("ag_news_characters"))
        news = Experiment(dataset="ag_news_subset", model="bilstm", noise_multiplier=1.0)
        with pytest.raises(ValueError, match="ag_news_characters"):
            earlier_trainings(news, path)

    def test_weights_of_other_data_are_declared_public(self, tmp_path):
        path = result_of(tmp_path, on("mnist"))
        result = run(private(path), verbose=0)
        assert result.run.start == "public"
        content = record(result)
        assert "trained on mnist" in content["notes"][0]
        assert content["trained_on"] == [on("mnist"), on("digits", "dpsgd")]

    def test_weights_without_a_record_are_declared_public(self, tmp_path):
        pretrained(tmp_path / "model.keras", classes=100)
        model = models.build("mlp", (8, 8, 1), 10)
        declared, fresh = private(tmp_path / "model.keras"), private(None)
        assert declared.starts_public and not fresh.starts_public
        trained_on, notes = begin(declared, model)
        assert trained_on == (UNKNOWN,) and "logits" in notes[0]
        assert begin(fresh, model) == ((), [])

    def test_a_file_with_a_ledger_is_refused(self, tmp_path):
        result = run(Experiment(noise_multiplier=1.0, **SMALL), verbose=0)
        assert result.run.start == "assumed" and record(result)["notes"] == []
        result.model.save(tmp_path / "model.keras")
        with pytest.raises(ValueError, match="ledger"):
            run(private(tmp_path / "model.keras"), verbose=0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("glue/sst2", "glue/sst2:2.0.0", True),
        ("glue", "glue/cola", True),
        ("glue/sst2", "glue/cola", False),
        ("imdb_reviews", "imdb_reviews/plain_text:1.0.0", True),
        ("emnist/mnist", "mnist", True),
        ("mnist_corrupted", "mnist", True),
        ("cifar10", "cifar10_n", True),
        ("cifar10", "cifar100", False),
        ("kmnist", "mnist", False),
        ("ag_news_characters", "ag_news_subset", True),
        ("digits", "digits", True),
        ("imagenet_resized/8x8", "imagenet_resized/64x64", True),
        ("huggingface:mnist", "mnist", True),
        ("glue/rte", "super_glue/boolq", False),
        ("glue/sst2", "multi_nli", False),
        ("cifar10_n", "cifar100_n", False),
    ],
)
def test_data_sets_that_may_share_records(one, other, same):
    assert may_share_records(one, other) == may_share_records(other, one) == same


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
        with pytest.raises(ValueError, match="Expected --trainable_layers"):
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
        with pytest.raises(ValueError, match="frozen by --embeddings"):
            freeze(model, "embedding,logits")
        freeze(model, "bilstm,logits")
        assert len(model.trainable_variables) == 8
