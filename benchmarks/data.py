"""Measures drawing and reading: a hundred million records, and lots from sources beside `tf.data`.

`python -m benchmarks.data` prints three tables. Each figure is a median over rounds, in which the ways
of reading take turns, in milliseconds of wall time.
"""

import argparse
import collections
import itertools
import pathlib
import resource
import statistics
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

import tfdp
from tfdp._compat.keras import PyDatasetAdapter
from tfdp.data import SCHEMES, as_source, make_lots
from tfdp.data.words import Words

RECORDS = 10**8
VOCABULARY = 250_000


class Synthetic:
    """Records that are computed from their index: tokens of a large vocabulary, and a label."""

    def __len__(self):
        return RECORDS

    def __getitems__(self, indices):
        return [self[index] for index in indices]

    def __getitem__(self, index):
        tokens = (index * np.arange(1, 17, dtype=np.int64) * 2_654_435_761) % VOCABULARY
        return tokens.astype(np.int32), np.int32(index % 2)


def peak_mib() -> float:
    """Returns the largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def draws() -> list[tuple]:
    """Returns rows (scheme, lot size, ms for the first lot, ms for a later one), at 10^8 records."""
    words, found = Words.of_seed(1), []
    for sampling in ("poisson", "fixed_size", "with_replacement", "shuffle", "random_allocation"):
        for lot_size in (256, 65_536):
            scheme = SCHEMES[sampling](available=RECORDS, lot_size=lot_size)
            times = [timed(scheme.draw, words, 1, step) for step in range(40)]
            found.append((sampling, lot_size, times[0], statistics.median(times[1:])))
    return found


def timed(function, *arguments) -> float:
    """Returns the milliseconds of one call."""
    started = time.perf_counter()
    function(*arguments)
    return 1e3 * (time.perf_counter() - started)


def drain(iterator, count: int) -> None:
    """Reads some lots and keeps none, because kept lots would need new memory each time."""
    collections.deque(itertools.islice(iterator, count), maxlen=0)


def training() -> tuple[float, float]:
    """Returns (ms of a plain Keras step on `tf.data`, ms of a private step), on lots of 256 records."""

    def model():
        return keras.Sequential(
            [
                keras.Input((16,), dtype="int32"),
                keras.layers.Embedding(VOCABULARY, 16),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(2),
            ]
        )

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    plain = model()
    plain.compile("sgd", loss)
    private = tfdp.make_private(model())
    private.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0), loss)
    synthetic = Synthetic()

    def rows(indices):
        pairs = [synthetic[int(i)] for i in indices]
        return np.stack([x for x, _ in pairs]), np.stack([y for _, y in pairs])

    def batch(indices):
        x, y = tf.numpy_function(rows, [indices], [tf.int32, tf.int32])
        return tf.ensure_shape(x, (None, 16)), tf.ensure_shape(y, (None,))

    drawn = tf.data.Dataset.random().map(lambda i: i % RECORDS).batch(256).map(batch).prefetch(2)
    lots = make_lots("poisson", synthetic, lot_size=256)
    both = ([], [])
    for _ in range(4):
        for made, data, times in ((plain, drawn, both[0]), (private, lots, both[1])):
            times.append(timed(lambda m=made, d=data: m.fit(d, steps_per_epoch=30, verbose=0)) / 30)
    return tuple(statistics.median(times[1:]) for times in both)


def keeping_up() -> list[tuple]:
    """Returns rows (lot size, ms of a plain Keras step on lots, on `tf.data`, by `fit`), on arrays."""
    rng, found = np.random.default_rng(0), []
    x, y = rng.random((20_000, 784), np.float32), rng.integers(0, 10, 20_000)
    dense = [keras.layers.Dense(units, "relu") for units in (128, 128)]
    model = keras.Sequential([keras.Input((784,)), *dense, keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for lot_size in (64, 256):
        steps = len(x) // lot_size
        lots = make_lots("fixed_size", x, y, lot_size=lot_size).as_dataset()
        pipeline = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).repeat()
        given = (
            {"x": lots.map(lambda x, y, _: (x, y)), "steps_per_epoch": steps},
            {"x": pipeline.batch(lot_size).prefetch(2), "steps_per_epoch": steps},
            {"x": x, "y": y, "batch_size": lot_size},
        )
        times = [
            [timed(lambda g=g: model.fit(**g, epochs=2, verbose=0)) / (2 * steps) for g in given]
            for _ in range(6)
        ]
        found.append((lot_size, *np.median(times[1:], axis=0)))
    return found


def array_record(path: pathlib.Path, x: np.ndarray, y: np.ndarray):
    """Writes a file of records, one for each row, and returns its reader."""
    from array_record.python import array_record_data_source, array_record_module

    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for row, label in zip(x, y, strict=False):
        writer.write(row.tobytes() + label.tobytes())
    writer.close()
    return array_record_data_source.ArrayRecordDataSource(str(path))


def sources(folder: pathlib.Path, examples: int = 20_000, lot_size: int = 256) -> dict:
    """Returns the milliseconds for a lot from each kind of source, and for a batch by Keras."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (examples, 32, 32, 3), np.uint8)
    y = rng.integers(0, 10, examples)
    mapped = np.memmap(folder / "x", np.uint8, "w+", shape=x.shape)
    mapped[:] = x
    files = []
    for number in range(2_000):
        files.append(folder / f"{number}.npy")
        np.save(files[-1], x[number])

    class Files:
        def __len__(self):
            return len(files)

        def __getitem__(self, index):
            return np.load(files[index]), y[index]

    class Batches(keras.utils.PyDataset):
        def __init__(self, rows_of, count):
            super().__init__(workers=2)
            self.rows_of, self.count = rows_of, count

        def __len__(self):
            return 80

        def __getitem__(self, index):
            return self.rows_of(np.sort(rng.permutation(self.count)[:lot_size]))

    def of_files(indices):
        return np.stack([np.load(files[i]) for i in indices]), y[indices]

    records, label_bytes = array_record(folder / "rows", x[:4_000], y), y.dtype.itemsize

    def parsed(record):
        pixels = tf.io.decode_raw(tf.strings.substr(record, 0, x[0].nbytes), tf.uint8)
        label = tf.io.decode_raw(tf.strings.substr(record, x[0].nbytes, label_bytes), tf.int64)
        return tf.reshape(pixels, x.shape[1:]), label[0]

    def parsed_by_numpy(record):
        pixels = np.frombuffer(record, np.uint8, x[0].nbytes).reshape(x.shape[1:])
        return pixels, np.frombuffer(record, y.dtype, offset=x[0].nbytes)[0]

    class Parsed:
        def __len__(self):
            return len(records)

        def __getitem__(self, index):
            return parsed_by_numpy(records[index])

        def __getitems__(self, indices):
            return [parsed_by_numpy(record) for record in records.__getitems__(indices)]

    def of_records(indices):
        pixels, labels = zip(*Parsed().__getitems__(indices.tolist()), strict=True)
        return np.stack(pixels), np.stack(labels)

    def mapped_records():
        def read(index):
            return tf.ensure_shape(tf.numpy_function(records.__getitem__, [index], tf.string), [])

        indices = tf.data.Dataset.range(len(records)).shuffle(len(records)).repeat()
        both = indices.map(lambda i: parsed(read(i)), num_parallel_calls=tf.data.AUTOTUNE)
        return both.batch(lot_size).prefetch(2)

    def pipeline(array):
        shuffled = tf.data.Dataset.from_tensor_slices((array, y)).shuffle(examples)
        return shuffled.batch(lot_size).repeat().prefetch(2)

    def adapter(batches):
        made = PyDatasetAdapter(batches, shuffle=False)
        made.on_epoch_begin()
        dataset = made.get_tf_dataset()
        dataset.finish = made.on_epoch_end  # otherwise its workers would run beside the next way
        return dataset

    def of_keras():
        return ArrayDataAdapter(x, y, batch_size=lot_size, shuffle=True).get_tf_dataset().repeat()

    ways = {
        "arrays": (lambda: make_lots("fixed_size", x, y, lot_size=lot_size).as_dataset()),
        "arrays, tf.data": lambda: pipeline(x),
        "arrays, fit of Keras": of_keras,
        "memmap": (lambda: make_lots("fixed_size", mapped, y, lot_size=lot_size).as_dataset()),
        "memmap, PyDataset": lambda: adapter(Batches(lambda i: (mapped[i], y[i]), examples)),
        "files": lambda: make_lots("fixed_size", Files(), lot_size=lot_size).as_dataset(),
        "files, PyDataset": lambda: adapter(Batches(of_files, len(files))),
        "ArrayRecord": lambda: make_lots("fixed_size", Parsed(), lot_size=lot_size).as_dataset(),
        "ArrayRecord, PyDataset": lambda: adapter(Batches(of_records, len(records))),
        "ArrayRecord, map": lambda: make_lots(
            "fixed_size", as_source(records).map(parsed), lot_size=lot_size
        ).as_dataset(),
        "ArrayRecord, tf.data and map": mapped_records,
    }
    times: dict = {name: [] for name in ways}
    for _ in range(5):
        for name, make in ways.items():
            dataset, count = make(), 80
            iterator = iter(dataset)
            next(iterator)
            times[name].append(timed(drain, iterator, count) / count)
            del iterator
            getattr(dataset, "finish", lambda: None)()
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Prints the tables."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    before = peak_mib()
    print("| scheme | lot | first lot, ms | a later lot, ms |\n| --- | ---: | ---: | ---: |")
    for sampling, lot_size, first, later in draws():
        print(f"| {sampling} | {lot_size:,} | {first:.2f} | {later:.2f} |")
    plain, private = training()
    print(f"\nStep on {RECORDS:,} records, vocabulary {VOCABULARY:,}: plain Keras {plain:.1f} ms, ")
    print(
        f"private {private:.1f} ms. Peak memory above the import: {peak_mib() - before:,.0f} MiB.\n"
    )
    print("| lot | step fed by lots, ms | by `tf.data` | by `fit` |\n| ---: | ---: | ---: | ---: |")
    for lot_size, *times in keeping_up():
        print(f"| {lot_size} | {' | '.join(f'{value:.2f}' for value in times)} |")
    print("\n| source | ms for a lot of 256 |\n| --- | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for name, value in sources(pathlib.Path(folder)).items():
            print(f"| {name} | {value:.2f} |")


if __name__ == "__main__":
    main()
