"""Tells variables that only count from variables that keep something of the data.

Layers may count their calls, or follow a schedule, in a variable that the forward pass assigns. Such a
variable is no release about anybody if its new value is a function of the model's other state alone.

Formal guarantee: a value passes if the traced graph shows a formula for it that has nothing but
element-wise arithmetic, constants and the state before the pass, and if this formula is the same for
another number of rows. So it depends neither on an example, nor on a label or a weight, nor on how many
rows a lot has.
"""

import tensorflow as tf

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
