"""Functions that `tf.vectorized_map` calls once for all rows, instead of vectorizing what they do.

TensorFlow vectorizes a loop operation by operation, which takes seconds to trace, and every step of
such a loop moves all that it carries. A function that treats the rows of its arguments one by one can
run on the rows of all examples at once, as it is.
"""

import contextlib
import contextvars
from collections.abc import Callable

import tensorflow as tf

from tfdp._compat.pfor_conversion import merged, wrap
from tfdp._compat.tensorflow import concrete_function

_FUNCTIONS = contextvars.ContextVar("functions")  # {name in the graph: (function, graph, ends)}


@contextlib.contextmanager
def calling_at_once():
    """Context of a `tf.vectorized_map` in whose function `at_once` may be called."""
    token = _FUNCTIONS.set({})
    try:
        yield
    finally:
        _FUNCTIONS.reset(token)


def at_once(function: Callable, rows: list, shared: list, kept: list = ()) -> tuple[list, list]:
    """Calls a function, which is called once more with the rows of all examples.

    No gradient flows through the call.

    Args:
        function: maps `rows`, `shared` and `kept` to (list of tensors [rows, ...], list of tensors to
            keep); it treats rows one by one.
        rows: tensors [rows, ...].
        shared: tensors that do not depend on the example.
        kept: what a function kept in another such call, for the rows of all examples. These tensors
            may be of any kind, such as lists of tensors. Nothing else may use them.

    Returns:
        (tensors [rows, ...], tensors to keep).
    """
    given = [*map(tf.stop_gradient, [*rows, *shared]), *kept]
    ends = [len(rows), len(rows) + len(shared)]
    count = None

    def flat(*tensors):
        nonlocal count
        tensors = [*tensors]
        results, keep = function(tensors[: ends[0]], tensors[ends[0] : ends[1]], tensors[ends[1] :])
        count = len(results)
        return [*results, *keep]

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in given]
    graph = concrete_function(tf.function(flat, autograph=False), *specs)
    _FUNCTIONS.get()[graph.name.decode()] = function, graph, ends
    found = [*graph(*given)]
    return found[:count], found[count:]


def add_rules(rules: dict) -> None:
    """Adds the rules of this module; `rules` has those of TensorFlow."""

    def converting(usual):
        def convert_call(pfor_input):
            known = _FUNCTIONS.get({}).get(pfor_input.get_attr("f").name)
            if known is None:
                return usual(pfor_input)
            function, _, (count, end) = known
            pfor_input.stack_inputs([*range(count)])
            rows = [pfor_input.stacked_input(index) for index in range(count)]
            others = [pfor_input.unstacked_input(i) for i in range(count, pfor_input.num_inputs)]
            width = tf.shape(rows[0])[1] if rows[0].shape[1] is None else rows[0].shape[1]
            results, kept = function(
                [*map(merged, rows)], others[: end - count], others[end - count :]
            )
            results = [wrap(_apart(result, width), True) for result in results]
            return [*results, *(wrap(tensor, False) for tensor in kept)]

        return convert_call

    for name in ("PartitionedCall", "StatefulPartitionedCall"):
        rules[name] = converting(rules[name])


def _apart(tensor, width):
    """[examples * rows, ...] to [examples, rows, ...]."""
    apart = tf.reshape(tensor, tf.concat([[-1, width], tf.shape(tensor)[1:]], axis=0))
    return tf.ensure_shape(
        apart, [None, width if isinstance(width, int) else None, *tensor.shape[1:]]
    )
