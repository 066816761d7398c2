"""Finds what becomes of a weight, in the graph of one row's pass through the model.

Each row passes alone, so whatever an operation does with a weight belongs to that row. Large weights
meet the row's data in few kinds of operations: products, convolutions and look-ups. There the gradient
is a sum of outer products, or of vectors at looked-up rows, and its factors are the operation's other
input and the gradient at its output (`meetings`). On the way, a weight may be cast, reshaped, scaled or
multiplied by other weights (LoRA), which the factors follow (`pullbacks`). Where a weight meets the
data in any other operation, its gradient is written out for each row.

This is exact by the chain rule: the gradient of a weight is the sum, over the operations that read it,
of the gradient at the operation's output, pulled back to the weight. `uses_of` goes through every
operation that reads it. If no rule knows one of them, the gradient takes more memory, and is the same.

A new rule belongs in `meetings.meeting` if a weight meets the data there, and in
`pullbacks.pullbacks_of` if the operation is linear in weights alone. Return None when in doubt. What
the graph does not show, such as the loops of recurrent layers and the public examples of
normalizations, `declare`s its uses.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfdp._compat.graphs import called_graph
from tfdp.gradients.factors import Instantiated, PerExampleGradient
from tfdp.gradients.meetings import ENTRYWISE, PRODUCTS, meeting
from tfdp.gradients.pullbacks import pullbacks_of

# No gradient reaches a weight through these.
_WITHOUT_VALUES = {"Shape", "StopGradient", "ZerosLike", "OnesLike", "Rank", "Size"}


@dataclasses.dataclass(frozen=True, eq=False)
class Use:
    """What becomes of one weight in one operation.

    Attributes:
        sources: the tensors of the pass at which the backward pass takes gradients.
        saved: the tensors of the pass that the weight's gradient is made of besides.
        form: maps the gradients at `sources` and the saved tensors, each [rows, *shape in the pass],
            to the `PerExampleGradient` of the weight.
        written_out: whether the weight met the data entry by entry, or in an unknown way, so that its
            gradient has no factors.
        unknown: the operation of unknown kind for which the gradient is written out, or None.
    """

    sources: list
    saved: list
    form: Callable[..., PerExampleGradient]
    written_out: bool = False
    unknown: tf.Operation | None = None


def whole(read: tf.Tensor, of_rows: Callable, unknown: tf.Operation | None = None) -> list[Use]:
    """Returns all uses of a weight that the graph shows as one, whose gradient is written out.

    Args:
        read, of_rows: as in `uses_of`.
        unknown: as in `Use`.
    """
    return [*_all_declared(read, of_rows), Use([read], [], _whole, True, unknown)]


def _whole(at_weight):
    return Instantiated(tf.cast(at_weight, tf.float32))


def uses_of(read: tf.Tensor, of_rows: Callable) -> list[Use]:
    """Returns the uses of a weight, or `whole` if an operation with it is of unknown kind.

    Args:
        read: the weight as the pass read it, in a graph that shows the pass to its end.
        of_rows: whether a tensor depends on the row; see `_compat.dependence.Dependence`.
    """
    uses = [*_declared(read)]
    for operation in dict.fromkeys(read.consumers()):
        if operation.type in _WITHOUT_VALUES or _is_empty(operation):
            continue
        found = _uses_in(operation, read, of_rows)
        if found is None:
            return whole(read, of_rows, operation)
        uses += found
    return uses


def _is_empty(operation):
    return all(output.shape.num_elements() == 0 for output in operation.outputs)


def _uses_in(operation, tensor, of_rows):
    """The uses of a weight in one operation; None where its gradient is not known to have factors."""
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
        # A product with what no row changes is a sum of outer products itself. That is better than
        # what a later operation writes out.
        if operation.type not in PRODUCTS or not any(use.written_out for use in uses):
            return uses
    met = meeting(operation, place) or _meeting_in_call(operation, place)
    if met is None:
        return None
    saved, form = met
    return [Use([operation.outputs[0]], saved, form, operation.type in ENTRYWISE)]


def _after(use, pullback):
    return dataclasses.replace(use, form=lambda *tensors: pullback(use.form(*tensors)))


_DECLARED = contextvars.ContextVar("declared")  # {reference to tensor: uses}


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
        weight: a weight as the pass read it, or what was made of one.
        use: what becomes of it.
    """
    _DECLARED.get().setdefault(weight.ref(), []).append(use)


def _declared(weight):
    return _DECLARED.get({}).get(weight.ref(), ())


def _all_declared(weight, of_rows):
    """The declared uses of a weight and of what linear operations of weights alone make of it."""
    uses = [*_declared(weight)]
    for operation in dict.fromkeys(weight.consumers()):
        places = [place for place, one in enumerate(operation.inputs) if one is weight]
        if len(places) > 1 or any(map(of_rows, operation.inputs)):
            continue
        pullbacks = pullbacks_of(operation, *places) or ()
        for pullback, output in zip(pullbacks, operation.outputs, strict=False):
            uses += [_after(use, pullback) for use in _all_declared(output, of_rows)]
    return uses


def _meeting_in_call(call, place):
    """What `meeting` says of the one operation of a function, as of Keras' grouped convolutions."""
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
    met = meeting(output.op, *places)
    if met is None or any(one.ref() not in given for one in met[0]):
        return None
    return [given[one.ref()] for one in met[0]], met[1]
