"""One private step, from a lot to new weights, with the parameters of the session's run.

Formal guarantee: the weights change only by the optimizer's `update`, once for the lot, from one
bounded sum whose declared sensitivity is at most the one that the accounting assumes. Over several
replicas, the sums of their shards are added before any noise, and every replica draws the same noise.
"""

import functools
import os

import keras
import tensorflow as tf

from tfdp._compat.tensorflow import set_fresh_seed
from tfdp.gradients.chunks import with_rows
from tfdp.gradients.first_pass import examine
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum, choose_engine
from tfdp.gradients.targets import weighted, without_none
from tfdp.session import Session
from tfdp.training.lot_metrics import (
    build_metrics,
    own_logs,
    sees_chunks,
    update_losses,
    update_metrics,
)
from tfdp.training.replicas import first_place, whole_lot


def private_step(model, session: Session, data, engine: str, diagnostics) -> dict:
    """Takes one step and returns the logs of Keras' `train_step`.

    Args:
        model: A compiled private model.
        session: The session that the step is accounted under.
        data: A lot: x, (x, y) or (x, y, sample_weight). Examples of weight zero are absent.
        engine: The name of an engine.
        diagnostics: The `diagnostics.Diagnostics` that collects figures about the bound and the noise.
    """
    optimizer, run, contribution = model.optimizer, session.run, session.run.contribution
    x, y, sample_weight = _unpacked(data)
    sharded = session.lots is not None and session.lots.sharded
    first = first_place(sample_weight, sharded)
    sample_weight = session.admitted(sample_weight, first)
    if session.fixes_rows:
        x, y, sample_weight = with_rows(x, y, sample_weight, session.lot_rows)
    forward = Forward(model)
    if not run.insecure_seed:  # operations of tf.random get new seeds, too, as layers do
        set_fresh_seed(int.from_bytes(os.urandom(4)))
    traced = examine(forward, x, y)  # it draws random numbers, but is not a step
    forward.shift_seeds(session.seed_shift())
    session.check_step(forward.variables, optimizer)
    before = forward.state()
    seen = [(v, tf.convert_to_tensor(v)) for v in forward.variables]
    seen += zip(forward.state_variables, before, strict=True)
    build_metrics(model, y, traced.outputs)
    watched, in_chunks = (forward, traced, seen), sees_chunks(model)
    lot = bounded_sum(
        choose_engine(engine, model),
        forward,
        optimizer.bound(forward.variables, contribution.l2_norm_clip),
        x,
        y,
        sample_weight,
        physical_batch_size=session.physical_batch_size,
        microbatch_size=contribution.microbatch_size,
        views=contribution.views,
        first=first,
        parts=tf.distribute.get_strategy().num_replicas_in_sync,
        expected_rows=session.lot_rows,
        observe=functools.partial(update_metrics, *watched) if in_chunks else None,
    )
    session.check_sensitivity(lot.relative_sensitivity)
    lot = whole_lot(lot, sharded)
    penalty = forward.penalty()
    # Nothing changes before the sum is computed: if the data have ended, or it fails, all stays as it
    # was. Everything waits for the group, because waiting for each sum made 80,000 edges in
    # MobileNetV2's graph.
    with tf.control_dependencies([tf.group(*lot.sums)]):
        session.begin_step()
        forward.advance(before, lot.state)
        penalties = forward.regularization()
        noise_scale = optimizer.update(lot, session, forward.variables, penalties)
    diagnostics.update(lot, tf.cast(noise_scale, tf.float32))
    update_losses(model, lot, sample_weight, penalty, contribution.views)
    if in_chunks:
        return model.get_metrics_result()
    return own_logs(*watched, x, y, sample_weight, lot.outputs)


def prepare_step(model, data) -> None:
    """Examines a model and makes the variables of its metrics, so that the step is traced only once.

    TensorFlow traces a function that makes variables twice. Only shapes and dtypes of the lot matter.
    Nothing is computed, and no step is counted.
    """
    x, y, _ = _unpacked(data)
    build_metrics(model, y, examine(Forward(model), x, y).outputs)


def _unpacked(data):
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    x = tf.nest.map_structure(tf.convert_to_tensor, without_none(x))
    y, sample_weight = weighted(y, sample_weight, tf.shape(tf.nest.flatten(x)[0])[0])
    return x, tf.nest.map_structure(tf.convert_to_tensor, y), sample_weight
