"""The user's own data, by --dataset: `folder:PATH` of images or texts, and `csv:PATH`.

Without --test, every fifth row is for testing. This depends only on the order of the rows, so replacing
a record moves no other record. Adding or removing one does, so the adjacency add_or_remove_one needs
--test.

This module imports TensorFlow and Keras only when data are loaded.
"""

import os
from pathlib import Path

import numpy as np

from tfdp.data.datasets import DATASETS, Dataset, check_name
from tfdp.experiments import tables

KINDS = ("folder", "csv")
# Optional prefix of the name of a data set of `tensorflow_datasets`.
TFDS = "tfds:"
# One in this many rows is for testing.
_PARTS = 5


def place_of(dataset: str) -> tuple[str | None, str]:
    """Returns ("folder" or "csv", the path), or (None, name) for a named data set."""
    kind, colon, path = dataset.partition(":")
    return (kind, os.path.expanduser(path)) if colon and kind in KINDS else (None, dataset)


def is_own(dataset: str) -> bool:
    """Whether a data set is the user's own."""
    return place_of(dataset)[0] is not None


def kind_of(dataset: str) -> str | None:
    """Returns the kind of examples: "images", "rows", "texts", "tables", or None if unknown."""
    kind, path = place_of(dataset)
    if kind is None:
        return DATASETS[path].kind if path in DATASETS else None
    if kind == "csv":
        return "tables"
    if not os.path.isdir(path):
        return None  # an earlier run may be read where its data are missing
    return "texts" if any(Path(path).glob("*/*.txt")) else "images"


def check_settings(experiment) -> None:
    """Raises ValueError for settings that conflict with the user's data."""
    kind, path = place_of(experiment.dataset)
    if kind is None:
        try:
            check_name(path)
        except ValueError:
            if not os.path.exists(path):
                raise
            meant = f"{'folder' if os.path.isdir(path) else 'csv'}:{path}"
            raise ValueError(f"No data set is called {path!r}. Did you mean {meant}?") from None
        return
    if not path:
        raise ValueError(f"Expected --dataset={kind}:PATH. Received {experiment.dataset!r}.")
    if kind == "csv" and experiment.label is None:
        raise ValueError("--dataset=csv:PATH needs --label, the name of the column of classes.")
    if experiment.test is None and experiment.adjacency == "add_or_remove_one":
        raise ValueError(
            "--adjacency=add_or_remove_one needs --test: without it, every fifth row is for testing, "
            "so adding or removing a row would change which others are used for training."
        )


def check_files(experiment) -> None:
    """Raises ValueError if a file or a folder of the data is missing."""
    kind, path = place_of(experiment.dataset)
    if kind is None:
        return
    exists = os.path.isdir if kind == "folder" else os.path.isfile
    for name, given, there in (
        ("dataset", path, exists),
        ("test", experiment.test, exists),
        ("columns", experiment.columns, os.path.isfile),
    ):
        if given is not None and not there(os.path.expanduser(given)):
            what = "a folder" if there is os.path.isdir else "a file"
            raise ValueError(f"--{name}: {given} is not {what}.")
    if experiment.test is not None and os.path.samefile(path, os.path.expanduser(experiment.test)):
        raise ValueError("--test names the training data. Choose other data, or remove the flag.")


def load(experiment) -> Dataset:
    """Loads the user's data into memory.

    Raises:
        ValueError: If files are missing, columns are not declared, or values are invalid.
    """
    check_files(experiment)
    read = _READERS[kind_of(experiment.dataset) or "images"]
    path = place_of(experiment.dataset)[1]
    x, y, classes, preprocessing, encoder = read(experiment, path)
    if experiment.test is None:
        tests = np.arange(len(y)) % _PARTS == _PARTS - 1
        if not tests.any():
            raise ValueError(f"Expected at least {_PARTS} rows, or --test. Received {len(y)}.")
        parts = x[~tests], y[~tests], x[tests], y[tests]
        where = f"{path}; every fifth row is for testing"
    else:
        x_test, y_test, of_test, *_ = read(experiment, os.path.expanduser(experiment.test))
        if of_test != classes:
            raise ValueError(f"Expected the classes {classes} in --test. Received {of_test}.")
        parts = x, y, x_test, y_test
        where = f"{path}, tested on {experiment.test}"
    return Dataset(
        experiment.dataset,
        *parts,
        num_classes=len(classes),
        input_shape=x.shape[1:],
        source=where,
        preprocessing=f"{preprocessing} The classes 0 to {len(classes) - 1} are {', '.join(classes)}.",
        encoder=encoder,
    )


# The readers return (inputs, labels, names of the classes, a sentence, the encoder of a table or None).


def _read_table(experiment, path):
    table, columns, label = tables.read_csv(path), {}, experiment.label
    if experiment.columns is not None:
        columns = tables.read_columns(os.path.expanduser(experiment.columns))
    tables.check_declared(table, columns, label, path)
    encoder = tables.encoder_of(columns, label)
    preprocessing = (
        f"Columns as declared in {experiment.columns}, which has to be public: numbers are clipped to "
        "their ranges and scaled to [-1, 1]; words are one-hot, with one entry for undeclared words; "
        "missing values have a separate entry. The release takes the columns by name: "
        "numbers with NaN, and texts with '', for missing values."
    )
    inputs, labels = tables.encode(table, columns, label, encoder)
    return inputs, labels, columns[label].values, preprocessing, encoder


def _read_images(experiment, path):
    from tfdp.data.files import images_from_directory

    size = experiment.image_size
    source = images_from_directory(path, image_size=(size, size))
    x, y, _ = source.rows(np.arange(len(source)))
    preprocessing = (
        f"Images are resized to {size} by {size} pixels, which are scaled from [0, 255] to [-1, 1]."
    )
    return x / np.float32(127.5) - 1, y, source.class_names, preprocessing, None


def _read_texts(experiment, path):
    from tfdp.data.files import texts_from_directory

    source = texts_from_directory(path)
    x, y, _ = source.rows(np.arange(len(source)))
    texts = np.array([text.decode("utf-8", "replace") for text in x])
    return texts, y, source.class_names, "Texts are unchanged.", None


_READERS = {"tables": _read_table, "images": _read_images, "texts": _read_texts}
