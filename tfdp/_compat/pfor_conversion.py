"""What the rules that tfdp adds to `tf.vectorized_map` have in common."""

import tensorflow as tf

from tfdp._compat.versions import borrowing

with borrowing("the rules of tf.vectorized_map"):
    from tensorflow.python.ops.parallel_for import pfor

    RULES = pfor._pfor_converter_registry
    wrap = pfor.wrap


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
