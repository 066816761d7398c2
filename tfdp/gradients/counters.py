"""Tells variables that only count from variables that keep something of the data.

Layers may count their calls, or follow a schedule, in a variable that the forward pass assigns. Such a
variable is no release about anybody if its new value is a function of the model's other state alone.

Formal guarantee: a value passes if the traced graph shows a formula for it that has nothing but
element-wise arithmetic, constants and the state before the pass, and if this formula is the same for
another number of rows. So it depends neither on an example, nor on a label or a weight, nor on how many
rows a lot has. What a step assigns is the value of this formula (`value_of`), and not what the executed
pass computed: a layer may compute something else for a number of rows that was not traced.
"""

import numpy as np
import tensorflow as tf

from tfdp._compat.tensorflow import op_definition

# Element-wise operations without a state and without functions inside.
_ARITHMETIC = {
    *("Abs", "Add", "AddN", "AddV2", "Cast", "Cos", "Div", "DivNoNan", "Equal", "Exp", "FloorDiv"),
    *("FloorMod", "Greater", "GreaterEqual", "Identity", "Less", "LessEqual", "Log", "LogicalAnd"),
    *("LogicalNot", "LogicalOr", "Maximum", "Minimum", "Mul", "MulNoNan", "Neg", "NotEqual", "Pow"),
    *("RealDiv", "Reciprocal", "SelectV2", "Sign", "Sin", "Sqrt", "Square", "StopGradient", "Sub"),
    *("Tanh", "TruncateDiv", "TruncateMod"),
}


def formula(value, state: list) -> tuple | None:
    """Returns how a graph computes a value from the state, or None if it takes anything else.

    Args:
        value: a tensor of a graph.
        state: tensors of the same graph, the state before the pass.

    Returns:
        Nested tuples that are equal for equal formulas.
    """
    known = {tensor.ref(): number for number, tensor in enumerate(state)}
    return None if not value.dtype.is_floating and not value.dtype.is_integer else _of(value, known)


def _of(tensor, known):
    if tensor.ref() in known:
        return ("state", known[tensor.ref()])
    operation = tensor.op
    if operation.type == "Const":
        constant = tf.get_static_value(tensor)
        return ("constant", tensor.dtype.name, constant.shape, constant.tobytes())
    if operation.type not in _ARITHMETIC or operation.control_inputs:
        return None
    arguments = [_of(argument, known) for argument in operation.inputs]
    if None in arguments:
        return None
    return (operation.type, tensor.dtype.name, *arguments)


def value_of(found: tuple, state: list) -> tf.Tensor:
    """Computes what a formula says.

    Args:
        found: what `formula` returned.
        state: tensors, the state before the pass.

    Returns:
        A tensor.
    """
    kind, *rest = found
    if kind == "state":
        return state[rest[0]]
    if kind == "constant":
        dtype, shape, content = rest
        dtype = tf.as_dtype(dtype)
        return tf.constant(np.frombuffer(content, dtype.as_numpy_dtype).reshape(shape), dtype)
    dtype, *arguments = rest
    values = [value_of(argument, state) for argument in arguments]
    names = [argument.name for argument in op_definition(kind).input_arg]
    named = {names[0]: values} if kind == "AddN" else dict(zip(names, values, strict=True))
    more = {"DstT": tf.as_dtype(dtype)} if kind == "Cast" else {}
    return getattr(tf.raw_ops, kind)(**named, **more)
