"""The ghost engine: each row alone, all rows at once, gradients kept as factors.

`tf.vectorized_map` runs the model on each row as a batch of one, so the model cannot mix rows. The
graph of that pass shows which operations combine each weight with data (`uses`). A single backward pass
computes the gradients at their outputs, and none at the weights. These gradients and the inputs of the
operations are the factors of the per-example gradients, so that norms and sums need no gradient of
every weight and row (Goodfellow 2015; Li et al. 2022, "ghost clipping"; Bu et al. 2023,
"book-keeping"). For weights that are used in another way, and for all weights if `factors=False`, the
gradient is written out for each row.
"""

import functools
import math
import weakref

import tensorflow as tf
from absl import logging

from tfdp._compat.graphs import Dependence
from tfdp._compat.tensorflow import concrete_function
from tfdp.gradients.bounds import L2Clip
from tfdp.gradients.chunks import works_in_sequence
from tfdp.gradients.contract import BoundedSum
from tfdp.gradients.engines import row_pass
from tfdp.gradients.engines.layers_at_once import layers_at_once
from tfdp.gradients.engines.public_moments import known_moments, public_moments
from tfdp.gradients.forward import Forward
from tfdp.gradients.sums import add_gradients
from tfdp.gradients.uses import Use, declaring, uses_of, written_out_use
from tfdp.gradients.vectorizing import layer_of_operation

_LARGE = 2**16  # entries of a weight whose gradients are worth a warning
_WARNED: weakref.WeakSet = weakref.WeakSet()  # models with a warning


def per_example_gradients(
    forward: Forward, x, y, sample_weight, first, *, factors: bool = True
) -> tuple:
    """Computes the per-example gradients of the weighted loss.

    Args:
        forward, x, y, sample_weight, first: As in `contract.Engine`.
        factors: Whether gradients stay factors where possible.

    Returns:
        (gradients, losses, output_losses, outputs, state), where gradients is a list with a
        `PerExampleGradient` for each variable, or None for an unused variable. The others are as in
        `row_pass.over_rows`.

    Raises:
        NotImplementedError: If TensorFlow cannot vectorize an operation of the model.
    """
    values = [tf.convert_to_tensor(v) for v in forward.variables]
    public = public_moments(forward, values, forward.state()) if factors else []
    # Filled in when one row is traced: the uses of each weight, and their tensors' shapes in the pass.
    uses: list[list[Use]] = []
    shapes: list[list] = []

    def run(state, x, y, weight):
        with declaring():
            reads = [tf.identity(value) for value in values]
            own = {id(v): read for v, read in zip(forward.variables, reads, strict=True)}
            with (
                layers_at_once(forward.model, own),
                known_moments(public, forward.variables, reads),
            ):
                y_pred, scope, new_state = forward.outputs(reads, state, x)
            loss = forward.loss(scope, x, y, y_pred)
            weighted = loss * weight
            of_rows = Dependence()
            if factors:
                uses[:] = [uses_of(read, of_rows) for read in reads]
                _warn_of_large(forward, uses)
            else:
                uses[:] = [written_out_use(read, of_rows) for read in reads]
        flat = [use for each in uses for use in each]
        sources = [source for use in flat for source in use.sources]
        # A tape that computes gradients inside a graph never frees it (TensorFlow 2.21).
        gradients = tf.gradients(weighted, sources, unconnected_gradients="zero")
        gradients = iter(map(tf.convert_to_tensor, gradients))  # some may be IndexedSlices
        tensors = [[*(next(gradients) for _ in use.sources), *use.saved] for use in flat]
        shapes[:] = [[t.shape for t in (*use.sources, *use.saved)] for use in flat]
        return tensors, loss, scope, y_pred, new_state

    tensors, *others = row_pass.over_rows(forward, run, x, y, sample_weight, first)
    rows = sample_weight.shape[0]
    in_sequence = works_in_sequence(forward, rows)
    forms = iter(tensors)
    known = iter(shapes)
    gradients = []
    for each in uses:
        parts = []
        for use in each:
            found = [
                tf.ensure_shape(t, [rows, *shape])  # the map may lose static shapes
                for t, shape in zip(next(forms), next(known), strict=True)
            ]
            parts.append(use.gradient(*(_in_sequence(found) if in_sequence else found)))
        gradient = add_gradients(parts) if parts else None
        gradients.append(gradient if factors or gradient is None else gradient.instantiated())
    return (gradients, *others)


def _warn_of_large(forward, uses):
    """Warns, once for each model, of large weights in unknown operations.

    Their gradients are written out for every row. So are gradients of weights that every row uses entry
    by entry, such as position embeddings, but these are expected and cause no warning.
    """
    large = []
    for variable, own in zip(forward.variables, uses, strict=True):
        unknown = [use.unknown for use in own if use.unknown is not None]
        if unknown and math.prod(variable.shape) > _LARGE:
            large.append((variable, unknown[0]))
    if not large or forward.model in _WARNED:
        return
    _WARNED.add(forward.model)
    for variable, why in large:
        layer = layer_of_operation(forward.model, why.name)
        logging.warning(
            "The gradient of '%s' is written out for every example, %.3g MB each, because %s uses it "
            "in a way for which tfdp has no shorter form (TensorFlow operation %s). Set a smaller "
            "physical_batch_size if memory runs out.",
            variable.path,
            4e-6 * math.prod(variable.shape),
            f"model '{forward.model.name}'" if layer is None else f"layer '{layer.name}'",
            why.type,
        )


def _in_sequence(tensors):
    """Makes work on saved tensors wait until the backward pass has reached their operation."""
    with tf.control_dependencies(tensors[:1]):
        return [tensors[0], *map(tf.identity, tensors[1:])]


def bounded_sum(
    forward: Forward,
    bound: L2Clip,
    x,
    y,
    sample_weight,
    first,
    microbatch_size: int = 1,
    views: int = 1,
    *,
    factors: bool = True,
) -> BoundedSum:
    """Computes the bounded sum of a chunk; see `contract.Engine`.

    Args:
        forward, bound, x, y, sample_weight, first, microbatch_size, views: As in `contract.Engine`.
        factors: As in `per_example_gradients`.
    """
    gradients_of = functools.partial(per_example_gradients, factors=factors)
    given = (forward, bound, x, y, sample_weight, first, microbatch_size, views)
    compute = functools.partial(row_pass.bounded_sum, gradients_of, *given)
    # Outside of a graph, `tf.vectorized_map` makes its own, whose tensors nothing else may use.
    if tf.executing_eagerly():
        compute = concrete_function(tf.function(compute, autograph=False))
    return compute()
