"""The ghost engine: one forward pass, one backward pass, no per-example gradient of the whole model.

There are two ways. Where each layer with weights has a rule, and all are known to keep the rows of a
batch separate, the rows pass together. Any other model takes the way of `engines.operations`, which is
as exact. docs/decisions/engines.md compares their times.

The forward pass records the input of every layer with weights; the backward pass stops at those
layers' outputs. The input and the output gradient of a layer give the norm of its per-example gradient
and, once the bound has returned the scale of each example, the weighted sum over examples (Goodfellow
2015; Li et al. 2022, "ghost clipping"; Bu et al. 2023, "book-keeping").
"""

import dataclasses

import tensorflow as tf

from tfdp.gradients.bounds import L2Clip
from tfdp.gradients.chunks import works_in_sequence
from tfdp.gradients.contract import BoundedSum
from tfdp.gradients.engines import operations
from tfdp.gradients.engines.ending import bounded
from tfdp.gradients.forward import Forward
from tfdp.gradients.row_losses import row_losses
from tfdp.gradients.rules import UnsupportedModelError
from tfdp.gradients.rules.recording import Recorder, owners, without_rule
from tfdp.gradients.rules.separate_rows import rows_are_separate
from tfdp.gradients.rules.sums import added
from tfdp.layers.lot_statistics import uses_batch_statistics


def bounded_sum(
    forward: Forward,
    bound: L2Clip,
    x,
    y,
    sample_weight,
    chunk,
    microbatch_size: int = 1,
) -> BoundedSum:
    """Computes the bounded sum of a chunk; see `contract.Engine`."""
    try:
        rules = _rules(forward.model)
        found = _pass(forward, rules, x, y, sample_weight, chunk)
    except UnsupportedModelError:
        found = None  # what `operations` raises should not seem to come from here
    if found is None:
        return operations.bounded_sum(forward, bound, x, y, sample_weight, chunk, microbatch_size)
    recorded, moments, (losses, output_losses), outputs, state = found
    if works_in_sequence(forward, sample_weight.shape[0]):
        recorded = {
            rule: [[*map(_in_sequence, use)] for use in uses] for rule, uses in recorded.items()
        }
    return bounded(
        _gradients(forward, recorded, moments),
        forward.variables,
        bound,
        sample_weight,
        microbatch_size,
        losses=losses,
        output_losses=output_losses,
        outputs=outputs,
        state=state,
    )


def _rules(model) -> dict:
    """Returns {layer: rule} for a model whose rows may run together.

    Raises:
        UnsupportedModelError: a weight has no rule, or the model is not known to keep rows separate.
    """
    rules = owners(model)
    if uses_batch_statistics(model) or without_rule(model, rules):
        raise UnsupportedModelError(f"Model '{model.name}' has layers without a rule.")
    if not rows_are_separate(model, rules):
        raise UnsupportedModelError(f"Model '{model.name}' is not known to keep rows separate.")
    return rules


def _gradients(forward, recorded, moments):
    """Returns per-example gradients in the order of `forward.variables`.

    The entry is None for variables of layers that were not called.
    """
    parts: dict = {}
    for rule, uses in recorded.items():
        for use in uses:
            for variable, gradient in rule.gradients(use):
                parts.setdefault(id(variable), []).append(gradient)
    found = {key: added(gradients) for key, gradients in parts.items()}
    for public in moments:
        public.add_to(found)
    return [found.get(id(v)) for v in forward.variables]


def _in_sequence(call):
    """Makes work on a call's saved tensors wait until the backward pass has reached its layer."""
    with tf.control_dependencies([call.gradient]):
        saved = tf.nest.map_structure(tf.identity, call.saved)
    return dataclasses.replace(call, saved=saved)


def _pass(forward, rules, x, y, sample_weight, chunk):
    """Runs all rows at once.

    Returns:
        (recorded, moments, losses, outputs, state): recorded is {rule: a list with what each call of
        its layer recorded}.
    """
    values = [tf.convert_to_tensor(v) for v in forward.variables]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        recorder = Recorder(forward, rules, tape)
        y_pred, scope, new_state = recorder.outputs(values, forward.state(chunk), x)
    *losses, at_outputs = row_losses(recorder, scope, x, y, y_pred, sample_weight)
    calls = _recorded_calls(recorder)
    calls += [call for public in recorder.moments for call in public.calls]
    gradients = tape.gradient(
        tf.nest.flatten(y_pred),
        [call.output for call in calls],
        output_gradients=at_outputs,
        unconnected_gradients="zero",
    )
    for call, gradient in zip(calls, gradients, strict=True):
        gradient = tf.convert_to_tensor(gradient)  # may be IndexedSlices, where a layer gathers
        call.gradient = tf.ensure_shape(gradient, call.output.shape)
    return recorder.uses, recorder.moments, losses, y_pred, new_state


def _recorded_calls(recorder):
    """All recorded operations, in the order of rules and of their uses."""
    return [call for uses in recorder.uses.values() for use in uses for call in use]
