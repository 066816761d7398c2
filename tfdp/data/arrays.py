"""Checks and converts the arrays that lots are drawn from: nested, with equally many rows.

Arrays are converted as in Keras, without a copy: a pandas Series becomes a column, and floats of any
precision become `keras.config.floatx()` in a lot. As in Keras, None is an absent input or target.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp._compat.keras import floatx


def each_array(function: Callable, values: Any) -> Any:
    """Applies a function to every array in a structure; None stays None."""
    if type(values) is tuple:  # a lot; tf.nest takes longer
        return tuple(each_array(function, value) for value in values)
    return tf.nest.map_structure(lambda leaf: None if leaf is None else function(leaf), values)


def all_arrays(values: Any) -> list:
    """Returns the arrays in a structure, without None."""
    return [leaf for leaf in tf.nest.flatten(values) if leaf is not None]


def with_arrays(values: Any, arrays: Iterable) -> Any:
    """Replaces the arrays of a structure, in the order of `all_arrays`."""
    left = iter(arrays)
    return each_array(lambda _: next(left), values)


def in_floatx(values: Any) -> Any:
    """Casts floating-point arrays and tensors to `keras.config.floatx()`."""

    def cast(leaf):
        ours = isinstance(leaf, np.ndarray) or tf.is_tensor(leaf)
        if not ours or not tf.as_dtype(leaf.dtype).is_floating:
            return leaf
        return tf.cast(leaf, floatx())

    return each_array(cast, values)


def as_arrays(values: Any, name: str) -> Any:
    """Converts leaves to arrays of numbers or texts, and lists of arrays to tuples.

    Args:
        values: An array, or a nested dict, tuple or list of arrays and None.
        name: Name of the argument, for errors.

    Raises:
        ValueError: If a leaf is not dense, has other values than numbers or texts, or has no rows.
    """
    if values is None:
        return None
    if isinstance(values, Mapping):
        return {key: as_arrays(value, name) for key, value in values.items()}
    if isinstance(values, list | tuple) and any(is_several(value) for value in values):
        return tuple(as_arrays(value, name) for value in values)
    if isinstance(values, tf.RaggedTensor | tf.SparseTensor) or hasattr(values, "toarray"):
        raise ValueError(
            f"Invalid value received for argument `{name}`. Expected dense arrays. Received: "
            f"{type(values).__name__}. Convert it with to_tensor(), tf.sparse.to_dense() or toarray()."
        )
    if on_disk(values):
        return values
    array = np.asarray(values)
    texts = array.dtype.kind == "O" and are_texts(array.flat)
    if array.dtype.kind == "O" and not texts:
        array = _of_objects(values, name)
    if _is_series(values):
        array = array[:, np.newaxis]
    bfloat16 = array.dtype.name == "bfloat16"
    if array.dtype.kind not in "biufcSU" and not texts and not bfloat16:
        raise ValueError(
            f"Invalid value received for argument `{name}`. Expected arrays of numbers or texts. "
            f"Received an array of dtype {array.dtype}."
        )
    if array.ndim == 0 or array.shape[0] == 0:
        raise ValueError(
            f"Invalid value received for argument `{name}`. Expected at least one example. "
            f"Received an array of shape {array.shape}."
        )
    return array


def on_disk(values: Any) -> bool:
    """Whether values are an array that is read in pieces, such as one of HDF5 or Zarr."""
    return hasattr(values, "chunks") and hasattr(values, "dtype") and hasattr(values, "shape")


def _of_objects(values: Any, name: str) -> np.ndarray:
    """Converts objects that are numbers to floats, as in data frames with mixed column types."""
    array = np.asarray(values)
    if _are_numbers(array):
        return array.astype(floatx())
    where = ""
    if array.ndim == 2:
        names = getattr(values, "columns", range(array.shape[1]))
        wrong = [str(n) for n, own in zip(names, array.T, strict=True) if not _are_numbers(own)]
        where = f" in column{'s' * (len(wrong) > 1)} {', '.join(wrong)}"
    raise ValueError(
        f"Invalid value received for argument `{name}`. Expected arrays of numbers, or of texts. "
        f"Received other objects, a mix of texts and numbers, or missing values{where}. Pass columns "
        "of texts and of numbers as separate inputs, and fill in missing values."
    )


def _are_numbers(objects: np.ndarray) -> bool:
    try:
        objects.astype(floatx())
    except (TypeError, ValueError):
        return False
    return not any(isinstance(value, str | bytes) for value in objects.flat)


def are_texts(values: Iterable) -> bool:
    """Returns whether all values are texts."""
    return all(isinstance(value, str | bytes) for value in values)


def is_several(value: Any) -> bool:
    """Whether a list element is an array or a structure of arrays, and not one example."""
    if isinstance(value, list | tuple):
        return any(is_several(element) for element in value)
    return value is None or isinstance(value, dict) or getattr(value, "ndim", 0) > 0


def _is_series(value: Any) -> bool:
    """Whether a value is a pandas Series; pandas itself may not be installed."""
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(value).__mro__}
    return "pandas.core.series.Series" in kinds or "pandas.Series" in kinds


def common_length(x: Any, y: Any = None, sample_weight: Any = None) -> int:
    """Returns the common number of rows. Raises ValueError if it differs, or `x` has no array."""
    lengths = {leaf.shape[0] for leaf in all_arrays((x, y, sample_weight))}
    if not all_arrays(x):
        raise ValueError(
            "Invalid value received for argument `x`. Expected at least one array. Received None. "
            "Pass an array for each input that is not optional."
        )
    if len(lengths) != 1:
        given = {"x": x, "y": y, "sample_weight": sample_weight}
        shapes = {name: _shapes(values) for name, values in given.items() if values is not None}
        raise ValueError(
            f"Expected arrays with the same first dimension. Received shapes {shapes}."
        )
    return lengths.pop()


def _shapes(values):
    return each_array(lambda leaf: tuple(leaf.shape), values)


def texts_as_tensors(values: Any) -> Any:
    """Converts arrays of texts to tensors, as Keras requires, and objects that are numbers to floats.

    Other values stay.
    """

    def converted(leaf):
        array = np.asarray(leaf) if hasattr(leaf, "to_numpy") else leaf  # of a frame
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "OSU":
            return leaf
        if array.dtype.kind == "O" and not are_texts(array.flat):
            return _of_objects(leaf, "x")
        return tf.constant(array[:, None] if _is_series(leaf) else array)

    if isinstance(values, list) and values and are_texts(values):
        return tf.constant(values)
    return each_array(converted, values)


def as_weights(weights: Any) -> np.ndarray:
    """Returns sample weights as float32, [rows, ...]. Raises ValueError if one is invalid."""
    weights = np.asarray(weights, np.float32)
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        raise ValueError(
            f"Expected finite sample weights of at least 0. Received: {weights[wrong][0]}"
        )
    return weights[:, 0] if weights.shape[1:] == (1,) else weights
