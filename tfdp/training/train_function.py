"""The function that `fit` calls once per lot: Keras' train function with less overhead."""

import contextlib
import functools
import weakref
from collections.abc import Callable

import tensorflow as tf

from tfdp._compat.keras import own_strategy, without_optionals
from tfdp._compat.tensorflow import (
    concrete_function,
    dataset_before,
    dataset_of,
    datasets_of_replicas,
    iterator_of,
    resource_of,
)
from tfdp.training.step import prepare_step


class Epoch:
    """Counts the steps of an epoch, so that the last execution takes no more than are left.

    Attributes:
        steps: number of steps in an epoch; None if it is unknown.
        longest: number of steps of the longest epoch that has ended with its data; None before.
    """

    def __init__(self):
        self.steps: int | None = None
        self.longest: int | None = None
        self._left = self._first = 0

    def begin(self, taken: int = 0) -> None:
        """Begins an epoch of `steps` steps after so many steps."""
        self._left, self._first = self.steps or 0, taken

    def end(self, taken: int) -> None:
        """Ends an epoch that had all of its steps, after so many steps."""
        self.longest = max(self.longest or 0, taken - self._first)

    def pass_by(self, steps: int) -> None:
        """Notes that so many steps of the epoch lie behind and are not taken again."""
        self.count(steps)
        self._first -= steps

    def next_execution(self, most: int) -> int:
        """Number of steps that the next execution takes.

        Args:
            most: number of steps in a whole execution, the model's `steps_per_execution`.
        """
        left = self._left or self.steps
        return most if left is None else min(most, left)

    def count(self, steps: int) -> None:
        """Notes that an execution of so many steps begins."""
        self._left = max(0, self._left - steps)


def in_steps(model, make: Callable) -> Callable:
    """Returns a function of an iterator and a number of steps, which takes that many steps.

    The function takes whole executions as Keras does, and fewer steps one by one. Keras' function for
    several steps ends early only where the data end, and private lots have no end.

    Args:
        model: a compiled Keras model.
        make: returns a new train function for the model's present `steps_per_execution`.
    """
    whole = make()
    if model.steps_per_execution == 1:
        return lambda iterator, steps: whole(iterator)
    with _single_steps(model):
        single = make()

    def run(iterator, steps):
        if steps == model.steps_per_execution or not isinstance(iterator, _ITERATORS):
            return whole(iterator)
        with _single_steps(model):
            for _ in range(steps):
                logs = single(iterator)
        return logs

    return run


# Keras takes the batches of any other iterator, such as that of `train_on_batch`, one by one.
_ITERATORS = (tf.data.Iterator, tf.distribute.DistributedIterator)


@contextlib.contextmanager
def _single_steps(model):
    """Context in which an execution is one step; Keras reads the number when it traces a function."""
    several, model.steps_per_execution = model.steps_per_execution, 1
    try:
        yield
    finally:
        model.steps_per_execution = several


def lean(model, keras_function: Callable) -> Callable:
    """Returns a function that does what Keras' train function does, in less time.

    Keras passes the logs of each step through a `tf.experimental.Optional`, so that several steps can
    be one execution; this takes half a millisecond. TensorFlow examines the whole type of an iterator
    whenever an iterator is an argument; this takes a quarter of a millisecond. If an execution is one
    step, the returned function avoids both. Keras handles all other cases: eager steps, executions of
    several steps, strategies, and batches that do not come from a `tf.data.Iterator`.

    Args:
        model: a compiled Keras model.
        keras_function: the train function that `keras.Model.make_train_function` made for the model.
    """
    if model.run_eagerly or model.steps_per_execution != 1 or own_strategy(model) is not None:
        return keras_function
    step = without_optionals(
        model,
        tf.function(
            model.train_step,
            autograph=False,
            reduce_retracing=True,
            jit_compile=model.jit_compile,
        ),
    )

    prepare = without_optionals(model, functools.partial(prepare_step, model))

    @functools.cache
    def on_resource(spec):
        """A concrete function that takes one step on an iterator of type `spec`.

        Its argument is the iterator's resource, a plain tensor, so calls skip the examination of the
        iterator's type.
        """

        def traced(step):
            def on_next(resource):
                return step(iterator_of(spec, resource).get_next())

            on_next = tf.function(on_next, autograph=False)
            return concrete_function(on_next, tf.TensorSpec([], tf.resource))

        traced(prepare)
        return traced(step)

    calls = weakref.WeakKeyDictionary()

    def train_function(iterator):
        if (
            tf.distribute.has_strategy()
            or tf.config.functions_run_eagerly()
            or not isinstance(iterator, tf.data.Iterator)
        ):
            return keras_function(iterator)
        if iterator not in calls:
            run = on_resource(tf.type_spec_from_value(iterator))
            calls[iterator] = functools.partial(run, resource_of(iterator))
        return calls[iterator]()

    return train_function


def comes_from(iterator, dataset: tf.data.Dataset) -> bool:
    """Whether an iterator gives the elements of one given dataset object, and nothing else.

    A strategy wraps datasets of its own around the dataset that it distributes, without changing
    elements.

    Args:
        iterator: anything that a train function may be called with.
        dataset: the dataset, compared by identity.
    """
    if not isinstance(iterator, tf.distribute.DistributedIterator):
        return dataset_of(iterator) is dataset
    inner = datasets_of_replicas(iterator)
    return bool(inner) and all(_is_around(part, dataset) for part in inner)


def _is_around(outer, dataset) -> bool:
    while outer is not None and outer is not dataset:
        outer = dataset_before(outer)
    return outer is dataset
