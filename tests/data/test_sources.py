"""Anything that gives rows by index is a source, and is read only where it has to be."""

import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import sgd

import tfdp
from tests.training.small import small
from tfdp import data
from tfdp.data.sources import is_source

X, Y = np.arange(80, dtype=np.float32).reshape(20, 4) / 80, np.arange(20) % 3


def seeded():
    return small(sgd(seed=3), seed=3)


class Records:
    """Single examples, with a note of which were read."""

    def __init__(self, make=lambda index: (X[index], Y[index])):
        self.make, self.read = make, []

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        self.read.append(index)
        return self.make(index)


class ManyRecords(Records):
    def __getitems__(self, indices):
        assert indices == sorted({*indices})
        return [self[index] for index in indices]


SOURCES = {
    "records": (Records, {}),
    "records, many at a time": (ManyRecords, {}),
    "dictionaries": (
        lambda: Records(lambda i: {"image": X[i], "label": Y[i], "other": "text"}),
        {"keys": ("image", "label")},
    ),
    "arrays": (lambda: (X, Y), {}),
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("sampling", ["poisson", "shuffle", "with_replacement"])
def test_lots_are_the_same_from_every_source(kind, sampling):
    make, options = SOURCES[kind]
    source = data.as_source(make(), **options)
    one = data.make_lots(sampling, source, lot_size=5, seed=1)
    other = data.make_lots(sampling, X, Y, lot_size=5, seed=1)
    for lots in zip(one.as_dataset().take(6), other.as_dataset().take(6), strict=True):
        for a, b in zip(*lots, strict=True):
            np.testing.assert_array_equal(a, b)
    assert (one.num_examples, one.steps_per_epoch) == (other.num_examples, other.steps_per_epoch)
    assert one.spec == other.spec


def test_only_drawn_rows_are_read():
    records = Records()
    lots = data.make_lots("cyclic", records, lot_size=4)
    dataset = lots.as_dataset()
    records.read.clear()
    next(iter(dataset))
    assert {*records.read} <= {*range(12)}  # two lots are read ahead


def test_arrays_are_not_copied(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.uint8, "w+", shape=(20, 4))
    array = X.astype(np.float64)
    assert np.shares_memory(data.as_source(array).in_memory()[0], array)
    assert data.as_source(mapped).in_memory() is None
    lots = data.make_lots("cyclic", X.astype(np.float64), lot_size=2)
    assert lots.spec[0].dtype == tf.float32


def test_parts_are_of_the_same_rows():
    source = data.as_source(Records())
    train, held_out = source[:15], source[15:]
    assert (len(train), len(held_out), len(source[::-2]), len(train[5:10])) == (15, 5, 10, 5)
    np.testing.assert_array_equal(held_out.rows(np.array([0, 4]))[0], X[[15, 19]])
    np.testing.assert_array_equal(train[5:10].rows(np.array([3, 0, 3]))[0], X[[8, 5, 8]])
    np.testing.assert_array_equal(source[::-2].rows(np.array([0, 1]))[0], X[[19, 17]])
    np.testing.assert_array_equal(data.as_source((X, Y))[15:].in_memory()[0], X[15:])
    some = source[np.array([7, 2, 9])]
    np.testing.assert_array_equal(some.rows(np.array([0, 2]))[0], X[[7, 9]])
    np.testing.assert_array_equal(source[np.array([2, 7])].rows(np.array([1]))[0], X[[7]])
    with pytest.raises(ValueError, match="rows"):
        source[20:]
    with pytest.raises(ValueError, match="distinct indices"):
        source[np.array([1, 1])]
    np.testing.assert_array_equal(source[Y == 2].rows(np.array([1]))[0], X[[5]])
    with pytest.raises(TypeError, match="an index"):
        source["x"]


def test_a_private_model_takes_a_source_as_it_takes_arrays():
    found = []
    for given in ({"x": X, "y": Y}, {"x": Records()}):
        model = seeded()
        model.fit(**given, batch_size=10, verbose=0, validation_data=data.as_source((X, Y)))
        found.append(
            (
                model.get_weights(),
                model.privacy.spent(1e-3).epsilon,
                model.evaluate(**given, verbose=0),
            )
        )
    (one, epsilon, loss), (other, same_epsilon, same_loss) = found
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
    assert epsilon == same_epsilon and loss == pytest.approx(same_loss)


def test_a_source_is_split_and_weighted_by_class():
    model = seeded()
    history = model.fit(
        Records(),
        batch_size=15,
        validation_split=0.25,
        class_weight={0: 2.0, 1: 1.0, 2: 0.0},
        verbose=0,
    )
    assert model.privacy.current_run.sampling.num_examples == 15
    assert "val_loss" in history.history


def test_fingerprints_tell_sources_apart():
    one, same, other = (
        data.as_source(Records(make)).fingerprint()
        for make in (lambda i: (X[i], Y[i]), lambda i: (X[i], Y[i]), lambda i: (X[i], Y[-i]))
    )
    assert one == same != other


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Records(), True),
        (X, False),
        ([1.0, 2.0], False),
        ((X, Y), False),
        ({"a": X}, False),
        ("text", False),
        (tf.constant([1.0]), False),
        (tf.data.Dataset.range(3), False),
        (data.SourceBatches(data.as_source(X), 2), False),
        (iter([1]), False),
    ],
)
def test_what_gives_single_examples_is_a_source(value, expected):
    assert is_source(value) == expected


def test_an_error_of_a_row_names_the_row():
    def broken(index):
        if index == 7:
            raise OSError("disk")
        return X[index], Y[index]

    model, source, fine = seeded(), Records(broken), {"x": X, "y": Y}
    for use in (
        lambda: model.fit(source, batch_size=20, verbose=0),
        lambda: model.fit(**fine, validation_data=source, verbose=0),
        lambda: model.evaluate(source, verbose=0),
        lambda: model.predict(source, verbose=0),
    ):
        with pytest.raises(OSError, match="disk") as raised:
            use()
        assert raised.value.__notes__ == ["(row 7 of the source)"]
    model.fit(**fine, verbose=0)  # nothing is left over


def other(**changes):
    """Records of which one has other values; the first rows do not."""

    def row(index):
        example = {"a": X[index], "b": 1, "y": Y[index], "w": 0.2}
        return example | (changes if index == 15 else {})

    return data.as_source(Records(row), keys=({"a": "a", "b": "b"}, "y", "w"))


@pytest.mark.parametrize("lot_size", [1, 10])
@pytest.mark.parametrize(
    "changes",
    [{"w": None}, {"y": None}, {"a": np.ones(3)}, {"a": "text"}, {"b": 1.5}, {"y": np.ones(2)}],
    ids=repr,
)
def test_a_row_of_another_form_is_named_and_changes_no_other_row(changes, lot_size):
    source = other(**changes)
    ((x, _, weight),) = data.make_lots("cyclic", source, lot_size=10).as_dataset().take(1)
    assert x["b"].dtype == tf.int64 and np.array_equal(weight, np.full(10, np.float32(0.2)))
    batches = data.SourceBatches(source, lot_size)
    with pytest.raises(ValueError, match=r"Row 1\d of the source") as found:
        for index in range(len(batches)):
            batches[index]
    if changes == {"w": None} and lot_size == 1:
        return  # alone in its lot, a row without a weight has weight 1
    lots = data.make_lots("cyclic", source, lot_size=lot_size)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Row 1\d ") as raised:
        [*lots.as_dataset().take(20 // lot_size)]
    assert type(lots.cause_of(raised.value)) is type(found.value)


def test_whole_numbers_become_floats_where_the_first_row_has_floats():
    source = data.as_source(Records(lambda index: (X[index], 0.5 if index < 5 else index)))
    lots = data.make_lots("cyclic", source, lot_size=5)
    assert [y.dtype for _, y, _ in lots.as_dataset().take(4)] == [tf.float32] * 4


def test_texts_are_evaluated_as_they_are_trained():
    words = keras.layers.TextVectorization(vocabulary=["a", "b"], output_mode="multi_hot")
    network = keras.Sequential([keras.Input((), dtype="string"), words, keras.layers.Dense(3)])
    model = small(model=network, public_preprocessing=True)
    source = data.as_source(Records(lambda index: ("a b" if index % 2 else "b", Y[index])))
    model.fit(source, batch_size=20, validation_data=source, verbose=0)
    assert np.isfinite(model.evaluate(source, verbose=0))
    expected = model.predict(source, verbose=0)
    np.testing.assert_array_equal(model.predict(["b", "a b"], verbose=0), expected[:2])


def test_parts_in_any_order_are_read_before_a_function():
    ragged = data.as_source(Records(lambda index: (np.ones(index + 1), index)))
    padded = ragged[np.array([7, 2, 9])].map(
        lambda row: (tf.pad(row[0], [[0, 10 - tf.size(row[0])]]), row[1])
    )
    x, y, _ = padded.rows(np.array([0, 1, 2]))
    assert y.tolist() == [7, 2, 9] and x.sum(axis=1).tolist() == [8, 3, 10]


def test_what_is_no_source_to_train_on_says_what_to_do():
    class Length(Records):
        length = 0

        def __len__(self):
            return self.length

    endless, model = Length(), seeded()
    endless.length = sys.maxsize
    lots = data.make_lots("poisson", X, Y, lot_size=5)
    for use, message in (
        (lambda: model.fit(endless, batch_size=5), "repeat"),
        (lambda: model.fit(Length(), batch_size=5), "one row"),
        (lambda: model.fit({"train": Records(), "test": Records()}), r"x\['train'\]"),
        (lambda: model.fit(Records(), Y), "as_source"),
        (lambda: model.evaluate(lots), "lots.source"),
        (lambda: model.fit(X, Y, validation_data=lots.as_dataset()), "lots.source"),
        (lambda: model.evaluate(Records(), Y), "Remove y"),
    ):
        with pytest.raises(ValueError, match=message):
            use()
    assert model.evaluate(lots.source, verbose=0) == pytest.approx(model.evaluate(X, Y, verbose=0))


def test_rows_in_blocks_are_told_of_and_written_once(tmp_path, caplog):
    class Blocks(Records):
        seconds = 0.02

        def __len__(self):
            return 3_000

        def __getitems__(self, indices):
            time.sleep(self.seconds * len({index // 50 for index in indices}))
            return [(np.full(3, index), index) for index in indices]

    source = data.as_source(Blocks()).map(lambda row: (2 * row[0], row[1]))
    [*data.make_lots("fixed_size", source, lot_size=55).as_dataset().take(2)]
    assert "tfdp.data.cached" in caplog.text
    Blocks.seconds = 0.0
    for _ in range(2):
        rows = data.cached(source, tmp_path / "rows")
        x, y, weight = rows.rows(np.array([5, 2_999]))
        assert x.tolist() == [[10] * 3, [5_998] * 3] and y.tolist() == [5, 2_999] and weight is None
    for other in (source[1:], source.map(lambda row: (row[0], row[1] + 1))):
        with pytest.raises(ValueError, match="other rows"):
            data.cached(other, tmp_path / "rows")


def test_labels_without_an_output_are_refused_before_a_step():
    source = data.as_source(Records(lambda index: (X[index], Y[index] + 1)))
    for lots in (source, data.make_lots("poisson", source, lot_size=5).map(lambda row: row)):
        model = seeded()
        with pytest.raises(ValueError, match="Received: 3"):
            model.fit(lots, verbose=0)
        assert model.privacy.steps_taken == 0


class TestDatasets:
    def dataset(self):
        return tf.data.Dataset.from_tensor_slices(
            ({"a": X, "b": Y.astype(str)}, Y.astype(np.float64))
        )

    def test_texts_are_made_numbers_before_they_are_written(self, tmp_path):
        with pytest.raises(ValueError, match=r"map\(f\)"):
            data.make_lots("cyclic", self.dataset(), lot_size=20, cache=tmp_path / "cache")
        numbers = self.dataset().map(lambda x, y: (x["a"], y))
        lots = data.make_lots("cyclic", numbers, lot_size=20, cache=tmp_path / "cache")
        seeded().fit(lots, verbose=0)

    def test_single_examples_are_read_once(self, tmp_path):
        lots = data.make_lots("cyclic", self.dataset(), lot_size=20)
        x, y, _ = next(lots.as_dataset().as_numpy_iterator())
        np.testing.assert_array_equal(x["a"], X)
        assert x["b"].tolist() == [str(value).encode() for value in Y] and y.dtype == np.float32
        np.testing.assert_array_equal(y, Y)
        for _ in range(2):
            source = data.read_dataset(self.dataset().map(lambda x, y: (x["a"], y)), tmp_path / "a")
            assert source.in_memory() is None
            for found, wanted in zip(source.rows(np.arange(20)), (X, Y, None), strict=True):
                np.testing.assert_array_equal(found, wanted)

    def test_rows_show_the_length_that_a_dataset_does_not_state(self, tmp_path):
        windows = keras.utils.timeseries_dataset_from_array(X, Y[3:], 4, batch_size=5)
        assert windows.element_spec[0].shape.as_list() == [None, None, 4]
        expected = np.stack([X[i : i + 4] for i in range(17)])
        for cache in (None, tmp_path / "rows"):
            source = data.read_dataset(windows.unbatch(), cache)
            found = source.rows(np.arange(17))[0]
            np.testing.assert_array_equal(found[np.argsort(found[:, 0, 0])], expected)
        lots = data.make_lots("poisson", windows.unbatch(), lot_size=17)
        network = keras.Sequential([keras.Input((4, 4)), keras.layers.Flatten()])
        network.add(keras.layers.Dense(3))
        model = small(sgd(), network)
        model.fit(lots, verbose=0)
        assert model.privacy.steps_taken == 1
        parts = tf.data.Dataset.range(3).map(lambda i: (tf.range(3 - i // 2), i))
        with pytest.raises(ValueError, match="Row 2 of the source"):
            data.read_dataset(parts)

    def test_examples_without_any_known_length_are_read_once_it_is_stated(self):
        windows = keras.utils.timeseries_dataset_from_array(X, None, 4, batch_size=5).unbatch()
        with pytest.raises(ValueError, match="ensure_shape"):
            data.read_dataset(windows)
        stated = windows.map(lambda x: (tf.ensure_shape(x, [4, 4]), x[0, :1]))
        network = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
        model = small(sgd(), network, {"loss": "mse"})
        model.fit(data.make_lots("poisson", stated, lot_size=17), verbose=0)
        assert model.privacy.steps_taken == 1

    def test_what_is_no_set_of_examples_is_refused(self):
        for dataset, message in (
            (keras.utils.timeseries_dataset_from_array(X, Y, 4), "unbatch"),
            (self.dataset().batch(4), "unbatch"),
            (self.dataset().repeat(), "infinite"),
            (self.dataset().repeat(3).map(lambda *row: row), "repeat"),
            (self.dataset().take(0), "no rows"),
        ):
            with pytest.raises(ValueError, match=message):
                data.make_lots("poisson", dataset, lot_size=1)


def test_a_source_that_gives_another_number_of_rows_is_refused():
    class Short(Records):
        def __getitems__(self, indices):
            return [self[index] for index in indices[1:]]

    with pytest.raises(ValueError, match="shorter"):
        data.as_source(Short()).rows(np.array([1, 2, 3]))


def test_evaluate_takes_its_arguments_in_the_order_of_keras():
    model = seeded()
    assert model.evaluate(X, Y, 8, 0) == pytest.approx(model.evaluate(Records(), None, 8, 0))


def test_an_index_gives_one_row_and_a_source_can_be_iterated():
    source = data.as_source(Records())
    x, y = source[-1]
    assert np.array_equal(x, X[-1]) and y == Y[-1]
    assert [int(y) for _, y in source[3:6]] == [*Y[3:6]]


@pytest.mark.parametrize("kind", [str, object])
def test_texts_are_evaluated_and_predicted_as_they_are_trained(kind):
    words = np.array(["a", "b"] * 10, kind)[:, None]
    inputs = {"word": keras.Input((1,), dtype="string", name="word")}
    known = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")
    network = keras.Model(inputs, keras.layers.Dense(1)(known(inputs["word"])))
    model = small(sgd(), network, {"loss": "mse"})
    x, y = {"word": words}, np.zeros((20, 1))
    model.fit(x, y, batch_size=20, verbose=0, validation_data=(x, y))
    assert model.evaluate(x, y, verbose=0) == pytest.approx(model.evaluate(x, y, 5, verbose=0))
    frames = {"word": pytest.importorskip("pandas").DataFrame(words)}
    np.testing.assert_array_equal(model.predict(frames, verbose=0), model.predict(x, verbose=0))
    assert model.predict(x, verbose=0).shape == (20, 1)


def test_frames_of_numbers_and_truths_are_evaluated():
    frame = pytest.importorskip("pandas").DataFrame({"a": [1.5, 2.5], "b": [True, False]})
    model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0), "mse")
    y, numbers = np.ones(2), frame.to_numpy("float32")
    assert model.evaluate(frame, y, verbose=0) == model.evaluate(numbers, y, verbose=0)
    np.testing.assert_array_equal(
        model.predict(frame, verbose=0), model.predict(numbers, verbose=0)
    )
