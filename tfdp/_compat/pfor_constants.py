"""Rules of `tf.vectorized_map` for operations with a constant: axes, a shape, an order of axes.

TensorFlow's own rules compute in the graph what the constant becomes with one more axis in front: five
operations for each sum. This module makes another constant. They were a tenth of all operations of a
network's step, and the time of a first step follows their number.
"""

import functools

import numpy as np
import tensorflow as tf

from tfdp._compat.pfor_conversion import created, wrap


def _axes(axes, _):
    return np.where(axes >= 0, axes + 1, axes)


def _order(order, _):
    return np.concatenate([[0], order + 1]) if np.all(order >= 0) else None


def _multiples(multiples, _):
    return np.concatenate([[1], multiples])


def _margins(margins, _):
    return np.concatenate([[[0, 0]], margins])


def _shape(shape, of_row):
    if -1 in shape:
        shape = of_row
    # The number of rows follows from the others only where none of them is zero.
    return np.concatenate([[-1], shape]) if np.all(shape > 0) else None


# For each operation, what its second input becomes; the arguments are its value, and the shape of the
# operation's result for one row, with 0 where it is unknown.
_SECOND = dict.fromkeys(("Sum", "Prod", "Max", "Min", "Mean", "All", "Any", "ExpandDims"), _axes)
_SECOND |= {"Transpose": _order, "Tile": _multiples, "Reshape": _shape}
_SECOND |= dict.fromkeys(("Pad", "PadV2"), _margins)


def add_rules(rules: dict) -> None:
    """Adds the rules of this module to `rules`, which has those of TensorFlow."""

    def convert(own, becomes, pfor_input):
        values, *others = [pfor_input.input(index) for index in range(pfor_input.num_inputs)]
        if not values.is_stacked or any(other.is_stacked for other in others):
            return own(pfor_input)
        constant, *others = [other.t for other in others]
        known, of_row = tf.get_static_value(constant), pfor_input.op.outputs[0].shape
        found = None
        if known is not None and of_row.rank is not None:
            found = becomes(known, np.array([length or 0 for length in of_row], np.int64))
        if found is None:
            return own(pfor_input)
        found = tf.constant(found, constant.dtype)
        return wrap(created(pfor_input, [values.t, found, *others])[0], True)

    for name, becomes in _SECOND.items():
        rules[name] = functools.partial(convert, rules[name], becomes)
