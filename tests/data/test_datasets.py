"""Data sets are scaled by public constants and complete, and errors name what is missing."""

import dataclasses
import os
import pathlib
import subprocess
import sys
import threading
import urllib.error

import numpy as np
import pytest

from tfdp import data
from tfdp.data import datasets
from tfdp.data.spec import described

PREPARED = pathlib.Path(
    os.environ.get("TFDS_DATA_DIR")
    or pathlib.Path(__file__).resolve().parents[3] / "shared" / "tfds"
)


def prepared(name):
    """Skips the test if the data set is not prepared."""
    return pytest.mark.skipif(
        not (PREPARED / name).is_dir(),
        reason=f"{name} is not prepared; name a folder that holds it with TFDS_DATA_DIR",
    )


class TestDigits:
    def test_shapes_and_range(self):
        digits = data.load("digits")
        assert digits.x_train.shape == (1437, 8, 8, 1)
        assert digits.x_test.shape == (360, 8, 8, 1)
        assert digits.x_train.dtype == np.float32
        assert digits.y_train.dtype == digits.y_test.dtype == np.int32
        assert (digits.x_train.min(), digits.x_train.max()) == (-1, 1)
        assert (digits.num_classes, digits.input_shape) == (10, (8, 8, 1))
        data.check_labels(digits.y_train, 10)

    def test_the_split_is_fixed(self):
        first, second = data.load("digits"), data.load("digits")
        np.testing.assert_array_equal(first.x_train, second.x_train)
        # Golden values: with another split, earlier results could not be compared.
        assert first.y_test[:10].tolist() == [6, 3, 7, 2, 0, 5, 9, 2, 6, 0]

    def test_train_and_test_are_all_of_it(self):
        from sklearn.datasets import load_digits

        digits = data.load("digits")
        ours = np.concatenate([digits.x_train, digits.x_test]).reshape(1797, 64) * 8 + 8
        theirs = load_digits().data
        np.testing.assert_array_equal(np.sort(ours, axis=0), np.sort(theirs, axis=0))

    def test_other_splits_are_refused(self):
        for option in ({"train_split": "train[:9]"}, {"test_split": "a"}, {"text_features": ["b"]}):
            with pytest.raises(ValueError, match="Expected no other splits and no features"):
                data.load("digits", **option)

    def test_splits_by_name(self):
        x, y = data.load_split("digits", "test")
        np.testing.assert_array_equal(x, data.load("digits").x_test)
        np.testing.assert_array_equal(y, data.load("digits").y_test)
        with pytest.raises(data.DataUnavailable, match=r"no split 'validation'.*test, train"):
            data.load_split("digits", "validation")

    def test_is_frozen(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            data.load("digits").name = "other"

    def test_needs_no_tensorflow_datasets(self):
        program = (
            "import sys; from tfdp.data import load; load('digits'); "
            "assert 'tensorflow_datasets' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", program], timeout=120, check=True)


class TestOther:
    """Data sets that only tensorflow_datasets knows, described by their features."""

    def test_a_text(self):
        spec = described("reviews", features(text="Text", label=2, id="Text"))
        assert (spec.kind, spec.text, spec.num_classes) == ("texts", ("text",), 2)

    def test_several_texts_have_to_be_named(self):
        known = features(title="Text", body="Text", label=3)
        with pytest.raises(ValueError, match=r"an image or with one text.*--text_features"):
            described("news", known)
        assert described("news", known, ["body", "title"]).text == ("body", "title")
        with pytest.raises(ValueError, match=r"among title, body of 'news'\. Found label"):
            described("news", known, ["label"])

    def test_an_image(self):
        spec = described("pictures", features(image=(9, 9, 3), label=5))
        assert (spec.kind, spec.input_shape, spec.num_classes) == ("images", (9, 9, 3), 5)
        with pytest.raises(ValueError, match="images of one size"):
            described("pictures", features(image=(None, None, 3), label=5))

    def test_a_label_is_needed(self):
        with pytest.raises(ValueError, match="with a class label of the name 'label'"):
            described("plain", features(text="Text"))

    def test_a_known_name_needs_no_file(self, tmp_path, monkeypatch):
        def no_network(host):
            raise ConnectionError(host)

        monkeypatch.setattr(datasets, "_probe", no_network)
        with pytest.raises(data.DataUnavailable, match="imdb_reviews"):
            data.load("imdb_reviews", str(tmp_path))
        assert datasets.kind_of("imdb_reviews") is None
        assert datasets.input_shape("imdb_reviews") is None
        datasets.check_name("imdb_reviews")
        with pytest.raises(ValueError, match="Did you mean 'imdb_reviews'"):
            datasets.check_name("imdb_review")


class Instruction:
    """A part of a file, as tensorflow_datasets describes it."""

    def __init__(self, filename, skip, take, examples_in_shard=9):
        self.filename, self.skip, self.take = filename, skip, take
        self.examples_in_shard = examples_in_shard


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (("a", 0, 5), ("a", 5, 4), True),
        (("a", 0, 5), ("a", 4, 5), False),
        (("a", 0, -1), ("a", 8, 1), False),
        (("a", 3, 1), ("a", 0, 9), False),
        (("a", 0, -1), ("b", 0, -1), True),
    ],
)
def test_positions_that_overlap_are_refused(one, other, apart):
    """`take` is -1 for all records of a file."""

    class Split:
        def __init__(self, part):
            self.num_examples, self.file_instructions = 1, [Instruction(*part)]

    class Builder:
        class info:
            splits = {"train": Split(one), "test": Split(other)}

    for first, second in (("train", "test"), ("test", "train")):
        if apart:
            datasets._check_apart(Builder, "some", first, second)
            continue
        with pytest.raises(ValueError, match="no example in common"):
            datasets._check_apart(Builder, "some", first, second)


def test_a_split_that_repeats_examples_is_refused():
    """`tensorflow_datasets` takes "train[:9]+train[:9]", and reads the examples twice."""

    def builder(*parts):
        class Split:
            num_examples, file_instructions = 9, [Instruction(*part) for part in parts]

        class Builder:
            name, data_dir = "some", "here"

            class info:
                splits = {"train": Split}

        return Builder

    datasets._check_split(builder(("a", 0, 5), ("a", 5, -1), ("b", 0, 5)), "train")
    for parts in [[("a", 0, 5), ("a", 0, 5)], [("b", 0, 1), ("a", 0, 5), ("a", 4, -1)]]:
        with pytest.raises(ValueError, match="several times"):
            datasets._check_split(builder(*parts), "train")


def features(**named):
    import tensorflow_datasets as tfds

    def feature(value):
        if value == "Text":
            return tfds.features.Text()
        if isinstance(value, int):
            return tfds.features.ClassLabel(num_classes=value)
        return tfds.features.Image(shape=value)

    return {name: feature(value) for name, value in named.items()}


@pytest.mark.parametrize("function", [data.load, lambda name: data.load_split(name, "train")])
def test_unknown_name(function):
    with pytest.raises(ValueError, match=r"Expected name .*'cifar10'.*'digits'.*'mnist'.*'mnits'"):
        function("mnits")


class TestUnavailable:
    """Without a network and prepared data, the error says in one sentence what to do."""

    @pytest.fixture(autouse=True)
    def empty_folder(self, monkeypatch, tmp_path):
        monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))

    def check(self, cause):
        with pytest.raises(data.DataUnavailable) as caught:
            data.load("mnist")
        message = str(caught.value)
        for hint in ("mnist", "--data_dir", "TFDS_DATA_DIR", "--dataset=digits", cause):
            assert hint in message
        assert "\n" not in message

    def test_no_network(self, monkeypatch):
        def refuse(*_, **__):
            raise urllib.error.URLError("Network is unreachable")

        monkeypatch.setattr(datasets.urllib.request, "urlopen", refuse)
        self.check("Network is unreachable")

    def test_network_that_swallows_everything(self, monkeypatch):
        release = threading.Event()
        monkeypatch.setattr(datasets.urllib.request, "urlopen", lambda *_, **__: release.wait())
        monkeypatch.setattr(datasets, "_PROBE_SECONDS", 0.1)
        self.check("TimeoutError: no answer from https://storage.googleapis.com")
        release.set()

    def test_download_that_fails(self, monkeypatch):
        import tensorflow_datasets as tfds

        def fail(*_, **__):
            raise OSError("disk full,\nreally")

        monkeypatch.setattr(datasets, "_probe", lambda host: None)
        monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
        self.check("disk full, really")

    def test_an_unfriendly_answer_is_a_network(self, monkeypatch):
        def forbid(*_, **__):
            raise urllib.error.HTTPError("https://host", 403, "Forbidden", {}, None)

        monkeypatch.setattr(datasets.urllib.request, "urlopen", forbid)
        datasets._probe("https://host")  # this must not raise


class TestPrepared:
    @prepared("mnist")
    def test_mnist(self):
        mnist = data.load("mnist", str(PREPARED))
        assert mnist.x_train.shape == (60_000, 28, 28, 1)
        assert mnist.x_test.shape == (10_000, 28, 28, 1)
        assert mnist.x_train.dtype == np.float32
        assert (mnist.x_train.min(), mnist.x_train.max()) == (-1, 1)
        assert np.bincount(mnist.y_train)[:3].tolist() == [5923, 6742, 5958]
        assert mnist.input_shape == mnist.x_train.shape[1:]

    @prepared("cifar10")
    def test_cifar10(self, monkeypatch):
        monkeypatch.setenv("TFDS_DATA_DIR", str(PREPARED))
        cifar = data.load("cifar10")
        assert cifar.x_train.shape == (50_000, 32, 32, 3)
        assert np.bincount(cifar.y_train).tolist() == [5000] * 10
        assert np.bincount(cifar.y_test).tolist() == [1000] * 10

    @prepared("glue")
    def test_sst2(self):
        sst2 = data.load("glue/sst2", str(PREPARED))
        assert len(sst2.x_train) == len(sst2.y_train) == 67_349
        assert len(sst2.x_test) == len(sst2.y_test) == 872
        assert sst2.x_test.dtype.kind == "U"
        data.check_labels(sst2.y_test, 2)
        tokens = data.hash_tokens(sst2.x_test, num_buckets=1000, length=32)
        assert np.unique(tokens).size > 500

    @prepared("ag_news_subset")
    def test_ag_news(self):
        texts, labels = data.load_split("ag_news_subset", "test", str(PREPARED))
        assert len(texts) == 7_600
        assert np.bincount(labels).tolist() == [1900] * 4

    @prepared("cifar100")
    def test_images_that_only_tensorflow_datasets_knows(self, monkeypatch):
        parts = {"train_split": "test[:50]", "test_split": "test[50:60]"}
        known = data.load("cifar100", str(PREPARED), **parts)
        monkeypatch.delitem(datasets.DATASETS, "cifar100")
        found = data.load("cifar100", str(PREPARED), **parts)
        assert (found.input_shape, found.num_classes) == ((32, 32, 3), 100)
        np.testing.assert_array_equal(found.x_test, known.x_test)
        np.testing.assert_array_equal(found.y_train, known.y_train)

    @prepared("ag_news_subset")
    def test_parts_of_a_split(self):
        parts = {"train_split": "test[:6080]", "test_split": "test[6080:]"}
        news = data.load("ag_news_subset", str(PREPARED), **parts)
        assert (len(news.y_train), len(news.y_test), news.input_shape) == (6080, 1520, ())
        assert news.source.endswith("ag_news_subset, test[:6080] and test[6080:]")
        texts, labels = data.load_split("ag_news_subset", "test", str(PREPARED))
        np.testing.assert_array_equal(np.concatenate([news.x_train, news.x_test]), texts)
        np.testing.assert_array_equal(np.concatenate([news.y_train, news.y_test]), labels)
        titles = data.load("ag_news_subset", str(PREPARED), **parts, text_features=["title"])
        assert all(map(str.startswith, map(str, news.x_train), map(str, titles.x_train)))

    @prepared("ag_news_subset")
    @pytest.mark.skipif(
        any(PREPARED.glob("ag_news_subset/*/*-train*")), reason="all of AG News is prepared here"
    )
    def test_the_papers_split_of_ag_news_needs_the_training_texts(self):
        assert datasets.DATASETS["ag_news_subset"].train_split == "train[:96000]"
        with pytest.raises(data.DataUnavailable, match=r"no split 'train\[:96000\]'"):
            data.load("ag_news_subset", str(PREPARED))

    @prepared("ag_news_subset")
    @pytest.mark.parametrize(
        ("train", "test", "words"),
        [
            ("test[:6080]", "test[6079:]", "no example in common"),
            ("test", "test[7599:]", "no example in common"),
            ("test[:50%]", "test[40%:60%]", "no example in common"),
            ("test[5:5]", "test[6:]", "which has none"),
            ("test[:9]+test[:9]", "test[9:]", "several times"),
            ("test[:9]+test[20:30]+test[8:10]", "test[40:]", "several times"),
            ("test[:9]", "test[10:20]+test[19:30]", "several times"),
            ("test[a]", "test[6:]", "Expected a split such as"),
        ],
    )
    def test_splits_that_cannot_be(self, train, test, words):
        with pytest.raises(ValueError, match=words):
            data.load("ag_news_subset", str(PREPARED), train_split=train, test_split=test)

    @prepared("glue")
    def test_withheld_labels_are_refused(self):
        with pytest.raises(ValueError, match="label is withheld"):
            data.load("glue/sst2", str(PREPARED), test_split="test")

    @prepared("ag_news_subset")
    def test_ag_news_characters(self):
        rows = data.load("ag_news_characters", str(PREPARED))
        assert rows.x_train.shape == rows.y_train.shape == (16_194, 79)
        assert rows.x_test.shape == rows.y_test.shape == (2_439, 79)
        assert (rows.input_shape, rows.num_classes) == ((79,), 256)
        np.testing.assert_array_equal(rows.x_train[:, 1:], rows.y_train[:, :-1])
        texts, _ = data.load_split("ag_news_subset", "test", str(PREPARED))
        assert bytes(rows.x_train[0].tolist()) == texts[0].encode()[:79]
        assert bytes(rows.y_test[0].tolist()) == texts[6600].encode()[1:80]
        assert "test[:6600] and test[6600:]" in rows.source
        assert "80 bytes" in rows.preprocessing
        data.check_labels(rows.y_train, 256)
        for split, x in (("train", rows.x_train), ("test", rows.x_test)):
            alone, _ = data.load_split("ag_news_characters", split, str(PREPARED))
            np.testing.assert_array_equal(alone, x)

    @prepared("kmnist")
    @pytest.mark.skipif(
        any(PREPARED.glob("kmnist/*/*-train*")), reason="all of KMNIST is prepared here"
    )
    def test_missing_split(self):
        with pytest.raises(data.DataUnavailable, match=r"no split 'train' \(it has: test\)"):
            data.load("kmnist", str(PREPARED))

    @pytest.mark.parametrize(
        ("name", "shape"),
        [
            pytest.param("mnist", (28, 28, 1), marks=prepared("kmnist")),
            pytest.param("cifar10", (32, 32, 3), marks=prepared("cifar100")),
        ],
    )
    def test_public(self, name, shape):
        first = data.public(name, 30, str(PREPARED))
        assert first.shape == (30, *shape)
        assert first.dtype == np.float32
        assert np.abs(first).max() <= 1
        np.testing.assert_array_equal(first, data.public(name, 30, str(PREPARED)))
        assert not np.array_equal(first, data.public(name, 30, str(PREPARED), seed=1))
        assert len(np.unique(first.reshape(30, -1), axis=0)) == 30

    @prepared("kmnist")
    @pytest.mark.parametrize("count", [0, 10_001, float("nan")])
    def test_public_count(self, count):
        with pytest.raises(ValueError, match=r"Expected count .*from 1 to 10000"):
            data.public("mnist", count, str(PREPARED))


def test_no_public_counterpart():
    with pytest.raises(
        ValueError, match=r"Expected name .*'cifar10', 'cifar100', 'digits', .*'kmnist'"
    ):
        data.public("kmnist", 3)
