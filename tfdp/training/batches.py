"""Batches that the user draws: datasets, generators, `keras.utils.PyDataset` and other iterables.

Nothing is known about how such batches are drawn, so they are accounted as "unknown" sampling, without
amplification: an example may be in every lot.

Formal guarantee: every lot has the same public number L of rows, which is the divisor of the sum. L is
the static size of the batches or, where there is none, the size of the first batch. A smaller batch is
padded with absent rows; a larger one raises before its step is counted. So the size of a batch decides
neither the noise nor the divisor.
"""

import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from tfdp._compat.keras import DataAdapter, GeneratorDataAdapter, PyDatasetAdapter


@dataclasses.dataclass(frozen=True)
class Batches:
    """Batches of a user, as lots of one size.

    Attributes:
        dataset: the lots: x, (x, y) or (x, y, sample_weight).
        lot_size: number of rows of each lot.
        number: number of batches in an epoch; None if it is unknown, or if they have no end.
        endless: whether the batches are known to have no end.
        adapter: what Keras' `fit` gets where it has to know when epochs begin and end; else None.
    """

    dataset: tf.data.Dataset
    lot_size: int
    number: int | None
    endless: bool = False
    adapter: DataAdapter | None = None


def is_batches(x: Any) -> bool:
    """Whether data are batches and not arrays."""
    if isinstance(x, tf.data.Dataset | keras.utils.PyDataset):
        return True
    if x is None or isinstance(x, dict | list | tuple | str) or hasattr(x, "shape"):
        return False
    return isinstance(x, Iterable) and not hasattr(x, "__array__")


def batches_of(x: Any, class_weight: dict | None = None, shuffle: bool = True) -> Batches:
    """Returns batches as lots of one size.

    Args:
        x: a `tf.data.Dataset`, a `keras.utils.PyDataset`, or a generator or other iterable of
            x, (x, y) or (x, y, sample_weight). A generator serves one epoch.
        class_weight: as in `fit`.
        shuffle: whether a `PyDataset` of known length is gone through in random order.

    Raises:
        ValueError: there is no batch, or the batches are not dense tensors.
    """
    _say_what_is_lost()
    if isinstance(x, tf.data.Dataset):
        return _of_dataset(x, class_weight)
    if isinstance(x, keras.utils.PyDataset):
        adapter, first = PyDatasetAdapter(x, shuffle=shuffle), x[0]
        number = x.num_batches
        endless = number is None
    else:
        x, first = _peeked(x)
        adapter, endless = _Iterated(x), False
        number = len(x) if hasattr(x, "__len__") else None
    size = _rows(first)
    dataset = adapter.get_tf_dataset()
    _check_dense(tf.nest.flatten(dataset.element_spec))
    dataset = _padded(dataset, size, class_weight)
    return Batches(dataset, size, number, endless, _Padded(adapter, dataset))


@functools.cache  # once in a process
def _say_what_is_lost():
    logging.warning(
        "Nothing is known about how these batches are drawn, so the training is accounted without "
        "amplification by sampling: every example may be in every lot. With arrays, or with "
        'tfdp.data.make_lots("poisson", x, y, lot_size=...), tfdp draws the lots itself, and the same '
        "training has a much smaller epsilon."
    )


def _of_dataset(dataset, class_weight):
    leaves = tf.nest.flatten(dataset.element_spec)
    _check_batched(leaves)
    size = leaves[0].shape[0] if leaves and getattr(leaves[0], "shape", None) else None
    _check_dense(leaves)
    lots = dataset
    if size is None:
        size = _rows(_first(dataset))
        lots = _padded(dataset, size, class_weight)
    elif class_weight is not None:
        lots = _padded(dataset, size, class_weight)
    number = int(dataset.cardinality().numpy())
    endless = number == tf.data.INFINITE_CARDINALITY
    return Batches(lots, size, number if number >= 0 else None, endless)


def _check_dense(specs):
    for spec in specs:
        if isinstance(spec, tf.RaggedTensorSpec | tf.SparseTensorSpec):
            raise ValueError(
                "Expected batches of dense tensors, since lots are padded to one size, and noise is "
                "added to every entry of a gradient. Received "
                f"{type(spec).__name__}. Convert them, by to_tensor() or tf.sparse.to_dense()."
            )


def _check_batched(leaves):
    """Raises ValueError if the leaves have no common axis of rows, like single examples."""
    shapes = [tf.TensorShape(leaf.shape) for leaf in leaves if hasattr(leaf, "shape")]
    known = [shape for shape in shapes if shape.rank is not None]
    rows = {shape[0] for shape in known if shape.rank} - {None}
    if len(rows) > 1 or any(shape.rank == 0 for shape in known):
        raise ValueError(
            "Expected batches, of arrays whose first axis is that of the rows. Received elements of "
            f"the shapes {', '.join(map(str, shapes))}, which are single examples or do not fit. "
            "Call dataset.batch(batch_size) first, or yield whole batches."
        )


def _check_ranks(leaves):
    for spec in leaves:
        if isinstance(spec, tf.TensorSpec) and spec.shape.rank is None:
            raise ValueError(
                "Expected batches whose number of axes is known before they are drawn. Received a "
                "dataset with an element of unknown shape. Give from_generator an `output_signature`, "
                "such as (tf.TensorSpec((None, 4), tf.float32), tf.TensorSpec((None,), tf.int32)) for "
                "batches; call dataset.batch(batch_size) if its elements are single examples."
            )


def _first(batches):
    for batch in batches:
        return batch
    raise ValueError("Expected at least one batch. Received a dataset or an iterable without any.")


def _peeked(source):
    """Returns the source with its first batch in place, and the first batch."""
    if not isinstance(source, Iterator):
        return source, _standard(_first(source))
    first = _first(source)
    return itertools.chain([first], source), _standard(first)


def _rows(batch):
    """Returns the number of rows of a batch."""
    arrays = [leaf for leaf in tf.nest.flatten(batch) if getattr(leaf, "shape", None)]
    if not arrays or not int(arrays[0].shape[0]) > 0:
        raise ValueError(
            "Expected batches of arrays x, (x, y) or (x, y, sample_weight), of at least one row (of "
            "single examples, dataset.batch(batch_size) makes batches). "
            f"Received as the first batch: {type(batch).__name__}."
        )
    _check_batched(arrays)
    return int(arrays[0].shape[0])


def _standard(batch):
    """Returns a batch of an iterable as Keras' adapter for generators takes it: a tuple of arrays."""
    batch = keras.tree.map_structure(_array, batch, none_is_leaf=False)
    batch = keras.tree.lists_to_tuples(batch)
    return batch if isinstance(batch, tuple) else (batch,)


def _array(leaf):
    if hasattr(leaf, "detach"):  # a tensor of PyTorch
        leaf = leaf.detach().cpu()
    return np.asarray(leaf) if hasattr(leaf, "__array__") else leaf


class _Iterated(GeneratorDataAdapter):
    """Keras' adapter for generators, for any iterable; each epoch begins a new iteration."""

    def __init__(self, iterable):
        if isinstance(iterable, Iterator):
            super().__init__(map(_standard, iterable))
        else:
            super().__init__(map(_standard, iter(iterable)))
            self.generator = lambda: map(_standard, iter(iterable))


class _Padded(DataAdapter):
    """An adapter whose batches are padded to one size; Keras tells it when epochs begin and end."""

    def __init__(self, inner, dataset):
        self._inner, self._dataset = inner, dataset

    def get_tf_dataset(self):
        return self._dataset

    def on_epoch_begin(self):
        self._inner.on_epoch_begin()

    def on_epoch_end(self):
        self._inner.on_epoch_end()

    @property
    def num_batches(self):
        return self._inner.num_batches

    @property
    def batch_size(self):
        return None


def _padded(dataset, size, class_weight):
    """Pads every batch to `size` rows, which get the weight zero, and applies class weights."""
    _check_ranks(tf.nest.flatten(dataset.element_spec))

    def lot(*batch):
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch if len(batch) > 1 else batch[0])
        x, y, weights = tf.nest.map_structure(_none_if_optional, (x, y, weights))
        rows = tf.shape(next(leaf for leaf in tf.nest.flatten(x) if leaf is not None))[0]
        check = tf.debugging.assert_less_equal(rows, size, _LARGER.format(size))
        weights = _filled(weights, rows)
        if class_weight is not None:
            weights = _times(weights, class_weights(y, class_weight))
        with tf.control_dependencies([check]):
            return tf.nest.map_structure(lambda leaf: _with_rows(leaf, size), (x, y, weights))

    return dataset.map(lot)


_LARGER = (
    "A batch has more rows than the first one, which has {}, and every sum of gradients is divided by "
    "that constant. Expected no larger batch than the first; drop_remainder=True gives all the same "
    "size."
)


@contextlib.contextmanager
def said_plainly():
    """Context in which the refusal of a larger batch is a ValueError of one sentence.

    Batches are padded in threads of TensorFlow, which bury the sentence in an error of a graph.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = re.search(re.escape(_LARGER).replace(r"\{\}", r"\d+"), str(error))
        if found is None:
            raise
        raise ValueError(found[0]) from error


def _none_if_optional(leaf):
    return None if isinstance(leaf, tf.experimental.Optional) else leaf


def _filled(weights, rows):
    """Replaces weights that are None by ones, so that padding has a weight that differs."""
    ones = tf.ones([rows], tf.float32)
    return tf.nest.map_structure(
        lambda leaf: ones if leaf is None else tf.cast(leaf, tf.float32), weights
    )


def _times(weights, factors):
    if tf.nest.is_nested(weights):
        raise ValueError(
            "Expected `class_weight` with a single target. Received sample weights for several."
        )
    more = [1] * (weights.shape.rank - 1)
    return weights * tf.reshape(factors, tf.concat([tf.shape(factors)[:1], more], axis=0))


def _with_rows(leaf, size):
    if leaf is None:
        return None
    missing = tf.concat([[size - tf.shape(leaf)[0]], tf.shape(leaf)[1:]], axis=0)
    padded = tf.concat([leaf, tf.zeros(missing, leaf.dtype)], axis=0)
    return tf.ensure_shape(padded, [size, *leaf.shape[1:]])


def class_weights(y: Any, class_weight: dict) -> tf.Tensor:
    """Returns the weight of the class of each example: float32 [rows].

    As in Keras, targets with several columns are one-hot, others are rounded, and a class without an
    entry has the weight 1.

    Args:
        y: targets of the model's single output: [rows], [rows, 1] or [rows, classes].
        class_weight: classes and their weights.

    Raises:
        ValueError: there are several targets, or one of another shape.
    """
    if y is None or tf.nest.is_nested(y) or tf.convert_to_tensor(y).shape.rank not in (1, 2):
        raise ValueError(
            "Expected `class_weight` with one array of targets, of shape (rows,), (rows, 1) or (rows, "
            "classes). Received other targets. Use sample_weight instead."
        )
    y = tf.convert_to_tensor(y)
    if y.shape.rank == 2:
        y = y[:, 0] if y.shape[1] == 1 else tf.argmax(y, axis=1)
    classes = y if y.dtype.is_integer else tf.cast(tf.round(y), tf.int64)
    classes = tf.cast(classes, tf.int64)
    factors = tf.ones(tf.shape(classes), tf.float32)
    for label, weight in class_weight.items():
        factors = tf.where(classes == int(label), tf.constant(float(weight)), factors)
    return factors
