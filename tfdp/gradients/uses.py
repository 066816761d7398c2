"""Finds how a weight is used, in the graph of one row's pass through the model.

Each row passes alone, so the output of an operation with a weight belongs to that row. Few kinds of
operations combine a large weight with the row's data: products, convolutions and look-ups. There the
gradient is a sum of outer products, or of vectors at looked-up rows, and its factors are the
operation's other input and the gradient at its output (`weight_ops`). Before that, a weight may be
cast, reshaped, scaled or multiplied by other weights (LoRA), which the factors follow (`pullbacks`). If
any other operation combines a weight with data, its gradient is written out for each row.

This is exact by the chain rule: the gradient of a weight is the sum, over the operations that read it,
of the gradient at the operation's output, pulled back to the weight. `uses_of` goes through every
operation that reads it. If one of them has no rule, the gradient is the same, but takes more memory.

A new rule belongs in `weight_ops.gradient_rule` if the operation combines a weight with data, and in
`pullbacks.pullbacks_of` if it is linear in weights alone. Return None when in doubt. Code whose uses
the graph does not show, such as the loops of recurrent layers and the public examples of
normalizations, calls `declare`.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfdp._compat.graphs import called_graph
from tfdp.gradients.factors import Instantiated, PerExampleGradient
from tfdp.gradients.pullbacks import pullbacks_of
from tfdp.gradients.weight_ops import ENTRYWISE, PRODUCTS, gradient_rule

# No gradient reaches a weight through these.
_WITHOUT_VALUES = {"Shape", "StopGradient", "ZerosLike", "OnesLike", "Rank", "Size"}


@dataclasses.dataclass(frozen=True, eq=False)
class Use:
    """One operation that uses a weight, and the gradient that the weight gets from it.

    Attributes:
        sources: The tensors of the pass at which the backward pass takes gradients.
        saved: Other tensors of the pass that the weight's gradient is computed from.
        gradient: A function that maps the gradients at `sources` and the saved tensors, each [rows,
            *shape in the pass], to the `PerExampleGradient` of the weight.
        written_out: Whether the gradient has no factors, because the operation is entrywise or
            unknown.
        unknown: The unknown operation for which the gradient is written out. None if it is known.
    """

    sources: list
    saved: list
    gradient: Callable[..., PerExampleGradient]
    written_out: bool = False
    unknown: tf.Operation | None = None


def written_out_use(
    read: tf.Tensor, of_rows: Callable, unknown: tf.Operation | None = None
) -> list[Use]:
    """Returns all uses of a weight in the graph as one use, whose gradient is written out.

    Args:
        read, of_rows: As in `uses_of`.
        unknown: As in `Use`.
    """
    return [*_all_declared(read, of_rows), Use([read], [], _whole, True, unknown)]


def _whole(at_weight):
    return Instantiated(tf.cast(at_weight, tf.float32))


def uses_of(read: tf.Tensor, of_rows: Callable) -> list[Use]:
    """Returns the uses of a weight, or `written_out_use` if an operation with it is unknown.

    Args:
        read: The weight as the pass read it, in the graph of the complete pass.
        of_rows: Whether a tensor depends on the row; see `_compat.graphs.Dependence`.
    """
    uses = [*_declared(read)]
    for operation in dict.fromkeys(read.consumers()):
        is_empty = all(output.shape.num_elements() == 0 for output in operation.outputs)
        if is_empty or operation.type in _WITHOUT_VALUES:
            continue
        found = _uses_in(operation, read, of_rows)
        if found is None:
            return written_out_use(read, of_rows, operation)
        uses += found
    return uses


def _uses_in(operation, tensor, of_rows):
    """Returns the uses of a weight in one operation, None if its gradient has no known factors."""
    places = [place for place, one in enumerate(operation.inputs) if one is tensor]
    if len(places) > 1:
        return None
    (place,) = places
    pullbacks = None
    if not any(of_rows(one) for one in operation.inputs if one is not tensor):
        pullbacks = pullbacks_of(operation, place)
    if pullbacks is not None:
        uses = []
        for pullback, output in zip(pullbacks, operation.outputs, strict=True):
            uses += [_after(use, pullback) for use in uses_of(output, of_rows)]
        # A product with a tensor that all rows share is itself a sum of outer products, which is
        # cheaper than a gradient that a later operation writes out.
        if operation.type not in PRODUCTS or not any(use.written_out for use in uses):
            return uses
    rule = gradient_rule(operation, place) or _rule_in_call(operation, place)
    if rule is None:
        return None
    saved, gradient = rule
    return [Use([operation.outputs[0]], saved, gradient, operation.type in ENTRYWISE)]


def _after(use, pullback):
    return dataclasses.replace(use, gradient=lambda *tensors: pullback(use.gradient(*tensors)))


# {reference to tensor: uses}
_DECLARED: contextvars.ContextVar[dict[object, list[Use]]] = contextvars.ContextVar("declared")


@contextlib.contextmanager
def declaring():
    """Context of a pass in which `declare` may be called."""
    token = _DECLARED.set({})
    try:
        yield
    finally:
        _DECLARED.reset(token)


def declare(weight: tf.Tensor, use: Use) -> None:
    """Adds a use that the graph does not show.

    Args:
        weight: A weight as the pass read it, or the result of a linear operation on it.
        use: The use to add.
    """
    _DECLARED.get().setdefault(weight.ref(), []).append(use)


def _declared(weight):
    return _DECLARED.get({}).get(weight.ref(), ())


def _all_declared(weight, of_rows):
    """Returns the declared uses of a weight, and of the results of linear operations on it."""
    uses = [*_declared(weight)]
    for operation in dict.fromkeys(weight.consumers()):
        places = [place for place, one in enumerate(operation.inputs) if one is weight]
        if len(places) > 1 or any(map(of_rows, operation.inputs)):
            continue
        pullbacks = pullbacks_of(operation, *places) or ()
        for pullback, output in zip(pullbacks, operation.outputs, strict=False):
            uses += [_after(use, pullback) for use in _all_declared(output, of_rows)]
    return uses


def _rule_in_call(call, place):
    """Returns the rule of a function with a single operation, such as Keras' grouped convolutions."""
    graph = called_graph(call)
    if graph is None or len(graph.outputs) != 1:
        return None
    given = {inner.ref(): outer for inner, outer in zip(graph.inputs, call.inputs, strict=True)}
    output = graph.outputs[0]
    while output.op.type == "Identity":
        output = output.op.inputs[0]
    weight, inputs = graph.inputs[place], [*output.op.inputs]
    places = [place for place, one in enumerate(inputs) if one is weight]
    if len(places) != 1 or len(weight.consumers()) != 1:
        return None
    rule = gradient_rule(output.op, *places)
    if rule is None or any(one.ref() not in given for one in rule[0]):
        return None
    return [given[one.ref()] for one in rule[0]], rule[1]
