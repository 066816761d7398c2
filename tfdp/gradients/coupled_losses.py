"""Refuses losses that are not one value for each row, such as losses that compare the rows of a batch.

Engines give a loss one row at a time, since the gradient of an example may depend on this example
only. That is what Keras computes with a whole batch if, and only if, the loss of a row does not depend
on the other rows. A contrastive loss, which compares rows, has nothing to compare in a single row: its
gradient is often zero, and the model would learn noise in silence.

So each loss is tried on a few rows of made-up numbers, together and one by one. Outputs that have an
entry for each pair of rows, which only such losses need, are refused. A `compute_loss` of one's own is
tried as a whole, and warned of, since it may be meant. This does not concern privacy, which holds for
any loss that gets one row at a time.
"""

import contextlib

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from tfdp._compat.keras import compiled_loss, compute_loss_as_keras, flat_losses, forget_losses
from tfdp._compat.tensorflow import concrete_function
from tfdp.gradients.row_losses import is_row_by_row
from tfdp.gradients.rules.recording import has_own_compute_loss
from tfdp.gradients.targets import apart, with_none

_ROWS = 4
_UNKNOWN = 3  # stands for a dimension that the specification leaves open


def refuse_coupled_losses(model, x, y, y_pred) -> None:
    """Raises ValueError if the model has outputs over pairs of rows, or a loss of several rows.

    Args:
        model: a compiled Keras model.
        x, y, y_pred: structures of tensors or `tf.TensorSpec`s [rows, ...]; only their shapes and
            dtypes matter. y may be `WeightedTargets`.
    """
    _refuse_pairs_of_rows(model, x, y_pred)
    if has_own_compute_loss(model):
        _try_own_loss(model, x, y, y_pred)
    compiled = compiled_loss(model)
    if compiled is None or not compiled.built:
        return
    losses = [each[1] for each in flat_losses(compiled)]
    flat = all(len(leaf.shape) >= 2 for leaf in tf.nest.flatten(y_pred))
    if flat and all(map(is_row_by_row, losses)):
        return
    specs = _specs(x, y, y_pred)
    try:
        with tf.init_scope(), keras.StatelessScope() as scope:
            _judge(model, losses, scope, _made_up(specs))
    except _Inconclusive as error:
        logging.info("The losses of model '%s' could not be tried: %s", model.name, error)
        _judge_shapes(model, losses, specs)


def _specs(x, y, y_pred):
    return keras.tree.map_structure(_spec, (with_none(x), with_none(apart(y)[0]), y_pred))


def _made_up(specs):
    """Returns numbers for (x, y, y_pred)."""
    rng = np.random.default_rng(0)
    data = keras.tree.map_structure(_bits, specs[:2])
    return *data, keras.tree.map_structure(lambda spec: _fractions(spec, rng), specs[2])


def _try_own_loss(model, x, y, y_pred):
    """Warns if the loss of a few rows is neither the mean nor the sum of their losses alone."""

    def loss(data):
        return float(compute_loss_as_keras(model, *data, None))

    try:
        # In one scope, where random numbers move on, so that a loss that draws them is noticed.
        with tf.init_scope(), keras.StatelessScope():
            data = _made_up(_specs(x, y, y_pred))
            whole, again = loss(data), loss(data)
            alone = [loss(_row(data, row)) for row in range(_ROWS)]
    except Exception as error:
        logging.info("The compute_loss of model '%s' could not be tried: %s", model.name, error)
        return
    if not _close(whole, again) or _close(whole, np.mean(alone)) or _close(whole, np.sum(alone)):
        return
    logging.warning(
        "The compute_loss of model '%s' compares examples, or scales with their number: for %d rows of "
        "made-up numbers it is %.4g, and the mean over the rows alone %.4g. Private training takes the "
        "loss of each example alone, where nothing is left to compare. Make what is compared one "
        "example, or return a mean over the rows.",
        model.name,
        _ROWS,
        whole,
        np.mean(alone),
    )


def _refuse_pairs_of_rows(model, x, y_pred):
    """Raises ValueError if another axis of an output than the first is longer with more rows."""
    rows = tf.TensorShape(tf.nest.flatten(x)[0].shape)[0]
    shapes = [tf.TensorShape(leaf.shape) for leaf in tf.nest.flatten(y_pred)]
    if rows is None or not any(_may_hold_pairs(shape, rows) for shape in shapes):
        return
    try:
        more = _shapes_of_outputs(model, x, rows + 1)
    except Exception as error:
        # A model that works with this number of rows only is no reason to refuse it.
        logging.info("The outputs of model '%s' for more rows: %s", model.name, error)
        return
    for shape, other in zip(shapes, more, strict=True):
        if shape.rank and other.rank == shape.rank and other[1:] != shape[1:]:
            raise ValueError(
                f"An output of model '{model.name}' has the shape {tuple(shape)} for {rows} rows and "
                f"{tuple(other)} for {rows + 1}, so it has entries for pairs of rows. Private training "
                "bounds what one example contributes, so every example goes through the model alone, "
                "where nothing is left to compare, and the model would learn nothing. Expected outputs "
                "(rows, ...) that are computed row by row. A loss that compares examples cannot be "
                "trained with per-example privacy; make both parts of a pair one example instead."
            )


def _may_hold_pairs(shape, rows) -> bool:
    """Whether the shape is worth a second trace: the usual outputs (rows, units) are not."""
    if shape.rank is None or shape.rank < 2:
        return False
    return shape[0] not in (None, rows) or rows in shape[1:].as_list()


def _shapes_of_outputs(model, x, rows):
    """The shapes of the model's outputs in training, on a graph that is never executed."""
    found = []

    def run(x):
        outputs = model(with_none(x), training=True)
        found[:] = [leaf.shape for leaf in tf.nest.flatten(outputs)]
        return tf.constant(0)

    specs = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec([rows, *tf.TensorShape(leaf.shape)[1:]], leaf.dtype), x
    )
    try:
        with keras.StatelessScope():
            concrete_function(tf.function(run, autograph=False), specs)
    finally:
        forget_losses(model)  # losses from add_loss belong to this graph
    return found


class _Inconclusive(Exception):
    """A loss cannot be computed from made-up numbers."""


def _judge(model, losses, scope, data):
    """Compares the losses of rows together with those of each row alone."""
    for loss, y, y_pred, values in _calls(model, losses, data):
        _refuse_shape(loss, y_pred, values)
        try:
            again = loss.call(y, y_pred)
            alone = [loss.call(*_row((y, y_pred), row)) for row in range(_ROWS)]
        except Exception as error:
            raise _Inconclusive(str(error)) from error
        if not _close(values, again):
            continue  # a loss that draws random numbers
        single = len(values.shape) == 0
        alone = np.stack([np.asarray(a, np.float64) for a in alone])
        if single or alone.shape[1:] != (1, *values.shape[1:]):
            separate = single and _close(values, np.mean(alone))
        else:
            separate = _close(values, alone[:, 0])
        if not separate:
            _refuse(loss, "the values of some rows depend on other rows")


def _judge_shapes(model, losses, specs):
    """Looks at the shapes of the losses only, on a graph that is never executed."""

    def run(*data):
        for loss, _, y_pred, values in _calls(model, losses, data):
            _refuse_shape(loss, y_pred, values)
        return tf.constant(0)

    try:
        with keras.StatelessScope():
            concrete_function(tf.function(run, autograph=False), *specs)
    except _Inconclusive as error:
        logging.info("The shapes of the losses could not be traced: %s", error)


def _calls(model, losses, data):
    """Computes the model's loss, and returns (loss, y, y_pred, values) for each call of a loss."""
    found = []
    with contextlib.ExitStack() as stack:
        for loss in {id(loss): loss for loss in losses}.values():
            stack.enter_context(_recorded(loss, found))
        try:
            compute_loss_as_keras(model, *data, None)
        except Exception as error:
            raise _Inconclusive(str(error)) from error
    return found


@contextlib.contextmanager
def _recorded(loss, found):
    """Context in which calls of `loss` are appended to `found`."""
    before, call = vars(loss).get("call"), loss.call

    def recording(y, y_pred):
        values = call(y, y_pred)
        found.append((loss, y, y_pred, tf.convert_to_tensor(values)))
        return values

    loss.call = recording
    try:
        yield
    finally:
        if before is None:
            del loss.call
        else:
            loss.call = before


def _refuse_shape(loss, y_pred, values):
    shape = values.shape
    if shape.rank is None or (shape.rank > 0 and shape[0] in (None, _ROWS)):
        return
    # One number a row, without an axis of its own: Keras' losses then average over the rows themselves.
    flat = all(len(leaf.shape) == 1 for leaf in tf.nest.flatten(y_pred))
    if not (shape.rank == 0 and flat and _is_keras_function(loss)):
        _refuse(loss, f"for {_ROWS} rows it returns values of shape {tuple(shape)}")


def _is_keras_function(loss) -> bool:
    function = getattr(loss, "fn", loss.call)
    return (getattr(function, "__module__", None) or "").startswith("keras.")


def _refuse(loss, why):
    raise ValueError(
        f"The loss '{loss.name}' ({type(loss).__name__}) is not one value for each row: {why}. Private "
        "training bounds what one example contributes, so it takes the loss of each row alone. "
        "Expected values of shape (rows, ...), each computed from its own row, such as "
        "keras.ops.mean(keras.ops.square(y - y_pred), axis=-1); Keras averages them over the rows. "
        "Dice and Tversky do that with their argument `axis`, such as axis=(1, 2, 3) for images. A "
        "loss that compares examples cannot be trained with per-example privacy."
    )


def _close(a, b) -> bool:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)


def _row(tree, row):
    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else leaf[row : row + 1], tree
    )


def _spec(leaf):
    if leaf is None:
        return None
    shape = [_UNKNOWN if size is None else size for size in tf.TensorShape(leaf.shape)[1:]]
    return tf.TensorSpec([_ROWS, *shape], leaf.dtype)


def _bits(spec):
    """Zeros and ones in turn, which are labels, classes or numbers, whatever the loss expects.

    Of four rows, two and two are alike, since some losses compare rows of equal, or unequal, labels.
    """
    return None if spec is None else tf.cast(np.indices(spec.shape).sum(0) % 2, spec.dtype)


def _fractions(spec, rng):
    """Numbers between 0 and 1, which are probabilities, logits or numbers."""
    return None if spec is None else tf.cast(rng.uniform(0.1, 0.9, spec.shape), spec.dtype)
