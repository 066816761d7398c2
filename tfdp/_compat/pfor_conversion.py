"""What the rules that tfdp adds to `tf.vectorized_map` have in common."""

import contextlib
import types

import tensorflow as tf
from absl import logging

from tfdp._compat.pfor_table import LOOPED
from tfdp._compat.versions import borrowing

with borrowing("the rules of tf.vectorized_map"):
    from tensorflow.python.ops.parallel_for import pfor

    RULES = pfor._pfor_converter_registry
    wrap = pfor.wrap
    transposed = pfor._transpose_first_two_dims
    _SHAPE_IN_LISTS = pfor._stack_tensor_list_shape
    _LOOP = pfor.WhileV2
    _MERGED, _APART = pfor._flatten_first_two_dims, pfor._unflatten_first_dim


def created(pfor_input, inputs) -> list:
    """Returns the outputs of an operation like the one that is converted, with other inputs.

    Args:
        pfor_input: the operation, as a rule receives it.
        inputs: tensors.
    """
    dtypes = [output.dtype for output in pfor_input.outputs]
    return pfor._create_op(pfor_input.op_type, inputs, dtypes, pfor_input.op.node_def.attr).outputs


def looped(pfor_input) -> list:
    """The conversion of an operation that runs it for one example after the other.

    Args:
        pfor_input: the operation, as a rule receives it.
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


@contextlib.contextmanager
def only_rules(rules: dict):
    """Context in which `tf.vectorized_map` vectorizes by these rules only.

    Any other operation, and one whose rule does not cover that its inputs differ by rows, runs for one
    row after the other, with a warning. Where that is impossible, the map raises an error.

    Yields:
        A list that gets the operations whose conversion raised, the inner ones first.
    """
    before, failed = pfor._pfor_converter_registry, []

    def rule_of(name, default=None):
        def convert(pfor_input):
            try:
                return _converted(rules.get(name), pfor_input)
            except Exception:
                failed.append(pfor_input.op)
                raise

        return convert

    def is_other(record):  # the map logs its whole state for each error, and tfdp raises its own
        text = record.getMessage()
        return "pfor was converting" not in text and "created at:\n" not in text

    pfor._pfor_converter_registry = types.SimpleNamespace(get=rule_of)  # the map asks for no more
    tf.get_logger().addFilter(is_other)
    try:
        yield failed
    finally:
        pfor._pfor_converter_registry = before
        tf.get_logger().removeFilter(is_other)


def _converted(rule, pfor_input):
    reason = "no rule that vectorizes it is known to keep examples apart"
    if rule is not None:
        try:
            return rule(pfor_input)
        except pfor.ConversionNotImplementedError as error:
            reason = str(error).rstrip(".")
    operation = pfor_input.op
    if operation.type not in LOOPED:
        if not _can_loop(operation):
            raise ValueError(reason)
        if operation.type not in _TOLD:
            _TOLD.add(operation.type)
            logging.warning(
                "TensorFlow operation %s (%s) runs for one example after the other, which is slow, "
                "because %s.",
                operation.type,
                operation.name,
                reason,
            )
    return looped(pfor_input)


_TOLD: set[str] = set()  # the operations that were warned of


def _can_loop(operation):
    definition = operation.op_def
    kinds = {tensor.dtype for tensor in (*operation.inputs, *operation.outputs)}
    return not (
        definition.is_stateful
        or any("func" in attribute.type for attribute in definition.attr)
        or kinds & {tf.variant, tf.resource}
        or not operation.outputs
        # Results of another shape for each row cannot be stacked.
        or not all(output.shape.is_fully_defined() for output in operation.outputs)
    )


class Loop(_LOOP):
    """The conversion of a loop, without lists where rows take different numbers of steps.

    TensorFlow forgets elements of a list there, and its gradient fails for a row that takes none.
    """

    def _process_cond_stacked(self, conditions, indices, inputs, *others):
        if any(tensor.dtype == tf.variant for tensor in inputs):
            raise ValueError(
                "a list or a gradient in a loop whose number of steps depends on the row"
            )
        return super()._process_cond_stacked(conditions, indices, inputs, *others)


@contextlib.contextmanager
def known_shapes():
    """Context in which TensorFlow's rules do not compute shapes in the graph that are known.

    A convolution had 18 operations for the shapes around it; a small network has 1,749 in all. For the
    elements of lists, TensorFlow forgets them, and takes elements of unknown shape for single numbers.
    """
    pfor._flatten_first_two_dims, pfor._unflatten_first_dim = _rows_merged, apart
    pfor._stack_tensor_list_shape = _shape_in_lists
    try:
        yield
    finally:
        pfor._flatten_first_two_dims, pfor._unflatten_first_dim = _MERGED, _APART
        pfor._stack_tensor_list_shape = _SHAPE_IN_LISTS


def _shape_in_lists(shape, rows):
    found = _SHAPE_IN_LISTS(shape, rows)
    return tf.concat([rows, tf.cast(shape, rows.dtype)], 0) if found is None else found


def merged(tensor):
    """Merges the first two axes: [examples, rows, ...] to [examples * rows, ...]."""
    known = tensor.shape[2:]
    if known.num_elements():
        return tf.reshape(tensor, [-1, *known])
    found = tf.reshape(tensor, tf.concat([[-1], tf.shape(tensor)[2:]], axis=0))
    rows = None not in tensor.shape[:2] and tensor.shape[0] * tensor.shape[1]
    return tf.ensure_shape(found, [rows or None, *known])


def _rows_merged(tensor):
    return _MERGED(tensor) if tensor.shape.rank is None else merged(tensor)


def apart(tensor, examples):
    """[examples * rows, ...] to [examples, rows, ...]; `examples` is int32 [1]."""
    known = tensor.shape[1:] if tensor.shape.rank else tf.TensorShape(None)
    if not known.num_elements():
        return _APART(tensor, examples)
    return tf.reshape(tensor, tf.concat([examples, [-1, *known]], axis=0))
