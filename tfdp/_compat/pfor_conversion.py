"""What the rules that tfdp adds to `tf.vectorized_map` have in common."""

import contextlib

import tensorflow as tf

from tfdp._compat.versions import borrowing

with borrowing("the rules of tf.vectorized_map"):
    from tensorflow.python.ops.parallel_for import pfor

    RULES = pfor._pfor_converter_registry
    wrap = pfor.wrap
    transposed = pfor._transpose_first_two_dims
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
def known_shapes():
    """Context in which TensorFlow's rules do not compute shapes in the graph that are known.

    A convolution had 18 operations for the shapes around it; a small network has 1,749 in all.
    """
    pfor._flatten_first_two_dims, pfor._unflatten_first_dim = _rows_merged, apart
    try:
        yield
    finally:
        pfor._flatten_first_two_dims, pfor._unflatten_first_dim = _MERGED, _APART


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
