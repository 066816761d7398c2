"""Functions of single examples for `Lots.map` and `Source.map`: decode, augment, tokenize.

Formal guarantee: a function gets one example, so its result depends on no other row of the lot. Its
seed depends on the secret, the step, the row's index and the view, never on the row's place in the lot.
What it reads or draws elsewhere is not checked; the statement names this assumption.
"""

import dataclasses
import functools
import inspect
import itertools
import os
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tfdp.data.arrays import all_arrays, each_array, with_arrays
from tfdp.data.examples import (
    columns_of,
    in_lots,
    in_threads,
    named_row,
    rows_of_columns,
    value_in_lots,
    values_of,
)


@dataclasses.dataclass(frozen=True)
class RowFunction:
    """A function of one example, and how it runs.

    Attributes:
        function: `f(example)` or `f(example, seed)`; see `Lots.map`.
        python: Whether it is called in Python with NumPy arrays. Otherwise TensorFlow traces it.
    """

    function: Callable
    python: bool = False

    @functools.cached_property
    def seeded(self) -> bool:
        """Whether the function takes a seed."""
        kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        given = inspect.signature(self.function).parameters.values()
        needed = [p for p in given if p.kind in kinds and p.default is p.empty]
        return len(needed) > 1

    def __call__(
        self, rows: tuple | list[tuple], seeds: np.ndarray, indices: np.ndarray
    ) -> tuple | list[tuple]:
        """Applies the function to each row alone: a result depends on no other row.

        Args:
            rows: (x, y, sample_weight), structures of arrays, or a list of such examples.
            seeds: int32 of shape [rows, 2], not negative.
            indices: Row numbers in the source, for messages.

        Returns:
            Structures of arrays, or a list of examples if the results differ in form or type.
        """
        with tf.device("CPU:0"):  # on any training device
            if isinstance(rows, list) and not self.python:
                rows = columns_of(rows) or rows
            if isinstance(rows, tuple) and not self.python:
                try:
                    made = _unpacked(self._of_rows(_packed(rows), seeds))
                    return each_array(lambda column: in_lots(np.asarray(column)), made)
                except tf.errors.OpError:
                    pass  # calls for single rows find the one that failed
            examples = rows if isinstance(rows, list) else rows_of_columns(rows)
            calls = [*zip(indices, itertools.repeat(self._one), examples, seeds, strict=False)]
            results = in_threads(_named, calls)
            return columns_of(results) or results

    def _one(self, example, seed):
        """Returns the result for one example. A traced function gets values as in lots."""
        example = values_of(example)
        if self.python:
            made = self._called(_packed(example), seed)
        else:
            made = self._traced(_packed(each_array(value_in_lots, example)), seed)
        return each_array(value_in_lots, values_of(_unpacked(made)))

    def _called(self, example, seed):
        made = self.function(example, seed) if self.seeded else self.function(example)
        if made is None:
            raise TypeError(
                "The function passed to map returned None. Return x, (x, y) or (x, y, sample_weight)."
            )
        return made

    @functools.cached_property
    def _traced(self):
        return tf.function(self._called, reduce_retracing=True, autograph=False)

    @functools.cached_property
    def _of_rows(self):
        """The function for stacked rows and their seeds, as one graph that loops over the rows."""

        @functools.partial(tf.function, reduce_retracing=True, autograph=False)
        def of_rows(rows, seeds):
            one = each_array(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), (rows, seeds))
            try:
                made = self._traced.get_concrete_function(*one).structured_outputs
            except Exception as error:
                error.add_note(_NOT_TRACED)
                raise
            columns = tf.map_fn(
                lambda row: all_arrays(self._traced(*with_arrays(one, row))),
                all_arrays((rows, seeds)),
                fn_output_signature=[tf.TensorSpec(c.shape, c.dtype) for c in all_arrays(made)],
                parallel_iterations=_PARALLEL,
            )
            return with_arrays(made, columns)

        return of_rows


# Number of rows that one graph processes in parallel.
_PARALLEL = min(8, os.cpu_count() or 1)

_NOT_TRACED = (
    "(map(f) calls f(example) or f(example, seed), where an example is x or a tuple such as (x, y). "
    "TensorFlow traces f, as in Dataset.map. Use map(f, python=True) for a function of NumPy arrays.)"
)


def _named(call):
    index, function, example, seed = call
    return named_row(index, function, example, seed)


def _packed(example):
    x, y, weight = example
    if weight is not None:  # Keras drops it without a target
        return example
    return keras.utils.pack_x_y_sample_weight(x, y)


def _unpacked(made) -> tuple:
    if not isinstance(made, tuple):
        return made, None, None
    return tuple(keras.utils.unpack_x_y_sample_weight(made))
