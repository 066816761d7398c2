"""Non-public names that tfdp borrows from TensorFlow, each wrapped in one function.

All borrowed names exist in TensorFlow 2.20.0 and 2.21.0. The rules of `tf.vectorized_map` are in the
modules `pfor_*`.
"""

import contextlib
import random
import re
import threading
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python import pywrap_tfe as tf_tapes
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.eager import context
from tensorflow.python.ops import control_flow_util


def inside_xla() -> bool:
    """Returns whether XLA compiles the graph that is being built. XLA lacks some operations."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


_inlining = {"lock": threading.Lock(), "depth": 0, "before": False}


@contextlib.contextmanager
def inlined_functions():
    """Context in which a call of a `tf.function` runs its Python code, as part of the current graph.

    A `tf.function` reuses an earlier trace, in which a layer's weights are the variables, and not the
    values that a pass puts in their place: their gradients would be zero. AutoGraph is not applied.
    """
    with _inlining["lock"]:  # replicas are traced in threads, which share the setting
        if not _inlining["depth"]:
            _inlining["before"] = tf.config.functions_run_eagerly()
        _inlining["depth"] += 1
        tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        with _inlining["lock"]:
            _inlining["depth"] -= 1
            if not _inlining["depth"]:
                tf.config.run_functions_eagerly(_inlining["before"])


@contextlib.contextmanager
def as_one_replica():
    """Context in which traced code sees no distribution strategy, and so a single replica.

    Keras divides mean losses by the number of a strategy's replicas, whose gradients are added. The
    context belongs to the graph that is being built.
    """
    distribute_lib._push_per_thread_mode(distribute_lib._get_default_replica_mode())
    try:
        yield
    finally:
        distribute_lib._pop_per_thread_mode()


# -- data sets ---------------------------------------------------------------------------------------


def size_of_batches(dataset: tf.data.Dataset) -> int | None:
    """Returns the batch size of the `batch` that made a dataset's elements, or None if it is uncertain.

    Nothing is read from the dataset (`ComputeBatchSize`). A `map` after `batch` hides the size.
    """
    size = int(tf.raw_ops.ComputeBatchSize(input_dataset=dataset._variant_tensor))
    return size if size > 0 else None


def repeats(dataset: tf.data.Dataset, before_batches: bool = False) -> bool:
    """Returns whether `repeat` is among the operations that made a dataset, outside of functions.

    Args:
        dataset: The dataset.
        before_batches: Whether only a `repeat` before the last operation that makes batches
            counts.
    """
    kind, inputs = type(dataset).__name__, dataset._inputs()
    if not before_batches and kind == "_RepeatDataset":
        count = tf.get_static_value(dataset._count)
        if count not in (0, 1):
            return True
    before_batches &= not ("Batch" in kind or "GroupByWindow" in kind)
    found = [repeats(each, before_batches) for each in inputs]
    # Numbers that are zipped to examples, such as seeds, may repeat.
    return all(found) if found and kind == "_ZipDataset" else any(found)


class Begun(tf.data.Dataset):
    """A dataset whose first iteration uses an existing iterator; later ones make new iterators.

    A strategy with several replicas reads the dataset by itself and does not use that iterator.
    """

    def __init__(self, dataset: tf.data.Dataset, iterator: Iterator):
        self._dataset, self._begun = dataset, iterator
        super().__init__(dataset._variant_tensor)

    def _inputs(self):
        return [self._dataset]

    @property
    def element_spec(self):
        return self._dataset.element_spec

    def __iter__(self):
        begun, self._begun = self._begun, None
        return super().__iter__() if begun is None else begun


def set_fresh_seed(seed: int) -> None:
    """Sets the seed of `tf.random`, in a graph the graph's own, to a seed that was never set before.

    `tf.random.set_seed` also clears the cache of eager kernels, so that operations draw the same
    numbers again after the same seed. Making all kernels anew takes about half of an eager step.
    """
    if tf.executing_eagerly():
        eager = context.context()
        eager._seed, eager._rng = seed, random.Random(seed)
    else:
        tf.random.set_seed(seed)


@contextlib.contextmanager
def outside_of_graphs():
    """Like `tf.init_scope`, but tapes still record, since models may use some."""
    stopped = tf_tapes.TFE_Py_TapeSetIsStopped()
    with tf.init_scope():
        if not stopped:
            tf_tapes.TFE_Py_TapeSetRestartOnThread()
        try:
            yield
        finally:
            if not stopped:
                tf_tapes.TFE_Py_TapeSetStopOnThread()


# -- graphs ------------------------------------------------------------------------------------------


def concrete_function(function, *specs):
    """Returns the concrete function of a `tf.function`, whose graph is freed together with it.

    `get_concrete_function` never breaks the reference cycles of the graph, so
    `_get_concrete_function_garbage_collected` is called instead.
    """
    return function._get_concrete_function_garbage_collected(*specs)


def scratch_graph() -> contextlib.AbstractContextManager:
    """Returns a graph that never runs, as context; variables that are made in it live outside of it.

    A `tf.function` would trace a function that makes variables twice.
    """
    return tf.__internal__.FuncGraph("scratch").as_default()


def with_gradient(results: list, arguments: list, backward) -> list:
    """Returns the results of a computation in a graph, with a custom gradient.

    `tf.custom_gradient` does the same but keeps the graph in memory forever, in its registry.

    Args:
        results: Tensors of floats.
        arguments: The tensors of floats that they were computed from.
        backward: Maps the gradients at `results` to those at `arguments`.
    """
    graph = tf.compat.v1.get_default_graph()
    with graph.gradient_override_map({"IdentityN": _OWN_GRADIENT}):
        found = tf.identity_n([*results, *arguments])[: len(results)]
    # An attribute of the operation is freed together with the graph.
    setattr(found[0].op, _OWN_GRADIENT, (len(results), backward))
    return found


_OWN_GRADIENT = "tfdp_own_gradient"


@tf.RegisterGradient(_OWN_GRADIENT)
def _own_gradient(operation, *at_outputs):
    count, backward = getattr(operation, _OWN_GRADIENT)
    return [None] * count + [*backward(*at_outputs[:count])]


def variable_name(handle) -> str | None:
    """Returns the name of the variable of an eager resource handle, or None if it is unknown.

    The name is read from the `repr` of the handle, where it is quoted and may end with a number.
    """
    found = re.search(r'ResourceHandle\(name="([^"]+?)(/\d+)?"', repr(handle))
    return found[1] if found else None


def on_gpu() -> bool:
    """Returns whether operations may run on a GPU."""
    return bool(tf.config.list_logical_devices("GPU"))


def on_plain_cpu() -> bool:
    """Returns whether operations run on a CPU without XLA; some methods were measured only there."""
    return not (inside_xla() or on_gpu())
