"""Data sets are scaled by public constants and complete, and errors name what is missing."""

import os
import pathlib
import types
import urllib.error

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tfdp import data
from tfdp.data import datasets
from tfdp.data.prepared import check_apart, check_split
from tfdp.data.spec import described
from tfdp.experiments import own_data

PREPARED = pathlib.Path(os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")).expanduser()


def prepared(name):
    """Skips the test if the data set is not prepared."""
    return pytest.mark.skipif(
        not (PREPARED / name).is_dir(),
        reason=f"{name} is not prepared; name a folder that holds it with TFDS_DATA_DIR",
    )


class TestDigits:
    def test_all_examples_are_there_in_a_fixed_split(self):
        digits = data.load("digits")
        assert (digits.x_train.shape, digits.x_test.shape) == ((1437, 8, 8, 1), (360, 8, 8, 1))
        assert digits.x_train.dtype == np.float32
        assert digits.y_train.dtype == digits.y_test.dtype == np.int32
        assert (digits.num_classes, digits.input_shape) == (10, (8, 8, 1))
        data.check_labels(digits.y_train, 10)
        # Golden values: with another split, earlier results could not be compared.
        assert digits.y_test[:10].tolist() == [6, 3, 7, 2, 0, 5, 9, 2, 6, 0]
        ours = np.concatenate([digits.x_train, digits.x_test]).reshape(1797, 64)
        np.testing.assert_array_equal(
            np.sort(ours, axis=0), np.sort(load_digits().data / 8 - 1, axis=0)
        )

    def test_splits_by_name(self):
        x, y = data.load_split("digits", "test")
        np.testing.assert_array_equal(x, data.load("digits").x_test)
        np.testing.assert_array_equal(y, data.load("digits").y_test)
        with pytest.raises(data.DataUnavailable, match="test, train"):
            data.load_split("digits", "validation")

    def test_other_splits_are_refused(self):
        with pytest.raises(ValueError, match="digits"):
            data.load("digits", train_split="train[:9]")


class TestDescribed:
    """Data sets that only tensorflow_datasets knows, described by their features."""

    @pytest.fixture
    def tfds(self):
        return pytest.importorskip("tensorflow_datasets").features

    def test_there_is_one_text(self, tfds):
        known = {"body": tfds.Text(), "label": tfds.ClassLabel(num_classes=3)}
        spec = described("news", known)
        assert (spec.kind, spec.text, spec.num_classes) == ("texts", ("body",), 3)
        with pytest.raises(ValueError, match=r"to \(text, label\)"):
            described("news", known | {"title": tfds.Text()})

    def test_images_have_one_size_and_a_label(self, tfds):
        known = {"image": tfds.Image(shape=(9, 9, 3)), "label": tfds.ClassLabel(num_classes=5)}
        spec = described("pictures", known)
        assert (spec.kind, spec.input_shape, spec.num_classes) == ("images", (9, 9, 3), 5)
        with pytest.raises(ValueError, match="one size"):
            described("pictures", known | {"image": tfds.Image(shape=(None, None, 3))})
        with pytest.raises(ValueError, match="label"):
            described("pictures", {"image": known["image"]})


def builder_of(**splits):
    """A builder whose splits read such parts (file, first record, number of records or -1)."""
    made = {
        name: types.SimpleNamespace(
            num_examples=9,
            file_instructions=[
                types.SimpleNamespace(filename=file, skip=skip, take=take, examples_in_shard=9)
                for file, skip, take in parts
            ],
        )
        for name, parts in splits.items()
    }
    return types.SimpleNamespace(
        name="some", data_dir="here", info=types.SimpleNamespace(splits=made)
    )


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (("a", 0, 5), ("a", 5, 4), True),
        (("a", 0, -1), ("b", 0, -1), True),
        (("a", 0, 5), ("a", 4, 5), False),
        (("a", 0, -1), ("a", 8, 1), False),
        (("a", 3, 1), ("a", 0, 9), False),
    ],
)
def test_splits_that_overlap_are_refused(one, other, apart):
    builder = builder_of(train=[one], test=[other])
    for names in (("train", "test"), ("test", "train")):
        if apart:
            check_apart(builder, "some", *names)
        else:
            with pytest.raises(ValueError, match="share examples"):
                check_apart(builder, "some", *names)


def test_a_split_that_repeats_examples_is_refused():
    """`tensorflow_datasets` takes "train[:9]+train[:9]", and reads the examples twice."""
    check_split(builder_of(train=[("a", 0, 5), ("a", 5, -1), ("b", 0, 5)]), "train")
    for parts in [[("a", 0, 5), ("a", 0, 5)], [("b", 0, 1), ("a", 0, 5), ("a", 4, -1)]]:
        with pytest.raises(ValueError, match="repeats some"):
            check_split(builder_of(train=parts), "train")


class TestUnavailable:
    @pytest.mark.parametrize("function", [data.load, lambda name: data.load_split(name, "train")])
    def test_an_unknown_name_is_refused(self, function):
        with pytest.raises(ValueError, match="'mnist'"):
            function("mnits")

    def test_names_of_tensorflow_datasets_are_known_without_a_file(self):
        assert own_data.kind_of("imdb_reviews") is None
        datasets.check_name("imdb_reviews")
        with pytest.raises(ValueError, match="imdb_reviews"):
            datasets.check_name("imdb_review")

    def test_without_a_network_the_error_says_what_to_do(self, monkeypatch, tmp_path):
        def refuse(*_, **__):
            raise urllib.error.URLError("Network is unreachable")

        monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
        monkeypatch.setattr(urllib.request, "urlopen", refuse)
        with pytest.raises(data.DataUnavailable, match="TFDS_DATA_DIR"):
            data.load("mnist")


class TestPrepared:
    """What prepared data sets hold; skipped where there is none."""

    @pytest.mark.slow
    @prepared("mnist")
    def test_mnist(self):
        mnist = data.load("mnist", str(PREPARED))
        assert (mnist.x_train.shape, mnist.x_test.shape) == ((60000, 28, 28, 1), (10000, 28, 28, 1))
        assert mnist.x_train.dtype == np.float32
        assert (mnist.x_train.min(), mnist.x_train.max()) == (-1, 1)
        assert np.bincount(mnist.y_train)[:3].tolist() == [5923, 6742, 5958]

    @pytest.mark.slow
    @prepared("glue")
    def test_sst2_and_its_withheld_labels(self):
        sst2 = data.load("glue/sst2", str(PREPARED))
        assert (len(sst2.x_train), len(sst2.x_test)) == (67_349, 872)
        assert sst2.x_test.dtype.kind == "U"
        data.check_labels(sst2.y_test, 2)
        with pytest.raises(ValueError, match="withheld"):
            data.load("glue/sst2", str(PREPARED), test_split="test")

    @prepared("ag_news_subset")
    @pytest.mark.parametrize(
        ("train", "test", "match"),
        [
            ("test[:50%]", "test[40%:60%]", "share examples"),
            ("test[:9]+test[20:30]+test[8:10]", "test[40:]", "repeats some"),
            ("test[5:5]", "test[6:]", "no examples"),
            ("test[a]", "test[6:]", "such as"),
        ],
    )
    def test_splits_that_cannot_be(self, train, test, match):
        with pytest.raises(ValueError, match=match):
            data.load("ag_news_subset", str(PREPARED), train_split=train, test_split=test)

    @pytest.mark.slow
    @prepared("ag_news_subset")
    def test_rows_of_characters_predict_the_next_byte(self):
        rows = data.load("ag_news_characters", str(PREPARED))
        assert rows.x_train.shape == rows.y_train.shape == (16_194, 79)
        assert (rows.input_shape, rows.num_classes) == ((79,), 256)
        np.testing.assert_array_equal(rows.x_train[:, 1:], rows.y_train[:, :-1])
        texts, _ = data.load_split("ag_news_subset", "test", str(PREPARED))
        assert bytes(rows.x_train[0].tolist()) == texts[0].encode()[:79]
        assert bytes(rows.y_test[0].tolist()) == texts[6600].encode()[1:80]
        alone, _ = data.load_split("ag_news_characters", "test", str(PREPARED))
        np.testing.assert_array_equal(alone, rows.x_test)


def test_each_text_is_cut_by_itself():
    rows = datasets.cut_bytes([b"abcdefg", b"hij", b"", b"kl", "é\n!".encode()], 3)
    assert rows.dtype == np.int32
    assert [bytes(row.tolist()) for row in rows] == [b"abc", b"def", b"hij", "é\n".encode()]
    assert datasets.cut_bytes([b"ab", b"c"], 3).shape == (0, 3)
