"""Takes steps on the lots of an iterator, like Keras' train function, with less overhead.

Keras passes the logs of each step through a `tf.experimental.Optional`, so that an execution of several
steps can end early. This takes half a millisecond. Here the number of steps is an argument.
"""

import functools
import weakref
from collections.abc import Callable, Iterator

import tensorflow as tf

from tfdp._compat.keras import compile_metrics, without_optionals
from tfdp._compat.replicas import over_replicas
from tfdp._compat.tensorflow import concrete_function, scratch_graph
from tfdp.session import Session
from tfdp.training.replicas import as_shares, several
from tfdp.training.step import prepare_step


def step_function(model) -> Callable[[Session, Iterator, int], dict]:
    """Returns a function that takes steps of a private model and returns the logs of the last step.

    Its arguments are the session that the steps are accounted under, an iterator of lots, and the
    number of steps, at least 1. It is traced anew for every session, whose numbers are constants of the
    graph. It raises StopIteration or tf.errors.OutOfRangeError if the data end before the first step,
    or, in a graph of several steps, later.
    """

    @functools.lru_cache(maxsize=1)
    def traced(session, described_steps):  # which is the length of the run's tables
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

    if several(strategy) and not model.run_eagerly:
        on_lot = tf.function(on_lot, autograph=False, reduce_retracing=True)

    def one(iterator):
        data, metrics = next(iterator), compile_metrics(model)
        if several(strategy):
            if not isinstance(iterator, tf.distribute.DistributedIterator):
                unit = model.privacy.account.session.run.contribution.averaged_rows
                data = as_shares(strategy, data, unit)
        elif not model.run_eagerly and metrics is not None and not metrics.built:
            with scratch_graph():
                prepare(data)
        return on_lot(data)

    @functools.cache
    def on_resources(spec):
        """Returns a concrete function that takes steps on an iterator of type `spec`.

        Its arguments are plain tensors, so calls skip TensorFlow's check of the whole type of an
        iterator, which takes a quarter of a millisecond. With several replicas, it takes one step.
        """
        specs = tf.nest.flatten(spec, expand_composites=True)

        def taken(*inputs):
            *resources, steps = inputs
            iterator = tf.nest.pack_sequence_as(spec, resources, expand_composites=True)
            logs = on_lot(iterator.get_next())
            if model.steps_per_execution == 1 or several(strategy):
                return logs
            return tf.while_loop(
                lambda i, logs: i < steps,
                lambda i, logs: (i + 1, on_lot(iterator.get_next())),
                [1, logs],
                parallel_iterations=1,
            )[1]

        if not several(strategy):  # several replicas have metrics that were built before
            with scratch_graph():
                inputs = [tf.compat.v1.placeholder(each.dtype, []) for each in specs]
                prepare(tf.nest.pack_sequence_as(spec, inputs, expand_composites=True).get_next())
        specs = *specs, tf.TensorSpec([], tf.int32)
        return concrete_function(tf.function(taken, autograph=False), *specs)

    known = weakref.WeakKeyDictionary()

    def in_graph(iterator, steps):
        if iterator not in known:
            function = on_resources(tf.type_spec_from_value(iterator))
            resources = tf.nest.flatten(iterator, expand_composites=True)
            known[iterator] = functools.partial(function, *resources)
        return known[iterator](tf.constant(steps))

    def take(iterator, steps):
        graph = not (model.run_eagerly or tf.config.functions_run_eagerly())
        if graph and isinstance(iterator, tf.data.Iterator) and not tf.distribute.has_strategy():
            return in_graph(iterator, steps)
        distributed = several(strategy) and isinstance(iterator, tf.distribute.DistributedIterator)
        for _ in range(steps):
            logs = in_graph(iterator, 1) if graph and distributed else one(iterator)
        return logs

    return take
