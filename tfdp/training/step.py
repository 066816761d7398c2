"""One private step, from a lot to new weights, with the parameters of the session's run.

Formal guarantee: the weights change only by the optimizer's `update`, once for the lot, from one
bounded sum whose declared sensitivity is at most the one that the accounting assumes; the step is
counted between the data and the update, and a step that the session does not allow changes nothing.
"""

import keras
import tensorflow as tf

from tfdp.gradients.chunks import with_rows
from tfdp.gradients.first_pass import examine
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum, choose_engine
from tfdp.gradients.row_losses import row_losses
from tfdp.gradients.targets import weighted, without_none
from tfdp.session import Session
from tfdp.training.lot_metrics import Figures, LotMetrics, build_metrics


def private_step(model, session: Session, data, engine: str, diagnostics) -> dict:
    """Takes one step and returns the logs of Keras' `train_step`.

    Args:
        model: a compiled private model.
        session: the session that the step is accounted under.
        data: a lot: x, (x, y) or (x, y, sample_weight); examples of weight zero are absent.
        engine: the name of an engine.
        diagnostics: collects figures about the bound and the noise (`diagnostics.Diagnostics`).

    Raises:
        RuntimeError: the step does not belong to the session, or an engine declares a larger
            sensitivity than the accounting assumes.
        ValueError: in eager mode, the lot has more examples than the proof allows.
        BudgetExhausted: in eager mode, no further step is allowed. In a graph, an assertion fails in
            both cases.
    """
    optimizer, run = model.optimizer, session.run
    refuse_replicas(tf.distribute.get_strategy())
    x, y, sample_weight = _unpacked(data)
    # Examples are counted before rows are cut off below, so a lot with too many examples is refused.
    admitted = session.admits(sample_weight)
    if session.fixes_rows:
        x, y, sample_weight = with_rows((x, y, sample_weight), run.lot_size)
    forward = Forward(model)
    traced = examine(forward, x, y)
    session.check_step(forward.variables, optimizer)
    before = forward.state()
    metrics = LotMetrics(forward, traced, before)
    lot = bounded_sum(
        choose_engine(engine, model),
        forward,
        optimizer.bound(forward.variables, run.l2_norm_clip),
        x,
        y,
        sample_weight,
        physical_batch_size=session.plan.physical_batch_size,
        microbatch_size=run.microbatch_size,
        expected_rows=run.lot_size,
    )
    session.check_sensitivity(lot.relative_sensitivity)
    penalty = forward.penalty()

    def update():
        forward.advance(before, lot.state)
        scale = optimizer.update(lot, session, forward.variables, forward.regularization())
        return tf.cast(scale, tf.float32)

    # Only the update changes weights. It waits for the count, and the count waits for the data, so no
    # step is counted when the data have ended.
    with tf.control_dependencies(tf.nest.flatten(x)):
        allowed = session.count(admitted)
    if tf.executing_eagerly():
        if not admitted:
            raise ValueError(_TOO_MANY.format(run.lot_size))
        if not allowed:
            session.refuse()
        noise_scale = update()
    else:
        # `Session.authorize` refuses on the host first. Other code that runs this graph gets the error
        # from the assertions, or, under XLA, which drops assertions, an unchanged model.
        tf.debugging.Assert(admitted, [_TOO_MANY.format(run.lot_size)])
        tf.debugging.Assert(allowed, [_NOT_ALLOWED])
        noise_scale = tf.cond(allowed, update, lambda: tf.zeros([]))
    diagnostics.update(lot, noise_scale)
    figures = Figures(lot.losses, lot.output_losses, lot.outputs)
    return metrics.update(x, y, sample_weight, figures, penalty)


def prepare_step(model, data) -> None:
    """Does what belongs to the first step only, so that the step itself is traced once.

    The model is examined, and its metrics get their variables: TensorFlow traces a function that makes
    variables twice. Nothing is computed and no step is counted.

    Args:
        model: a compiled private model.
        data: a lot, as in `private_step`; only shapes and dtypes matter.

    Raises:
        ValueError: the model keeps what it sees, as in `private_step`.
    """
    x, y, _ = _unpacked(data)
    forward = Forward(model, frozen=not model.trainable_variables)
    build_metrics(model, y, examine(forward, x, y).outputs)


def frozen_step(model, data) -> dict:
    """Takes the step of a model without trainable weights: only its metrics are updated.

    No weight changes and nothing is released, so no step is counted. Arguments and result are as in
    `private_step`.

    Raises:
        NotImplementedError: there are several replicas.
        ValueError: the model keeps what it sees.
    """
    refuse_replicas(tf.distribute.get_strategy())
    x, y, sample_weight = _unpacked(data)
    forward = Forward(model, frozen=True)
    traced = examine(forward, x, y)
    before = forward.state()
    metrics = LotMetrics(forward, traced, before)
    outputs, scope, after = forward.outputs([], before, x)
    losses, output_losses, _ = row_losses(forward, scope, x, y, outputs, sample_weight)
    forward.advance(before, after)
    figures = Figures(losses, output_losses, outputs)
    return metrics.update(x, y, sample_weight, figures, forward.penalty())


_TOO_MANY = (
    "A lot has more examples than the {} that the accounting of this training knows of. Expected no "
    "more; call train_on_batch with the larger lot first, or fit."
)
_NOT_ALLOWED = (
    "No further step is allowed: the privacy budget is exhausted, or the ledger entry that this "
    "function was traced for is closed."
)


def _unpacked(data):
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    x = tf.nest.map_structure(tf.convert_to_tensor, without_none(x))
    y, sample_weight = weighted(y, sample_weight, tf.shape(tf.nest.flatten(x)[0])[0])
    return x, tf.nest.map_structure(tf.convert_to_tensor, y), sample_weight


def refuse_replicas(strategy) -> None:
    """Raises NotImplementedError under a `tf.distribute` strategy with several replicas."""
    if strategy.num_replicas_in_sync > 1:
        raise NotImplementedError(
            "Private training runs on one replica: with several, noise and sums would be counted "
            "once for each. Expected no tf.distribute strategy with more than one replica. Found "
            f"{strategy.num_replicas_in_sync}."
        )
