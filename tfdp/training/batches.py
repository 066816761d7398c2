"""Batches that the user draws: datasets, generators, `keras.utils.PyDataset` and other iterables.

Nothing is known about how such batches are drawn, so they are accounted as "unknown" sampling, without
amplification: an example may be in every lot.

Formal guarantee: every lot has the same public number L of rows, which is the divisor of the sum. L is
the static size of the batches, or the argument of `batch` that made them. If neither is known, L is
the size of the first batch. A smaller batch is padded with absent rows; a larger one raises before its
step is counted. So neither the noise nor the divisor depends on the size of a batch.
"""

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf
from tensorflow.autograph.experimental import do_not_convert

from tfdp._compat.keras import (
    DataAdapter,
    GeneratorDataAdapter,
    PyDatasetAdapter,
    make_class_weight_map_fn,
)
from tfdp._compat.tensorflow import Begun, repeats, size_of_batches
from tfdp.gradients.chunks import with_copies
from tfdp.gradients.factors import zero_rows


@dataclasses.dataclass(frozen=True)
class Batches:
    """A user's batches, padded to lots of one size.

    Attributes:
        dataset: The lots: x, (x, y) or (x, y, sample_weight).
        lot_size: Number of rows in each lot.
        number: Number of batches in an epoch, or TensorFlow's constant for an unknown or infinite
            number.
        adapter: An adapter that Keras' `fit` gets in place of the dataset, to call it when epochs begin
            and end. None if the dataset suffices.
    """

    dataset: tf.data.Dataset
    lot_size: int
    number: int
    adapter: DataAdapter | None = None


def is_batches(x: Any) -> bool:
    """Whether data are batches rather than arrays."""
    if isinstance(x, tf.data.Dataset | keras.utils.PyDataset):
        return True
    if x is None or isinstance(x, dict | list | tuple | str) or hasattr(x, "shape"):
        return False
    return isinstance(x, Iterable) and not hasattr(x, "__array__")


def batches_of(x: Any, class_weight: dict | None = None, shuffle: bool = True) -> Batches:
    """Returns a user's batches as lots of one size.

    Args:
        x: A `tf.data.Dataset`, a `keras.utils.PyDataset`, or a generator or other iterable of x,
            (x, y) or (x, y, sample_weight). A generator serves one epoch.
        class_weight: As in `fit`.
        shuffle: Whether a `PyDataset` of known length is read in random order.

    Raises:
        ValueError: If there is no batch, or its arrays have no common first axis.
    """
    if isinstance(x, tf.data.Dataset):
        if repeats(x, before_batches=True):
            raise ValueError(
                "The dataset repeats its examples before it makes batches of them, so a batch may have "
                "an example twice, which the guarantee does not cover. Call repeat() after batch(), or "
                "pass the examples to tfdp.data.make_lots(...)."
            )
        return _of_dataset(x, class_weight)
    if isinstance(x, keras.utils.PyDataset):
        number = tf.data.INFINITE_CARDINALITY if x.num_batches is None else x.num_batches
        return _of_adapter(PyDatasetAdapter(x, shuffle=shuffle), x[0], number, class_weight)
    number = len(x) if hasattr(x, "__len__") else tf.data.UNKNOWN_CARDINALITY
    begun = iter(x)
    first = [*itertools.islice(begun, 1)]
    adapter = GeneratorDataAdapter(map(_as_tuple, itertools.chain(first, begun)))
    # The first epoch continues after the batch that the adapter has read. Later epochs begin anew.
    passes = itertools.chain([adapter.generator()], (map(_as_tuple, x) for _ in itertools.count()))
    adapter.generator = lambda: next(passes)
    return _of_adapter(adapter, first, number, class_weight)


def _of_adapter(adapter, first, number, class_weight) -> Batches:
    """Returns the batches of a Keras adapter, whose first batch is known."""
    dataset = _weighted(adapter.get_tf_dataset(), class_weight)
    size = _rows(first)
    assert size is not None  # the arrays of a batch have a number of rows
    dataset = _padded(dataset, size)
    adapter.get_tf_dataset = lambda: dataset  # Keras tells the adapter when epochs begin and end
    return Batches(dataset, size, number, adapter)


def _of_dataset(dataset, class_weight) -> Batches:
    number = int(dataset.cardinality().numpy())
    size = _rows(dataset.element_spec if number else ())
    argument = size_of_batches(dataset)
    dataset = _weighted(dataset, class_weight)
    if size is not None:
        return Batches(dataset, size, number)
    if argument is not None:
        return Batches(_padded(dataset, argument), argument, number)
    # The iterator that gave the first batch serves the first epoch. If it were dropped, a generator
    # would lose that batch, and TensorFlow may take the one batch of an unfinished `cache` for all.
    with tf.device("CPU:0"):
        iterator = iter(dataset)
        first = next(iterator, ())
        size = _rows(first)
        assert size is not None  # the arrays of a batch have a number of rows
        begun = tf.data.Dataset.from_tensors(first).concatenate(_rest(iterator))
        return Batches(Begun(_padded(dataset, size), iter(_padded(begun, size))), size, number)


def _rest(iterator) -> tf.data.Dataset:
    """Returns a dataset of the remaining elements of an iterator."""
    take = do_not_convert(lambda _: iterator.get_next_as_optional())
    is_one = do_not_convert(lambda found: found.has_value())
    value = do_not_convert(lambda found: found.get_value())
    return tf.data.Dataset.counter().map(take).take_while(is_one).map(value)


def _weighted(dataset, class_weight):
    """Adds class weights to a dataset, as Keras does."""
    return dataset if class_weight is None else dataset.map(make_class_weight_map_fn(class_weight))


def _as_tuple(batch):
    batch = keras.tree.lists_to_tuples(batch)
    return batch if isinstance(batch, tuple) else (batch,)


_NOT_DENSE = (tf.SparseTensor, tf.SparseTensorSpec, tf.RaggedTensor, tf.RaggedTensorSpec)


def _rows(batch) -> int | None:
    """Returns the number of rows in a batch or in a batch type. None if the type does not say it."""
    leaves = [leaf for leaf in tf.nest.flatten(batch) if hasattr(leaf, "shape")]
    if any(isinstance(leaf, _NOT_DENSE) or hasattr(leaf, "toarray") for leaf in leaves):
        raise ValueError(
            "Batches of sparse or ragged tensors cannot be padded to one number of rows. Convert them "
            "to dense ones: x.toarray(), tf.sparse.to_dense(x), x.to_tensor()."
        )
    found = {tuple(leaf.shape[:1]) for leaf in leaves}
    known = found - {(None,)}
    if not found or len(known) > 1 or known & {(), (0,)}:
        raise ValueError(
            "Expected at least one batch, of arrays x, (x, y) or (x, y, sample_weight) with the same "
            f"number of rows. Received first axes {found or 'of nothing'}. If the elements are single "
            "examples, use dataset.batch(batch_size)."
        )
    return known.pop()[0] if known else None


def _padded(dataset, size):
    """Pads every batch to `size` rows, with copies of its first row that have no weight."""

    def padded(leaf):
        if leaf is None:
            return None
        return tf.ensure_shape(with_copies(leaf, size), [size, *leaf.shape[1:]])

    @do_not_convert
    def lot(*batch):
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        x, y, weights = tf.nest.map_structure(_none_if_optional, (x, y, weights))
        rows = tf.shape(next(leaf for leaf in tf.nest.flatten(x) if leaf is not None))[0]
        check = tf.debugging.assert_less_equal(
            rows,
            size,
            f"A batch has more rows than the first one, which has {size}. Every sum of gradients is "
            "divided by this constant. Use drop_remainder=True to give all batches the same size.",
        )
        ones = tf.ones([rows], tf.float32)  # so that padding has a weight that differs
        weights = tf.nest.map_structure(
            lambda leaf: ones if leaf is None else tf.cast(leaf, tf.float32), weights
        )
        with tf.control_dependencies([check]):
            x, y, weights = tf.nest.map_structure(padded, (x, y, weights))
            return x, y, zero_rows(weights, tf.range(size) < rows)

    return dataset.map(lot)


def _none_if_optional(leaf):
    return None if isinstance(leaf, tf.experimental.Optional) else leaf
