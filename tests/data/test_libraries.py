"""Each library that gives single rows, or slices of arrays, is a source like arrays."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import sgd
from tests.training.small import small
from tfdp import data

X = np.arange(80, dtype=np.float32).reshape(20, 4) / 64
Y = np.arange(20) % 3


def memmap(path):
    found = []
    for name, array in (("x", X), ("y", Y)):
        np.save(path / f"{name}.npy", array)
        found.append(np.load(path / f"{name}.npy", mmap_mode="r"))
    return data.as_source(*found)


def hdf5(path):
    file = pytest.importorskip("h5py").File(path / "rows.h5", "w")
    for name, array in (("x", X), ("y", Y), ("weight", np.ones(20))):
        file[name] = array
    return data.as_source(file, keys=("x", "y", "weight"))


def zarr(path):
    library = pytest.importorskip("zarr", minversion="3")
    found = []
    for array in (X, Y):
        shape = (4, *array.shape[1:])
        stored = library.create_array(
            path / f"{len(found)}.zarr", shape=array.shape, dtype=array.dtype, chunks=shape
        )
        stored[:] = array
        found.append(stored)
    return data.as_source(*found)


def tensorflow_datasets(path):
    library = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("array_record")
    features = {"x": library.features.Tensor(shape=(4,), dtype=np.float32), "y": np.int64}
    builder = library.dataset_builders.TfDataBuilder(
        name="rows",
        version="1.0.0",
        split_datasets={"train": tf.data.Dataset.from_tensor_slices({"x": X, "y": Y})},
        features=library.features.FeaturesDict(features),
        data_dir=path,
        file_format="array_record",
        disable_shuffling=True,
    )
    builder.download_and_prepare()
    return data.as_source(builder.as_data_source(split="train"), keys=("x", "y"))


def array_record(path):
    pytest.importorskip("array_record")
    from array_record.python import array_record_data_source, array_record_module

    writer = array_record_module.ArrayRecordWriter(str(path / "rows"), "group_size:1")
    for x, y in zip(X, Y, strict=True):
        writer.write(x.tobytes() + y.tobytes())
    writer.close()

    def parsed(record):
        return np.frombuffer(record[:16], np.float32), np.frombuffer(record[16:], np.int64)[0]

    records = array_record_data_source.ArrayRecordDataSource(str(path / "rows"))
    return data.as_source(records).map(parsed, python=True)


def array_record_by_tensorflow(path):
    def parsed(record):
        x = tf.io.decode_raw(tf.strings.substr(record, 0, 16), tf.float32)
        y = tf.io.decode_raw(tf.strings.substr(record, 16, 8), tf.int64)
        return tf.ensure_shape(x, [4]), y[0]

    array_record(path)
    from array_record.python import array_record_data_source

    records = array_record_data_source.ArrayRecordDataSource(str(path / "rows"))
    return data.as_source(records).map(parsed)


def grain_dataset(path):
    grain = pytest.importorskip("grain")
    rows = grain.MapDataset.source([*zip(X, Y, strict=True)])
    return data.as_source(rows.map(lambda row: row))


def grain_source(path):
    grain = pytest.importorskip("grain")
    return data.as_source(grain.sources.RangeDataSource(0, 20, 1)).map(
        lambda index: (X[index], Y[index]), python=True
    )


def hugging_face(path):
    rows = pytest.importorskip("datasets").Dataset.from_dict({"x": X, "y": Y})
    return data.as_source(rows, keys=("x", "y"))


def hugging_face_arrays(path):
    rows = pytest.importorskip("datasets").Dataset.from_dict({"x": X, "y": Y})
    return data.as_source(rows.with_format("numpy"), keys=("x", "y"))


class Tensor:
    """What torch's tensors have in common with arrays, for a test without torch."""

    def __init__(self, array):
        self._array = array
        self.shape = array.shape

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._array, dtype)


class MapStyle:
    """What `torch.utils.data.Dataset` and its `Subset` have in common."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return [Tensor(X[index]), int(Y[index])]

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def torch_protocol(path):
    return data.as_source(MapStyle())


def torch(path):
    library = pytest.importorskip("torch")
    tensors = library.utils.data.TensorDataset(library.tensor(X), library.tensor(Y))
    return data.as_source(library.utils.data.Subset(tensors, range(20)))


LIBRARIES = [
    memmap,
    hdf5,
    zarr,
    tensorflow_datasets,
    array_record,
    array_record_by_tensorflow,
    grain_dataset,
    grain_source,
    hugging_face,
    hugging_face_arrays,
    torch_protocol,
    torch,
]
each_library = pytest.mark.parametrize("make", LIBRARIES, ids=lambda make: make.__name__)


def lots_of(source):
    lots = data.make_lots("poisson", source, lot_size=6)
    drawn = lots.as_dataset(order=bytes(16)).take(4).as_numpy_iterator()
    return [*drawn, source[:16].rows(np.arange(3))[:2], source[16:].rows(np.arange(4))[:2]]


def fitted(source):
    model = small(sgd(seed=5), seed=3)
    history = model.fit(source[:16], batch_size=8, verbose=0, validation_data=source[16:])
    evaluated = model.evaluate(source[16:], verbose=0)
    return [*model.get_weights(), np.array(history.history["val_loss"]), np.array(evaluated)]


@functools.cache
def expected(made_of):
    return made_of(data.as_source(X, Y))


@each_library
def test_lots_and_parts_are_those_of_the_arrays(make, tmp_path):
    for found, wanted in zip(lots_of(make(tmp_path)), expected(lots_of), strict=True):
        for one, other in zip(found, wanted, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow  # test_sources.py has a training on rows that are read one by one
@each_library
def test_trainings_are_those_of_the_arrays(make, tmp_path):
    for found, wanted in zip(fitted(make(tmp_path)), expected(fitted), strict=True):
        np.testing.assert_array_equal(found, wanted)


class TestRowsThatCannotBeRead:
    def test_a_name_that_no_example_has(self):
        with pytest.raises(ValueError, match=r"'z'.*\['x', 'y'\]"):
            data.as_source({"x": X, "y": Y}, keys=("x", "z"))

    def test_rows_of_unequal_shapes(self):
        rows = pytest.importorskip("datasets").Dataset.from_dict(
            {"x": [[1.0] * (1 + i % 3) for i in range(6)], "y": [*range(6)]}
        )
        source = data.as_source(rows, keys=("x", "y"))
        with pytest.raises(ValueError, match=r"Row 4 .* row 3 "):
            source.rows(np.array([3, 4]))
        padded = source.map(lambda row: (tf.pad(row[0], [[0, 3 - tf.size(row[0])]]), row[1]))
        np.testing.assert_array_equal(padded.rows(np.array([3, 4]))[0], [[1, 0, 0], [1, 1, 0]])

    def test_rows_that_were_filtered_out(self):
        rows = pytest.importorskip("grain").MapDataset.range(6).filter(lambda row: row != 4)
        with pytest.raises(ValueError, match="filtered") as caught:
            data.as_source(rows).rows(np.arange(6))
        assert "row 4" in caught.value.__notes__[0]

    def test_rows_that_are_repeated(self):
        rows = pytest.importorskip("grain").MapDataset.range(6)
        with pytest.raises(ValueError, match=r"Remove repeat\(\)"):
            data.as_source(rows.repeat(3).map(lambda row: row))
        assert len(data.make_lots("poisson", rows, lot_size=2).source) == 6
        rows = pytest.importorskip("datasets").Dataset.from_dict({"x": [*range(6)]})
        assert len(data.as_source(rows.shuffle(seed=1), keys="x")) == 6
        with pytest.raises(ValueError, match=r"Remove repeat\(\)"):
            data.as_source(rows.select([1, 2, 1]), keys="x")

    def test_one_of_many_that_are_read_together(self):
        class Broken(MapStyle):
            def __getitem__(self, index):
                if index == 7:
                    raise OSError("disk")
                return super().__getitem__(index)

        with pytest.raises(OSError, match="disk") as caught:
            data.as_source(Broken()).rows(np.arange(10))
        assert caught.value.__notes__ == ["(row 7 of the source)"]


def test_bytes_keep_their_zeros():
    class Files(MapStyle):
        def __getitem__(self, index):
            return b"a\0" * index, index

    lots = data.make_lots("cyclic", Files(), lot_size=5)
    ((rows, _, _),) = lots.as_dataset().take(1).as_numpy_iterator()
    assert rows[:5].tolist() == [b"a\0" * index for index in range(5)]
