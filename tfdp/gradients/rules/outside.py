"""Products with a weight that is read outside of its layer, such as `states @ transpose(table)`.

Code of one's own may multiply by the table of an Embedding: a tied embedding. No rule runs there. But
the graph shows what becomes of the weight that was read. If all of it are products of matrices, these
are recorded as if a layer had made them; otherwise the model is refused as before.

This holds where each row passes alone: whatever the code multiplies then belongs to that row.
"""

import dataclasses

import tensorflow as tf

from tfdp.gradients.rules.base import Recorded
from tfdp.gradients.rules.dense import products

_SAME = {"Identity", "Cast"}
_PRODUCTS = {"MatMul": ("transpose_a", "transpose_b")}
_PRODUCTS |= dict.fromkeys(("BatchMatMulV2", "BatchMatMulV3"), ("adj_x", "adj_y"))


@dataclasses.dataclass(eq=False)
class Reader:
    """Takes the place of a rule for products with one weight.

    Attributes:
        layer: the model, whose code reads the weight.
        variable: the weight, a matrix.
        transposed: whether the products are with the transposed weight.
    """

    layer: object
    variable: object
    transposed: bool

    def gradients(self, calls):
        """Returns (variable, per-example gradients), as `Rule.gradients`."""
        (call,) = calls
        factors = (call["factor"], call.gradient)
        return [(self.variable, products(*(factors[::-1] if self.transposed else factors)))]


def recorded_products(read, layer, variable) -> list | None:
    """Returns a list of (`Reader`, `Recorded`) for the products with a weight, or None.

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
            kind = operation.type
            if kind == "Shape":
                continue
            if kind in _SAME and operation.outputs[0].dtype.is_floating:
                waiting.append((operation.outputs[0], transposed))
            elif kind == "Transpose" and _exchanges(operation.inputs[1]):
                waiting.append((operation.outputs[0], not transposed))
            elif kind in _PRODUCTS and _is_plain(operation, tensor):
                turned = transposed != operation.get_attr(_PRODUCTS[kind][1])
                call = Recorded(operation.outputs[0], {"factor": operation.inputs[0]})
                found.append((Reader(layer, variable, turned), call))
            else:
                return None
    return found


def _exchanges(permutation) -> bool:
    known = tf.get_static_value(permutation)
    return known is not None and known.tolist() == [1, 0]


def _is_plain(operation, tensor) -> bool:
    """Whether a product is [..., k] times the matrix `tensor`, which stands on the right only."""
    left, right = operation.inputs
    if left is tensor or right is not tensor:
        return False
    return left.shape.rank is not None and not operation.get_attr(_PRODUCTS[operation.type][0])
