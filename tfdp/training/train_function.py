"""Takes steps on the lots of an iterator: what Keras' train function does, with less overhead.

Keras passes the logs of each step through a `tf.experimental.Optional`, so that an execution of several
steps can end early; this takes half a millisecond. Here the number of steps is an argument.
"""

import functools
from collections.abc import Callable, Iterator

import tensorflow as tf

from tfdp._compat.keras import compile_metrics, without_optionals
from tfdp._compat.replicas import over_replicas
from tfdp._compat.tensorflow import (
    concrete_function,
    iterator_of,
    resource_of,
    scratch_graph,
)
from tfdp.session import Session
from tfdp.training.replicas import as_shares, several
from tfdp.training.step import prepare_step


def step_function(model) -> Callable[[Session, Iterator, int], dict]:
    """Returns the function that takes steps of a private model and returns the logs of the last one.

    Its arguments are the session that the steps are accounted under, the iterator that gives lots, and
    the number of steps, at least 1. It is traced anew for every session, whose numbers are constants of
    the graph. It raises StopIteration or tf.errors.OutOfRangeError if the data ended before the first
    step, or, within a graph of several steps, later.
    """

    @functools.lru_cache(maxsize=1)
    def traced(session, described_steps):  # the length of its tables
        return _traced(model)

    def take(session, iterator, steps):
        return traced(session, session.run.described_steps)(iterator, steps)

    return take


def _traced(model):
    """Returns a function of an iterator and a number of steps."""
    step = without_optionals(model, model.train_step)
    if not model.run_eagerly:
        step = tf.function(
            step, autograph=False, reduce_retracing=True, jit_compile=model.jit_compile
        )
    prepare = without_optionals(model, functools.partial(prepare_step, model))
    strategy = model.distribute_strategy

    def on_lot(data):
        return over_replicas(model, strategy, step, data)

    def on_next(iterator):
        return on_lot(next(iterator))

    if several(strategy) and not model.run_eagerly:
        on_lot = tf.function(on_lot, autograph=False, reduce_retracing=True)
        on_next = tf.function(on_next, autograph=False, reduce_retracing=True)

    def one(iterator):
        if several(strategy):
            if isinstance(iterator, tf.distribute.DistributedIterator):
                return on_next(iterator)
            unit = model.privacy.account.session.run.contribution.averaged_rows
            return on_lot(as_shares(strategy, next(iterator), unit))
        data, metrics = next(iterator), compile_metrics(model)
        if not model.run_eagerly and metrics is not None and not metrics.built:
            with scratch_graph():
                prepare(data)
        return on_lot(data)

    @functools.cache
    def on_resource(spec):
        """A concrete function that takes steps on an iterator of type `spec`.

        Its arguments are plain tensors, so calls skip TensorFlow's examination of the whole type of
        an iterator, which takes a quarter of a millisecond.
        """

        def taken(resource, steps):
            iterator = iterator_of(spec, resource)
            logs = on_lot(iterator.get_next())
            if model.steps_per_execution == 1:
                return logs
            return tf.while_loop(
                lambda i, logs: i < steps,
                lambda i, logs: (i + 1, on_lot(iterator.get_next())),
                [1, logs],
                parallel_iterations=1,
            )[1]

        with scratch_graph():
            prepare(iterator_of(spec, tf.compat.v1.placeholder(tf.resource, [])).get_next())
        specs = tf.TensorSpec([], tf.resource), tf.TensorSpec([], tf.int32)
        return concrete_function(tf.function(taken, autograph=False), *specs)

    def take(iterator, steps):
        graph = not (model.run_eagerly or tf.config.functions_run_eagerly())
        if graph and isinstance(iterator, tf.data.Iterator) and not tf.distribute.has_strategy():
            function = on_resource(tf.type_spec_from_value(iterator))
            return function(resource_of(iterator), tf.constant(steps))
        for _ in range(steps):
            logs = one(iterator)
        return logs

    return take
