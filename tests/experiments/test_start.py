"""Training starts from public weights only, and changes only the layers that are named."""

import json
import shutil

import keras
import numpy as np
import pytest

import tfdp
from tfdp import models
from tfdp.experiments import (
    Experiment,
    ResultFolder,
    announcement,
    record,
    run,
    run_into,
    saving,
)
from tfdp.experiments.partial_folder import ResultError
from tfdp.experiments.result_files import content_digest, digest
from tfdp.experiments.start import (
    UNKNOWN,
    are_of_the_same,
    begin,
    freeze,
    load,
    output_layers,
)

SMALL = {"model": "mlp", "batch_size": 64, "steps": 2, "seed": 3}


def private(path, **settings):
    settings = {"noise_multiplier": 1.0, **SMALL, **settings}
    return Experiment(initial_weights=str(path), **settings)


def pretrained(path, classes=10, **options):
    """Writes a network with weights of its own, and returns it."""
    keras.utils.set_random_seed(77)
    model = models.build("mlp", (8, 8, 1), classes, **options)
    (model.save_weights if path.name.endswith(".weights.h5") else model.save)(path)
    return model


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Folders of three results: without privacy, private, and one that began with the first."""
    folder = tmp_path_factory.mktemp("results")
    plain = {**SMALL, "mechanism": "none"}
    made = {
        "plain": Experiment(**plain),
        "private": Experiment(noise_multiplier=1.0, **SMALL),
        "again": Experiment(**plain, initial_weights=str(folder / "plain" / "model.keras")),
    }
    for name, experiment in made.items():
        with ResultFolder(folder / name) as place:
            run_into(place, experiment, verbose=0)
    return folder


def relabelled(results, folder, name, **changes):
    """Copies a result and says that it was trained on other data."""
    shutil.copytree(results / name, folder / name)
    path = folder / name / "run.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(content))
    return folder / name / "model.keras"


class TestLoading:
    @pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
    def test_all_weights_of_the_same_network(self, tmp_path, name):
        public = pretrained(tmp_path / name)
        model = models.build("mlp", (8, 8, 1), 10)
        assert load(model, str(tmp_path / name)) == ()
        for mine, other in zip(model.get_weights(), public.get_weights(), strict=True):
            np.testing.assert_array_equal(mine, other)

    @pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
    def test_the_output_layer_stays_fresh_for_other_classes(self, tmp_path, name):
        public = pretrained(tmp_path / name, classes=100)
        model = models.build("mlp", (8, 8, 1), 10)
        drawn = model.get_layer("logits").get_weights()
        assert load(model, str(tmp_path / name)) == ("logits",)
        for layer in model.layers:
            kept = drawn if layer.name == "logits" else public.get_layer(layer.name).get_weights()
            for mine, other in zip(layer.get_weights(), kept, strict=True):
                np.testing.assert_array_equal(mine, other)

    def test_the_normalization_of_the_output_layer_stays_fresh_too(self, tmp_path):
        pretrained(tmp_path / "model.keras", classes=100, normalization="layer_affine")
        model = models.build("mlp", (8, 8, 1), 10, "layer_affine")
        assert load(model, str(tmp_path / "model.keras")) == ("logits", "logits_norm")
        assert all(np.isfinite(weights).all() for weights in model.get_weights())

    def test_public_examples_stay_those_of_this_training(self, tmp_path):
        public = tfdp.data.public("digits", 5)
        for number, seed in ((5, 1), (6, 2)):
            others = tfdp.data.public("digits", number, seed=seed)
            path = tmp_path / f"{number}.keras"
            file = pretrained(path, normalization="batch", public_data=others)
            model = models.build("mlp", (8, 8, 1), 10, "batch", public_data=public)
            assert load(model, str(path)) == ()
            np.testing.assert_array_equal(model.layers[0].examples, public)
            mine, other = (m.layers[0].network.get_weights() for m in (model, file))
            assert all(map(np.array_equal, mine, other))

    @pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
    def test_another_network_is_refused(self, tmp_path, name):
        pretrained(tmp_path / name)
        model = models.build("hidden_500", (8, 8, 1), 10)
        with pytest.raises(ValueError, match=r"Found other layers|Found"):
            load(model, str(tmp_path / name))

    def test_layers_that_do_not_fit_are_named(self, tmp_path):
        pretrained(tmp_path / "a.weights.h5")
        model = models.build("mlp", (9, 9, 1), 10)
        with pytest.raises(ValueError, match="none that fit the layers dense_1"):
            load(model, str(tmp_path / "a.weights.h5"))

    def test_damaged_files_and_other_formats_are_refused(self, tmp_path):
        model = models.build("mlp", (8, 8, 1), 10)
        (tmp_path / "a.keras").write_bytes(b"nothing")
        with pytest.raises(ValueError, match="Expected weights of the network 'mlp'"):
            load(model, str(tmp_path / "a.keras"))
        (tmp_path / "a.npz").write_bytes(b"nothing")
        with pytest.raises(ValueError, match=r"a \.keras or a \.weights\.h5 file"):
            load(model, str(tmp_path / "a.npz"))


class TestWhereWeightsComeFrom:
    def test_public_weights_are_declared(self, tmp_path):
        pretrained(tmp_path / "model.keras", classes=100)
        result = run(private(tmp_path / "model.keras"), verbose=0)
        assert result.run.start == "public"
        content = record(result)
        assert "no record says" in content["notes"][0] and "logits" in content["notes"][0]
        assert content["trained_on"] == [UNKNOWN, {"dataset": "digits", "mechanism": "dpsgd"}]
        without = run(Experiment(noise_multiplier=1.0, **SMALL), verbose=0)
        assert without.run.start == "assumed" and record(without)["notes"] == []

    def test_a_private_release_is_refused(self, results):
        with pytest.raises(ValueError, match=r"release of a private one \(dpsgd on digits\)"):
            run(private(results / "private" / "model.keras"), verbose=0)

    @pytest.mark.parametrize("name", ["plain", "again"])
    def test_training_on_the_same_data_without_privacy_is_refused(self, results, name):
        with pytest.raises(ValueError, match="trained on digits without privacy"):
            run(private(results / name / "model.keras"), verbose=0)

    def test_so_is_it_where_other_data_came_last(self, results, tmp_path):
        """The weights began with private data, and were then trained on public ones."""
        others = [{"dataset": name, "mechanism": "none"} for name in ("digits", "mnist")]
        path = relabelled(results, tmp_path, "plain", dataset="mnist", trained_on=others)
        with pytest.raises(ValueError, match="trained on digits without privacy"):
            run(private(path), verbose=0)

    def test_data_that_are_made_of_the_same_are_the_same(self, results, tmp_path):
        other = [{"dataset": "ag_news_characters", "mechanism": "none"}]
        path = relabelled(results, tmp_path, "plain", trained_on=other)
        news = Experiment(dataset="ag_news_subset", model="bilstm", noise_multiplier=1.0)
        from tfdp.experiments.start import earlier_trainings

        with pytest.raises(ValueError, match="trained on ag_news_characters without privacy"):
            earlier_trainings(news, str(path))

    def test_other_data_are_public(self, results, tmp_path):
        other = [{"dataset": "mnist", "mechanism": "none"}]
        path = relabelled(results, tmp_path, "plain", trained_on=other)
        result = run(private(path), verbose=0)
        assert "trained on mnist" in result.notes[0]
        both = [*other, {"dataset": "digits", "mechanism": "dpsgd"}]
        assert record(result)["trained_on"] == both

    def test_without_privacy_anything_goes(self, results):
        for name in ("plain", "private"):
            path = str(results / name / "model.keras")
            run(Experiment(**SMALL, mechanism="none", initial_weights=path), verbose=0)

    def test_a_file_with_a_ledger_is_refused(self, tmp_path):
        result = run(Experiment(noise_multiplier=1.0, **SMALL), verbose=0)
        result.model.save(tmp_path / "model.keras")
        with pytest.raises(ValueError, match="holds a privacy ledger"):
            run(private(tmp_path / "model.keras"), verbose=0)

    def test_a_file_that_is_not_that_of_its_record_is_refused(self, results, tmp_path):
        path = relabelled(results, tmp_path, "plain", trained_on=[])
        pretrained(path)
        with pytest.raises(ValueError, match=r"the model of the run\.json beside it"):
            run(private(path), verbose=0)

    def test_public_examples_of_an_earlier_training_are_its_data_too(self, results, tmp_path):
        other = [{"dataset": "mnist", "mechanism": "none", "public_data": "digits"}]
        path = relabelled(results, tmp_path, "plain", trained_on=other)
        with pytest.raises(ValueError, match="trained on digits without privacy"):
            run(private(path), verbose=0)
        public = Experiment(**SMALL, mechanism="none", normalization="batch", public_data="strokes")
        assert run(public, verbose=0).trained_on[-1]["public_data"] == "strokes"

    def test_what_no_record_tells_stays_known(self, tmp_path):
        """One more public training does not make weights those of public data."""
        pretrained(tmp_path / "model.keras")
        start = str(tmp_path / "model.keras")
        with ResultFolder(tmp_path / "r") as folder:
            run_into(
                folder, Experiment(**SMALL, mechanism="none", initial_weights=start), verbose=0
            )
        path = tmp_path / "r" / "run.json"
        content = json.loads(path.read_text())
        content["trained_on"][-1]["dataset"] = "kmnist"
        path.write_text(json.dumps(content))
        result = run(private(tmp_path / "r" / "model.keras"), verbose=0)
        assert "trained on data that no record names and then kmnist" in result.notes[0]

    def test_another_file_beside_a_record_is_not_that_of_the_record(self, results, tmp_path):
        path = relabelled(
            results, tmp_path, "plain", trained_on=[{"dataset": "kmnist", "mechanism": "none"}]
        )
        pretrained(path.parent / "other.keras")
        result = run(private(path.parent / "other.keras"), verbose=0)
        assert "of which no record says what they were trained on" in result.notes[0]
        path = relabelled(results, tmp_path, "private")
        pretrained(path.parent / "other.keras")
        with pytest.raises(ValueError, match="release of a private one"):
            run(private(path.parent / "other.keras"), verbose=0)

    @pytest.mark.parametrize("trained_on", [3, [3], [{"dataset": "kmnist"}]])
    def test_a_record_of_other_trainings_is_refused(self, results, tmp_path, trained_on):
        path = relabelled(results, tmp_path, "plain", trained_on=trained_on)
        with pytest.raises(ValueError, match="to list the trainings of the --initial_weights"):
            run(private(path), verbose=0)

    @pytest.mark.parametrize("damage", [b"", b"{", b"[]"])
    def test_a_damaged_record_beside_the_weights_is_refused(self, results, tmp_path, damage):
        path = relabelled(results, tmp_path, "plain")
        (path.parent / "run.json").write_bytes(damage)
        with pytest.raises(ValueError, match="which tells what the --initial_weights"):
            run(private(path), verbose=0)

    @pytest.mark.parametrize(
        ("one", "other", "same"),
        [
            ("glue/sst2", "glue/sst2:2.0.0", True),
            ("glue", "glue/cola", True),
            ("glue/sst2", "glue/cola", False),
            ("imdb_reviews", "imdb_reviews/plain_text:1.0.0", True),
            ("emnist/mnist", "mnist", True),
            ("mnist_corrupted", "mnist", True),
            ("mnist_corrupted/identity", "mnist", True),
            ("cifar10", "cifar10_n", True),
            ("cifar10", "cifar100", False),
            ("kmnist", "mnist", False),
            ("ag_news_characters", "ag_news_subset", True),
            ("digits", "digits", True),
            ("emnist/byclass", "emnist/digits", True),
            ("imagenet_resized/8x8", "imagenet_resized/64x64", True),
            ("huggingface:mnist", "mnist", True),
            ("binarized_mnist", "mnist", True),
            ("binarized_mnist", "moving_mnist/x", True),
            ("binarized_mnist", "mnist_corrupted", True),
            ("emnist", "mnist", True),
            ("emnist/balanced", "binarized_mnist", True),
            ("emnist/letters", "mnist", False),
            ("imagenette/full-size", "imagenet2012_subset/1pct", True),
            ("imagenette", "imagenet_resized/8x8", True),
            ("glue/mnli", "multi_nli", True),
            ("glue/rte", "super_glue/rte", True),
            ("glue/rte", "super_glue/boolq", False),
            ("glue/sst2", "multi_nli", False),
            ("stl10", "cifar10", False),
            ("imagenet_lt", "stanford_dogs", True),
            ("visual_domain_decathlon/svhn", "svhn_cropped", True),
            ("glue/mnli_matched", "glue/mnli", True),
            ("glue/mnli_matched", "glue/mnli_mismatched", True),
            ("glue/mnli_matched", "glue/sst2", False),
            ("glue/ax", "super_glue/axb", True),
            ("esnli", "snli", True),
            ("cifar10_n", "cifar10_corrupted", True),
            ("cifar10_n", "cifar100_n", False),
        ],
    )
    def test_names_of_the_same_data(self, one, other, same):
        assert are_of_the_same(one, other) == are_of_the_same(other, one) == same

    def test_a_link_hides_no_record(self, results, tmp_path):
        (tmp_path / "public.keras").symlink_to(results / "private" / "model.keras")
        with pytest.raises(ValueError, match="release of a private one"):
            run(private(tmp_path / "public.keras"), verbose=0)


class TestFreezing:
    def frozen(self, trainable, **options):
        model = models.build("mlp", (8, 8, 1), 10, "layer_affine", **options)
        freeze(model, trainable)
        return {layer.name for layer in model.layers if layer.trainable_variables}

    def test_names_patterns_and_numbers(self):
        assert self.frozen("logits") == {"logits"}
        assert self.frozen("logits*, dense_1") == {"logits", "logits_norm", "dense_1"}
        assert self.frozen("2") == {"logits", "logits_norm"}

    @pytest.mark.parametrize("trainable", ["0", "99", "conv_1", "logits,conv*", ""])
    def test_what_is_not_there_is_refused(self, trainable):
        with pytest.raises(ValueError, match="Expected --trainable_layers"):
            self.frozen(trainable)

    def test_inside_of_public_examples(self):
        public = tfdp.data.public("digits", 5)
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

    def test_only_the_named_layers_move(self):
        settings = {"noise_multiplier": 1.0, **SMALL, "trainable_layers": "logits"}
        result = run(Experiment(**settings, cache_features=False), verbose=0)
        assert {v.path.split("/")[-2] for v in result.model.trainable_variables} == {"logits"}
        assert result.notes == ("Only logits was trained; all other layers are frozen.",)


def test_fresh_weights_are_no_start():
    model = models.build("mlp", (8, 8, 1), 10)
    start = begin(Experiment(noise_multiplier=1.0, **SMALL), model)
    assert (start.public, start.trained_on, start.notes) == (False, (), ())


def test_the_announcement_says_where_training_starts():
    experiment = private("there.keras", trainable_layers="logits")
    assert "from the public weights there.keras, training logits." in announcement.announcement(
        experiment
    )


@pytest.mark.parametrize("when", ["before it is read", "afterwards"])
def test_the_record_names_the_weights_that_were_loaded(tmp_path, monkeypatch, when):
    """The file may be written anew while a training runs."""
    path = tmp_path / "model.keras"
    pretrained(path)
    first = digest(str(path))
    real = saving.run

    def trained(*arguments, **options):
        result = real(*arguments, **options) if when == "afterwards" else None
        path.write_bytes(other.read_bytes())
        return result or real(*arguments, **options)

    other = tmp_path / "other.keras"
    keras.utils.set_random_seed(78)
    models.build("mlp", (8, 8, 1), 10).save(other)
    monkeypatch.setattr(saving, "run", trained)
    experiment = Experiment(**SMALL, mechanism="none", initial_weights=str(path))
    with ResultFolder(tmp_path / "r") as folder:
        if when == "before it is read":
            with pytest.raises(ResultError, match="one was written anew"):
                run_into(folder, experiment, verbose=0)
            return
        run_into(folder, experiment, verbose=0)
    content = json.loads((tmp_path / "r" / "run.json").read_text())
    assert content["digests_of_settings"] == {"initial_weights": first}
    assert content["contents_of_settings"] != {"initial_weights": content_digest(str(path))}
    assert f"SHA-256 {first[:16]}" in str(content["notes"])
