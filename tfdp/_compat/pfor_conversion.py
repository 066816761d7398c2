"""Common parts of the rules that tfdp adds to `tf.vectorized_map`.

`RULES` is tfdp's own table of rules: those of TensorFlow, of which the modules `pfor_*` replace some.
TensorFlow's table stays as it is.
"""

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor
from tensorflow.python.ops.parallel_for.pfor import WhileV2

from tfdp._compat.tensorflow import concrete_function

RULES = dict(pfor._pfor_converter_registry)
NotCovered = pfor.ConversionNotImplementedError
wrap = pfor.wrap
transposed = pfor._transpose_first_two_dims
list_ops, rows_inside = pfor.list_ops, pfor._tile_variant

AT_ONCE = "tfdp_at_once"  # the attribute of an operation with its own rule


def rule(*names: str) -> Callable:
    """Decorator that registers a rule for operations: a function of (earlier rule or None, input)."""

    def add(convert):
        for name in names:
            RULES[name] = functools.partial(convert, RULES.get(name))
        return convert

    return add


def created(pfor_input, inputs) -> list:
    """Returns the outputs of an operation like the one that is converted, with other inputs.

    Args:
        pfor_input: The operation, as a rule receives it.
        inputs: Tensors.
    """
    return with_inputs(pfor_input.op, inputs)


def with_inputs(operation, inputs) -> list:
    """Returns the outputs of an operation like `operation`, with other inputs."""
    dtypes = [output.dtype for output in operation.outputs]
    return pfor._create_op(operation.type, inputs, dtypes, operation.node_def.attr).outputs


def called(pfor_input, name: str, inputs: list) -> list:
    """Converts a call of a function of the graph.

    Args:
        pfor_input: The operation, as a rule receives it.
        name: Name of the function.
        inputs: The inputs of the function, as `pfor_input` has them.
    """
    function, outer = pfor_input.op.graph._get_function(name), pfor_input.pfor
    inner = pfor.PFor(
        loop_var=outer.loop_var,
        loop_len=outer.loop_len_vector[0],
        pfor_ops=function.graph.get_operations(),
        fallback_to_while_loop=outer.fallback_to_while_loop,
        all_indices=outer.all_indices,
        all_indices_partitioned=outer.all_indices_partitioned,
        pfor_config=outer.pfor_config,
    )
    return pfor._convert_function_call(function, inner, inputs)


def looped(pfor_input) -> list:
    """Converts an operation so that it runs for one example at a time.

    Args:
        pfor_input: The operation, as a rule receives it.
    """
    given = [pfor_input.input(index) for index in range(pfor_input.num_inputs)]

    def one(rows):
        rows = iter(rows)
        return created(pfor_input, [next(rows) if x.is_stacked else x.t for x in given])

    outputs = tf.map_fn(
        one,
        [x.t for x in given if x.is_stacked],
        fn_output_signature=[tf.TensorSpec(o.shape, o.dtype) for o in pfor_input.outputs],
    )
    return [wrap(output, True) for output in outputs]


def at_once(function: Callable, rows: list, shared: list, kept: Sequence = ()) -> tuple[list, list]:
    """Calls a function, which `tf.vectorized_map` calls again with the rows of all examples.

    TensorFlow vectorizes a loop operation by operation, which takes seconds to trace, and every step of
    such a loop copies its whole state. A function that treats rows one by one can run on the rows of
    all examples as it is. No gradient flows through the call.

    Args:
        function: Maps `rows`, `shared` and `kept` to (list of tensors [rows, ...], list of tensors
            to keep); it treats rows one by one.
        rows: Tensors [rows, ...].
        shared: Tensors that do not depend on the example.
        kept: Tensors that another such call kept, for the rows of all examples. They may be of any
            kind, such as lists of tensors. Nothing else may use them.

    Returns:
        (tensors [rows, ...], tensors to keep).
    """
    given = [*map(tf.stop_gradient, [*rows, *shared]), *kept]
    count, end = len(rows), len(rows) + len(shared)
    results = None

    def flat(*tensors):
        nonlocal results
        tensors = [*tensors]
        found, keep = function(tensors[:count], tensors[count:end], tensors[end:])
        results = len(found)
        return [*found, *keep]

    def convert(pfor_input):
        pfor_input.stack_inputs([*range(count)])
        rows = [pfor_input.stacked_input(index) for index in range(count)]
        others = [pfor_input.unstacked_input(i) for i in range(count, pfor_input.num_inputs)]
        found, keep = function([*map(merged, rows)], others[: end - count], others[end - count :])
        first = rows[0].shape[1]
        shapes = [[None, first, *tensor.shape[1:]] for tensor in found]
        found = [apart(tensor, pfor_input.pfor.loop_len_vector, first) for tensor in found]
        found = [wrap(tf.ensure_shape(*pair), True) for pair in zip(found, shapes, strict=True)]
        return [*found, *(wrap(tensor, False) for tensor in keep)]

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in given]
    found = [*concrete_function(tf.function(flat, autograph=False), *specs)(*given)]
    # An attribute of the operation is freed together with the graph.
    setattr(found[0].op, AT_ONCE, convert)
    return found[:results], found[results:]


def taken(rows, index):
    """Returns a row by its number in the map; for all rows of the map, this is `rows` without a copy.

    `tf.vectorized_map` looks up each row unless it knows how many there are.
    """
    found = tf.gather(rows, index)
    setattr(found.op, AT_ONCE, lambda pfor_input: wrap(pfor_input.input(0).t, True))
    return found


class Loop(WhileV2):
    """The conversion of a loop; raises an error for lists if rows take different numbers of steps.

    TensorFlow loses elements of a list there, and its gradient fails for a row that takes no step.
    """

    def _process_cond_stacked(self, conditions, indices, inputs, *others):
        if any(tensor.dtype == tf.variant for tensor in inputs):
            raise ValueError(
                "a list or a gradient in a loop whose number of steps depends on the row"
            )
        return super()._process_cond_stacked(conditions, indices, inputs, *others)


_MERGED = "tfdp_merged"  # the attribute of an operation that only split an axis


def is_apart(tensor) -> bool:
    """Whether a tensor is one of `apart`, so that `merged` needs no operation."""
    return tf.is_symbolic_tensor(tensor) and hasattr(tensor.op, _MERGED)


def merged(tensor):
    """Merges the first two axes: [examples, rows, ...] to [examples * rows, ...].

    The result of `apart` is returned as it was before. So operations on batches follow each other
    directly, as in a plain model, and TensorFlow fuses them (convolution, bias and activation), or
    reuses their results in a gradient (the positions of a pool's maxima).
    """
    if is_apart(tensor):
        return getattr(tensor.op, _MERGED)
    known = tensor.shape[2:]
    if known.num_elements():
        return tf.reshape(tensor, [-1, *known])
    found = tf.reshape(tensor, tf.concat([[-1], tf.shape(tensor)[2:]], axis=0))
    if tensor.shape.rank is None:
        return found
    rows = None not in tensor.shape[:2] and tensor.shape[0] * tensor.shape[1]
    return tf.ensure_shape(found, [rows or None, *known])


def apart(tensor, examples, first: int | None):
    """Splits the first axis: [examples * rows, ...] to [examples, rows, ...].

    Args:
        tensor: The tensor.
        examples: int32 [1], the number of examples.
        first: Number of rows of an example, or None where it is unknown.
    """
    known = tensor.shape[1:] if tensor.shape.rank else tf.TensorShape(None)
    if first and known.num_elements():
        shape = [-1, first, *known]  # needs no operation
    else:
        later = [-1, *known] if known.num_elements() else tf.concat([[-1], tf.shape(tensor)[1:]], 0)
        shape = tf.concat([examples, later], axis=0)
    found = tf.reshape(tensor, shape)
    # An attribute of the operation is freed together with the graph.
    setattr(found.op, _MERGED, tensor)
    return found
