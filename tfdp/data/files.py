"""Sources from files: directories of images or texts, and tables in CSV or Parquet.

Directories are read as by Keras' `image_dataset_from_directory` and `text_dataset_from_directory`,
except that a file is read only when its row is drawn. pyarrow reads tables (`pip install
tfdp[sources]`).
"""

import importlib
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp._validate import one_of
from tfdp.data.reading import read_blocks
from tfdp.data.sources import Records, Source, as_source


class Files(Records):
    """A source with one row per file.

    Args:
        paths: Paths of the files.
        class_names: Names of the classes in the order of their labels, as in Keras. None without
            classes.
        labels: The label of each file. None without targets.
        value: A TensorFlow function that maps the path of a file to its contents.
    """

    def __init__(self, paths: list, class_names: list | None, labels: Any, value: Callable):
        super().__init__(_Contents(paths, labels, value))
        self.class_names: list[str] | None = class_names


class _Contents:
    """Reads files by index, with their labels.

    Keras' dataset does not expose the function that reads a file, and `tf.data.experimental.at` ends
    the process if a seed is set between two calls (TensorFlow 2.21).
    """

    def __init__(self, paths, labels, value):
        self._paths, self._labels = paths, labels
        path = tf.TensorSpec([], tf.string)
        self._value = tf.function(value, input_signature=[path], autograph=False)

    def __len__(self):
        return len(self._paths)

    def __getitem__(self, index):
        try:
            value = self._value(self._paths[index]).numpy()
        except tf.errors.OpError as error:
            reason = re.split(r"\s*\[\[|\s*\[Op", error.message)[0].strip().splitlines()[-1]
            raise ValueError(
                f"{self._paths[index]} cannot be read: {reason} Repair or remove the file."
            ) from error
        return value if self._labels is None else (value, self._labels[index])


def images_from_directory(directory: str, **options: Any) -> Files:
    """Returns a source of the images in a directory, read when they are drawn.

    It replaces `keras.utils.image_dataset_from_directory` in private training, which needs examples by
    their index rather than batches. Rows are sorted by class, then by file name.

    Args:
        directory: Path of a directory with one folder of images per class, or with images if you
            pass `labels`.
        **options: Options of Keras' function with the same meaning: `labels`, `label_mode`,
            `class_names`, `color_mode`, `image_size`, `interpolation`, `follow_links`,
            `crop_to_aspect_ratio`, `pad_to_aspect_ratio` and `data_format`.

    Returns:
        A `Source` with the attribute `class_names`, for `fit` or `make_lots`.

    Raises:
        ValueError: If the directory is missing or has no images, or an option is invalid.

    Example:
        >>> import os, tempfile, keras, numpy as np, tfdp
        >>> folder = tempfile.mkdtemp()
        >>> for name in ("cats", "dogs"):
        ...     os.mkdir(f"{folder}/{name}")
        ...     keras.utils.save_img(f"{folder}/{name}/1.png", np.zeros((8, 8, 3)))
        >>> source = tfdp.data.images_from_directory(folder, image_size=(4, 4))
        >>> source.class_names, source.rows(np.array([0, 1]))[0].shape
        (['cats', 'dogs'], (2, 4, 4, 3))
    """
    found = _from_directory(keras.utils.image_dataset_from_directory, directory, options)
    channels = {"grayscale": 1, "rgb": 3, "rgba": 4}[options.get("color_mode", "rgb")]
    size = options.get("image_size", (256, 256))
    method = options.get("interpolation", "bilinear")
    first = (options.get("data_format") or keras.config.image_data_format()) == "channels_first"

    def image(path):
        pixels = tf.image.decode_image(tf.io.read_file(path), channels, expand_animations=False)
        if options.get("crop_to_aspect_ratio"):
            pixels = keras.preprocessing.image.smart_resize(pixels, size, method, "channels_last")
        elif options.get("pad_to_aspect_ratio"):
            pixels = tf.image.resize_with_pad(pixels, *size, method)
        else:
            pixels = tf.image.resize(pixels, size, method)
        return tf.transpose(pixels, [2, 0, 1]) if first else pixels

    return Files(*found, image)


def texts_from_directory(directory: str, **options: Any) -> Files:
    """Returns a source of the texts in a directory, read when they are drawn.

    It replaces `keras.utils.text_dataset_from_directory` in private training, which needs examples by
    their index rather than batches. Rows are sorted by class, then by file name.

    Args:
        directory: Path of a directory with one folder of .txt files per class, or with .txt files
            if you pass `labels`.
        **options: Options of Keras' function with the same meaning: `labels`, `label_mode`,
            `class_names`, `max_length` and `follow_links`.

    Returns:
        A `Source` with the attribute `class_names`, for `fit` or `make_lots`.

    Raises:
        ValueError: If the directory is missing or has no texts, or an option is invalid.

    Example:
        >>> import os, pathlib, tempfile, numpy as np, tfdp
        >>> folder = tempfile.mkdtemp()
        >>> for name in ("no", "yes"):
        ...     os.mkdir(f"{folder}/{name}")
        ...     _ = pathlib.Path(folder, name, "1.txt").write_text(f"{name}!")
        >>> texts, labels, _ = tfdp.data.texts_from_directory(folder).rows(np.array([0, 1]))
        >>> texts, labels
        (array([b'no!', b'yes!'], dtype=object), array([0, 1], dtype=int32))
    """
    found = _from_directory(keras.utils.text_dataset_from_directory, directory, options)
    most = options.get("max_length")

    def text(path):
        words = tf.io.read_file(path)
        return words if most is None else tf.strings.substr(words, 0, most)

    return Files(*found, text)


# Options of Keras that lots, or parts of a source, replace.
_OF_LOTS = ("shuffle", "seed", "batch_size", "validation_split", "subset", "format")


def _from_directory(read, directory, options) -> tuple[list, list | None, Any]:
    """Returns the paths, class names and labels of Keras' dataset."""
    if wrong := [name for name in _OF_LOTS if name in options]:
        raise ValueError(
            f"{wrong[0]!r} cannot be used here: a source returns single rows in a fixed order. Remove "
            "it. fit(source, batch_size=...) draws lots of the rows, and source[a:b] is a part of them."
        )
    if not tf.io.gfile.isdir(directory):
        raise ValueError(f"There is no directory {str(directory)!r}.")
    options = {"labels": "inferred", "label_mode": "int", "verbose": False} | options
    dataset = read(directory, shuffle=False, batch_size=None, **options)
    names, labels, mode = dataset.class_names, options["labels"], options["label_mode"]
    inferred = isinstance(labels, str)
    paths = getattr(dataset, "file_paths", None)
    if paths is None:  # as in text datasets
        folders = names if names and inferred else [""]
        links = options.get("follow_links", False)
        paths = [path for f in folders for path in _texts(os.path.join(directory, f), links)]
    if labels is None or mode is None:
        return paths, names, None
    if inferred:
        folders = [pathlib.Path(path).relative_to(directory).parts[0] for path in paths]
        labels = [names.index(folder) for folder in folders]
    labels = np.asarray(labels, np.int32)
    if mode == "categorical":
        labels = np.eye(len(names), dtype=np.float32)[labels]
    elif mode == "binary":
        labels = labels.astype(np.float32)[:, None]
    return paths, names, labels


def _texts(folder, follow_links):
    """Yields the paths of texts in a folder, in Keras' order."""
    for root, _, names in sorted(os.walk(folder, followlinks=follow_links)):
        yield from (os.path.join(root, n) for n in sorted(names) if n.lower().endswith(".txt"))


def from_csv(
    path: Any,
    *,
    label: str | None = None,
    keys: Any = None,
    separator: str = ",",
    missing: Mapping[str, Any] | None = None,
    types: Mapping[str, Any] | None = None,
) -> Source:
    """Reads CSV files into memory and returns a source of their rows.

    Args:
        path: Path of a file with a header, of a folder of such files, or a list of files.
        label: Name of the column with the targets. All other columns are inputs, in a dictionary of
            arrays.
        keys: Names of columns, instead of `label`: x, (x, y) or (x, y, sample_weight), where x and
            y may be dictionaries or tuples of names. Other columns are not read.
        separator: The character between values. "," by default.
        missing: Maps names of columns to a public constant that replaces missing numbers and empty
            texts. By default a missing number raises an error, and a missing text is "".
        types: Maps names of columns to types of pyarrow, such as "float64" or "string". Needed where
            the first rows suggest another type.

    Returns:
        A `Source`, for `fit` or `make_lots`.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a column does not exist, or a number is missing.

    Example:
        >>> import pathlib, tempfile, numpy as np, tfdp
        >>> path = pathlib.Path(tempfile.mkdtemp(), "people.csv")
        >>> _ = path.write_text("age,city,income\\n30,Rome,1.5\\n40,Oslo,2.5\\n")
        >>> source = tfdp.data.from_csv(path, label="income")
        >>> source.rows(np.array([1]))[:2]
        ({'age': array([40]), 'city': array([b'Oslo'], dtype=object)}, array([2.5], dtype=float32))
    """
    csv = importlib.import_module("pyarrow.csv")
    kind = importlib.import_module("pyarrow.dataset").CsvFileFormat(
        parse_options=csv.ParseOptions(delimiter=separator),
        convert_options=csv.ConvertOptions(column_types=dict(types or {})),
    )
    try:
        return _from_table(path, kind, label, keys, None, missing)
    except importlib.import_module("pyarrow").ArrowInvalid as error:
        error.add_note(
            "(The first rows determine the type of a column. Pass the correct type, such as "
            "types={'column': 'float64'}.)"
        )
        raise


def from_parquet(
    path: Any,
    *,
    label: str | None = None,
    keys: Any = None,
    cache: str | os.PathLike | None = None,
    missing: Mapping[str, Any] | None = None,
) -> Source:
    """Reads Parquet files and returns a source of their rows.

    Parquet can only be read in groups of rows, so the columns are read once, into memory or into files
    (`cache`). If a table with texts does not fit into memory, use Hugging Face's
    `datasets.Dataset.from_parquet` as a source.

    Args:
        path: Path of a file, of a folder of files, or a list of files.
        label: Name of the column with the targets. All other columns are inputs, in a dictionary of
            arrays.
        keys: Names of columns, instead of `label`: x, (x, y) or (x, y, sample_weight), where x and
            y may be dictionaries or tuples of names. Other columns are not read.
        cache: A folder for memory-mapped files of the columns, which must be numbers; see `cached`.
            None keeps the columns in memory.
        missing: Maps names of columns to a public constant that replaces missing values. By default
            a missing value raises an error.

    Returns:
        A `Source`, for `fit` or `make_lots`.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a column does not exist, or a value is missing.

    Example:
        >>> import pathlib, tempfile, numpy as np, pyarrow, pyarrow.parquet, tfdp
        >>> path = pathlib.Path(tempfile.mkdtemp(), "rows.parquet")
        >>> table = pyarrow.table({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1]})
        >>> pyarrow.parquet.write_table(table, path)
        >>> tfdp.data.from_parquet(path, keys=("x", "y")).rows(np.array([1]))[:2]
        (array([[3., 4.]], dtype=float32), array([1]))
    """
    return _from_table(path, "parquet", label, keys, cache, missing)


def _from_table(path, kind, label, keys, cache, missing) -> Source:
    table = importlib.import_module("pyarrow.dataset").dataset(path, format=kind)
    names = dict.fromkeys(table.schema.names)
    if keys is None:
        inputs = {name: name for name in names if name != label}
        keys = inputs if label is None else (inputs, label)
    elif label is not None:
        raise ValueError("label and keys both name the targets. Pass one of them.")
    wanted = [*dict.fromkeys(tf.nest.flatten(keys))]
    for name in wanted:
        remedy = "Check the name, and the separator of a CSV file."
        one_of("label" if name == label else "keys", name, names, remedy=remedy)
    for name in missing or {}:
        one_of("missing", name, names, remedy="Check the name.")
    columns = read_blocks(_blocks(table, wanted, missing or {}), cache, table.count_rows())
    return as_source(columns, keys=keys)


def _blocks(table, names: list[str], missing: Mapping[str, Any]) -> Iterator[dict[str, np.ndarray]]:
    start = 0
    for batch in table.to_batches(columns=names):
        columns = {name: batch.column(name) for name in names}
        for name in missing.keys() & columns.keys():
            columns[name] = _filled(columns[name], name, missing[name])
        if batch.num_rows:
            yield {name: _array(column, name, start) for name, column in columns.items()}
        start += batch.num_rows


def _filled(column, name, value):
    """Replaces missing values and empty texts of a pyarrow column by a constant."""
    arrow, compute = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.compute")
    if arrow.types.is_null(column.type):
        return arrow.array([value] * len(column))
    try:
        constant = arrow.scalar(value, column.type)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError):
        constant = None
    if constant is None or constant.as_py() != value:  # as of a fraction among integers
        raise ValueError(
            f"Column {name!r} has values of type {column.type}, but missing has {value!r} for it. Pass "
            "a constant of that type. from_csv can read the column as another type: types={...}."
        )
    filled = column.fill_null(constant)
    if not arrow.types.is_string(column.type):
        return filled
    return compute.if_else(compute.equal(filled, ""), value, filled)


def _array(column, name, start) -> np.ndarray:
    """Converts a pyarrow column to an array. Lists in the rows become an axis."""
    if str(column.type).startswith(("date", "time", "duration")):
        raise ValueError(
            f"Column {name!r} has values of type {column.type}, which are neither numbers nor texts. "
            "Leave it out with keys, or convert it to a number first, such as days since a public date."
        )
    if column.null_count:
        row = start + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise ValueError(
            f"Column {name!r} has no value in row {row}. Pass a public constant for it: "
            f"missing={{{name!r}: 0}}."
        )
    if hasattr(column, "dictionary_decode"):
        column = column.dictionary_decode()
    if not hasattr(column, "flatten") or not hasattr(column.type, "value_type"):
        return column.to_numpy(zero_copy_only=False)
    lengths = np.array(column.value_lengths() if hasattr(column, "value_lengths") else 0)
    if lengths.ndim and (wrong := np.flatnonzero(lengths != lengths[0])).size:
        raise ValueError(
            f"Column {name!r} has {lengths[wrong[0]]} values in row {start + wrong[0]}, and "
            f"{lengths[0]} in row {start}. Give all rows lists of one length."
        )
    values = _array(column.flatten(), name, start)
    return values.reshape(len(column), -1, *values.shape[1:])
