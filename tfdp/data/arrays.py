"""Checks and converts the arrays that lots are drawn from: nested, numeric, of one length."""

from typing import Any

import numpy as np
import tensorflow as tf


def with_padding_row(column: np.ndarray) -> tf.Tensor:
    """Appends a row of zeros, which stands for an absent example (of weight zero)."""
    return tf.concat([column, np.zeros_like(column[:1])], axis=0)


def as_arrays(values: Any, name: str) -> Any:
    """Turns the leaves into numeric arrays, and lists of arrays into tuples.

    Args:
        values: an array, or a nested dict, tuple or list of arrays.
        name: name of the argument, for errors.

    Raises:
        ValueError: a leaf is not numeric or has no rows.
    """
    if isinstance(values, dict):
        return {key: as_arrays(value, name) for key, value in values.items()}
    if isinstance(values, list | tuple) and any(_is_several(value) for value in values):
        return tuple(as_arrays(value, name) for value in values)
    array = np.asarray(values)
    if array.dtype.kind not in "biufc":
        raise ValueError(
            f"Invalid value received for argument `{name}`. Expected arrays of numbers. "
            f"Received an array of dtype {array.dtype}. (Text is turned into numbers by "
            "`tfdp.data.hash_tokens`.)"
        )
    if array.ndim == 0 or array.shape[0] == 0:
        raise ValueError(
            f"Invalid value received for argument `{name}`. Expected at least one example. "
            f"Received an array of shape {array.shape}."
        )
    return array


def _is_several(value: Any) -> bool:
    """Whether this element of a list is an array (or a structure of arrays), not one example."""
    if isinstance(value, list | tuple):
        return any(_is_several(element) for element in value)
    return isinstance(value, dict) or getattr(value, "ndim", 0) > 0


def common_length(x: Any, y: Any) -> int:
    """The number of rows of all arrays in `x` and `y`; ValueError if they differ."""
    lengths = {leaf.shape[0] for leaf in tf.nest.flatten((x, y))}
    if len(lengths) != 1:
        shapes = tf.nest.map_structure(lambda leaf: leaf.shape, {"x": x, "y": y})
        raise ValueError(
            "Invalid value received for arguments `x` and `y`. Expected arrays with the same first "
            f"dimension. Received the shapes: {shapes}"
        )
    return lengths.pop()


def as_weights(sample_weight: Any, num_examples: int) -> np.ndarray:
    """Checks sample weights (finite, >= 0) and returns float32 [num_examples]; None gives ones."""
    if sample_weight is None:
        return np.ones(num_examples, np.float32)
    weights = np.asarray(sample_weight, dtype=np.float32)
    if weights.shape != (num_examples,):
        raise ValueError(
            "Invalid value received for argument `sample_weight`. Expected shape "
            f"({num_examples},). Received shape: {weights.shape}"
        )
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError(
            "Invalid value received for argument `sample_weight`. Expected finite weights of at "
            f"least 0. Received: {weights[~(np.isfinite(weights) & (weights >= 0))][0]}"
        )
    return weights
