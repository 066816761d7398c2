"""The ghost engine: one forward pass, one backward pass, no per-example gradient of the whole model.

The forward pass records the input of every layer with weights; the backward pass stops at those
layers' outputs. The input and the output gradient of a layer give the norm of its per-example gradient
and, once the bound has returned the scale of each example, the weighted sum over examples (Goodfellow
2015; Li et al. 2022, "ghost clipping"; Bu et al. 2023, "book-keeping").

The engine is exact for every model that it accepts. Where no rule accounts for a weight, each row
passes alone, and the graph shows what becomes of the weight (`rules.outside`). A model where that
fails raises `UnsupportedModelError`, and `supports` returns the reason beforehand.
"""

import dataclasses
import itertools

import tensorflow as tf

from tfdp._compat.keras import forget_losses
from tfdp._compat.tensorflow import concrete_function
from tfdp.gradients.bounds import L2Clip
from tfdp.gradients.chunks import works_in_sequence
from tfdp.gradients.contract import BoundedSum
from tfdp.gradients.engines.alone import over_rows
from tfdp.gradients.engines.ending import bounded
from tfdp.gradients.forward import Forward, input_specification
from tfdp.gradients.row_losses import row_losses
from tfdp.gradients.rules import Recorded, UnsupportedModelError
from tfdp.gradients.rules.recording import Recorder, owners, without_rule
from tfdp.gradients.rules.separate_rows import rows_are_separate
from tfdp.gradients.rules.sums import added
from tfdp.layers.lot_statistics import uses_batch_statistics
from tfdp.layers.public import public_layers


def supports(model, *, traces: bool = True) -> str | None:
    """Returns None if the engine is exact for `model`, otherwise one sentence with the reason.

    Where the shapes of the inputs are known (Sequential and functional models), the model is traced
    once on a graph of its own. A subclassed model gets the same checks when its first training step is
    traced; `bounded_sum` then raises `UnsupportedModelError`.

    Args:
        model: a built Keras model.
        traces: whether the model is traced; only layers and rules are looked at otherwise.
    """
    try:
        rules = owners(model)
        alone = _forward_pass(model, rules) is _row_by_row
        # TensorFlow does not vectorize a map over a single row.
        specification = input_specification(model, 2 if alone else 1) if traces else None
        if specification is not None:
            (_trace_alone if alone else _trace)(model, rules, specification)
    except (UnsupportedModelError, NotImplementedError) as error:
        return str(error)
    return None


def _forward_pass(model, rules):
    """Returns the function that runs the model: `_batched` if that is known to be safe.

    Otherwise the function is `_row_by_row`.

    Raises:
        UnsupportedModelError: neither function is exact for the model.
    """
    if uses_batch_statistics(model):
        raise UnsupportedModelError(
            f"Model '{model.name}' normalizes with statistics='batch', so an example's loss "
            "depends on the whole lot. Expected engine='auto' or 'vectorized' for it, or "
            "statistics='example'."
        )
    if not without_rule(model, rules) and rows_are_separate(model, rules):
        return _batched
    if public_layers(model):
        raise UnsupportedModelError(
            f"Model '{model.name}' has PublicExamples, and a layer or code of its own that could mix "
            "the rows of a batch."
        )
    for layer, rule in rules.items():
        if not rule.row_by_row:
            raise UnsupportedModelError(
                f"Layer '{layer.name}' ({type(layer).__name__}) has a rule for whole batches only, "
                f"and model '{model.name}' has a layer or code of its own that could mix the rows "
                "of a batch."
            )
    return _row_by_row


def _trace(model, rules, specification):
    forward = Forward(model)
    forward.permit(forward.state_variables)  # nothing is executed, and `first_pass` is the judge
    values = [tf.convert_to_tensor(v) for v in forward.variables]

    def run(x):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            Recorder(forward, rules, tape).outputs(values, forward.state(), x)

    try:
        concrete_function(tf.function(run, autograph=False), specification)
    finally:
        forget_losses(model)  # losses from add_loss belong to the graph that is gone


def _trace_alone(model, rules, specification):
    """Does what `_trace` does, for a model that runs row by row, with any loss."""
    forward = Forward(model)
    forward.permit(forward.state_variables)
    forward.loss = lambda scope, x, y, y_pred: tf.add_n(
        [tf.reduce_sum(tf.cast(leaf, tf.float32)) for leaf in tf.nest.flatten(y_pred)]
    )

    def run(x):
        _row_by_row(forward, rules, x, (), tf.ones([2]), 0)

    try:
        concrete_function(tf.function(run, autograph=False), specification)
    finally:
        forget_losses(model)


def bounded_sum(
    forward: Forward,
    bound: L2Clip,
    x,
    y,
    sample_weight,
    chunk,
    microbatch_size: int = 1,
) -> BoundedSum:
    """Computes the bounded sum of a chunk; see `contract.Engine`.

    Raises:
        UnsupportedModelError: the rules do not cover the model.
    """
    rules = owners(forward.model)
    run = _forward_pass(forward.model, rules)
    recorded, moments, losses, outputs, state = run(forward, rules, x, y, sample_weight, chunk)
    losses, output_losses = losses
    if works_in_sequence(forward, sample_weight.shape[0]):
        for use in itertools.chain.from_iterable(recorded.values()):
            use.calls = [*map(_in_sequence, use.calls)]
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


def _gradients(forward, recorded, moments):
    """Returns per-example gradients in the order of `forward.variables`.

    The entry is None for variables of layers that were not called.
    """
    parts: dict = {}
    for rule, uses in recorded.items():
        for use in uses:
            for variable, gradient in rule.gradients(use.calls):
                if not (isinstance(use.width, int) and use.width == 1):
                    gradient = gradient.grouped(use.width)
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


@dataclasses.dataclass
class _Use:
    """What a rule recorded in one call of its layer.

    Attributes:
        calls: a list of `Recorded`.
        width: number of recorded rows for each row of the chunk; an int32 scalar if the shapes do
            not show it.
    """

    calls: list
    width: int | tf.Tensor = 1


def _batched(forward, rules, x, y, sample_weight, chunk):
    """Runs all rows at once through a model that is known to keep rows separate."""
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
    recorded = {rule: [*map(_Use, uses)] for rule, uses in recorder.uses.items()}
    return recorded, recorder.moments, losses, y_pred, new_state


def _recorded_calls(recorder):
    """All recorded operations, in the order of rules and of their uses."""
    return [call for uses in recorder.uses.values() for use in uses for call in use]


def _row_by_row(forward, rules, x, y, sample_weight, chunk):
    """Runs each row alone, as a batch of one, vectorized: nothing that the model does can mix rows."""
    for rule in rules.values():
        rule.alone = True
    values = [tf.convert_to_tensor(v) for v in forward.variables]
    counts = {}

    def run(state, x, y, weight):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            recorder = Recorder(forward, rules, tape, alone=True)
            y_pred, scope, new_state = recorder.outputs(values, state, x)
            loss = recorder.loss(scope, x, y, y_pred)
            recorder.follow_reads()
            weighted = loss * weight
        calls = _recorded_calls(recorder)
        gradients = tape.gradient(
            weighted, [call.output for call in calls], unconnected_gradients="zero"
        )
        counts.update({rule: [*map(len, uses)] for rule, uses in recorder.uses.items()})
        return ([call.saved for call in calls], gradients), loss, scope, y_pred, new_state

    (saved, gradients), *losses, outputs, new_state = over_rows(
        forward, run, x, y, sample_weight, chunk
    )
    pairs = zip(saved, gradients, strict=True)
    recorded = {
        rule: [_merged(rule, [*itertools.islice(pairs, count)]) for count in each]
        for rule, each in counts.items()
    }
    return recorded, [], losses, outputs, new_state


def _merged(rule, calls):
    """Merges the first two axes of tensors [rows, width, ...] that were recorded row by row."""
    leaves = tf.nest.flatten(calls)
    widths = {leaf.shape[1] for leaf in leaves} - {None}
    if len(widths) > 1:
        raise UnsupportedModelError(
            f"Layer '{rule.layer.name}' ({type(rule.layer).__name__}) is called on something whose "
            "leading axis is not the batch."
        )
    rows = tf.shape(leaves[0])[0]
    width = widths.pop() if widths else tf.shape(leaves[0])[1]

    def shaped(leaf):
        # A tensor of another width has another number of entries, and fails where shapes are unknown.
        shape = tf.concat([[rows * width], tf.shape(leaf)[2:]], axis=0)
        return tf.ensure_shape(tf.reshape(leaf, shape), [None, *leaf.shape[2:]])

    merged = tf.nest.map_structure(shaped, calls)
    return _Use([Recorded(None, saved, gradient) for saved, gradient in merged], width)
