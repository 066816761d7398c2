"""Weights that are read where no rule runs: in code of one's own, or in a layer without a rule.

Code of one's own may multiply by the table of an Embedding: a tied embedding. A layer of one's own,
or of another library, may hold weights that it scales by, adds, or looks vectors up in. No rule runs
there. But the graph shows what becomes of a weight that was read. If all of it are products of
matrices, look-ups or slices, these are recorded as if a layer had made them. Otherwise the gradient
at the weight is written out for each row, if the weight has no rule; a weight that has one is refused.

This holds where each row passes alone: whatever the code does with the weight then belongs to that row.
"""

import dataclasses

import tensorflow as tf

from tfdp.gradients.rules.base import Recorded
from tfdp.gradients.rules.dense import products
from tfdp.gradients.rules.embedding import lookups
from tfdp.gradients.rules.per_example_gradient import Instantiated

_SAME = {"Identity", "Cast"}
_PRODUCTS = {"MatMul": ("transpose_a", "transpose_b")}
_PRODUCTS |= dict.fromkeys(("BatchMatMulV2", "BatchMatMulV3"), ("adj_x", "adj_y"))


@dataclasses.dataclass(eq=False)
class Reader:
    """Takes the place of a rule for what becomes of one weight, or of one product with it.

    Attributes:
        layer: the model, whose code reads the weight.
        variable: the weight.
    """

    layer: object
    variable: object

    def gradients(self, calls):
        """Returns (variable, per-example gradients), as `Rule.gradients`."""
        (call,) = calls
        return [(self.variable, self.gradient(call))]

    def gradient(self, call):
        """Returns the gradients of the weight; what `call` recorded is the weight, as [1, ...]."""
        return Instantiated(call.gradient)


@dataclasses.dataclass(eq=False)
class _ProductReader(Reader):
    """For products with a matrix.

    Attributes:
        transposed: whether the products are with the transposed weight.
    """

    transposed: bool

    def gradient(self, call):
        factors = (call["factor"], call.gradient)
        return products(*(factors[::-1] if self.transposed else factors))


class _LookUpReader(Reader):
    """For rows of a matrix that are looked up, or that a slice takes."""

    def gradient(self, call):
        return lookups(call["indices"], call.gradient, self.variable.shape)


def whole_read(read, layer, variable) -> tuple:
    """Returns (`Reader`, `Recorded`) for all that becomes of a weight.

    Args:
        read: the weight as it was read, [1, ...].
        layer, variable: become attributes of the reader.
    """
    return Reader(layer, variable), Recorded(read, {})


def recorded_uses(read, layer, variable) -> list | None:
    """Returns a list of (`Reader`, `Recorded`) for products, look-ups and slices, or None.

    Args:
        read: the weight as it was read, a tensor of a graph in which the pass is complete.
        layer, variable: become attributes of the readers.

    Returns:
        None where anything else becomes of the weight.
    """
    if read.shape.rank != 2:
        return None
    found, waiting = [], [(read, False)]
    while waiting:
        tensor, transposed = waiting.pop()
        for operation in tensor.consumers():
            kind, output = operation.type, operation.outputs[0]
            if kind == "Shape":
                continue
            if kind in _SAME and output.dtype.is_floating:
                waiting.append((output, transposed))
            elif kind == "Transpose" and _exchanges(operation.inputs[1]):
                waiting.append((output, not transposed))
            elif kind in _PRODUCTS and _is_plain(operation, tensor):
                turned = transposed != operation.get_attr(_PRODUCTS[kind][1])
                call = Recorded(output, {"factor": operation.inputs[0]})
                found.append((_ProductReader(layer, variable, turned), call))
            elif not transposed and (indices := _looked_up(operation, tensor)) is not None:
                call = Recorded(output, {"indices": indices})
                found.append((_LookUpReader(layer, variable), call))
            else:
                return None
    return found


def _looked_up(operation, tensor):
    """Returns the indices of the rows of a matrix that an operation takes, or None if it does not.

    They have the axes of the operation's output but the last, of which there is at least one.
    """
    if operation.inputs[0] is not tensor:
        return None
    if operation.type == "GatherV2":
        _, indices, axis = operation.inputs
        if tf.get_static_value(axis) != 0 or operation.get_attr("batch_dims") != 0:
            return None
        if not indices.shape.rank:  # a single row, or unknown axes
            return None
        # A row of data with an index that does not exist counts as not finite, see `Lookups`.
        exist = (indices >= 0) & (indices < tensor.shape[0])
        return tf.where(exist, indices, -1)
    if operation.type != "Slice":
        return None
    begin, length = operation.inputs[1], operation.outputs[0].shape[0]
    whole_rows = operation.outputs[0].shape[1] == tensor.shape[1]
    # A slice of all rows is no look-up: its gradient written out is as small.
    if not whole_rows or length is None or length == tensor.shape[0]:
        return None
    return tf.cast(begin[0], tf.int32) + tf.range(length)


def _exchanges(permutation) -> bool:
    known = tf.get_static_value(permutation)
    return known is not None and known.tolist() == [1, 0]


def _is_plain(operation, tensor) -> bool:
    """Whether a product is [..., k] times the matrix `tensor`, which stands on the right only."""
    left, right = operation.inputs
    if left is tensor or right is not tensor:
        return False
    return left.shape.rank is not None and not operation.get_attr(_PRODUCTS[operation.type][0])
