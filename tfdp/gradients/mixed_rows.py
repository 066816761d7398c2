"""Refuses models and losses that mix the rows of a lot, by a numerical check before training.

Private training computes the loss of every row alone. That equals Keras' loss if the loss of a lot is a
sum over its rows. A contrastive loss, or a layer that subtracts the mean of the batch, has nothing to
compare in a single row, and the model would silently learn noise.

The check uses synthetic rows and does not read private examples. It keeps the first or the last row and
replaces all others, with the same shapes and seeds: that row of an output must not change. The loss is
a sum over rows if replacing the first row changes it by the same amount whatever the other rows are.
Privacy does not depend on this check: it holds for any loss that sees one row at a time.
"""

import functools

import numpy as np
import tensorflow as tf
from absl import logging

from tfdp._compat.graphs import reached
from tfdp._compat.keras import compiled_loss, flat_losses, forget_losses
from tfdp._compat.tensorflow import concrete_function
from tfdp.gradients.forward import has_own_compute_loss
from tfdp.gradients.targets import apart
from tfdp.gradients.vectorizing import layer_of_operation
from tfdp.layers.lot_statistics import uses_batch_statistics

ROWS = 4
_LENGTH = 32  # stands for an unknown dimension
_ALONE = (
    "Private training bounds the contribution of one example, so it computes the loss of each "
    "example alone, without others to compare."
)


def refuse_mixed_rows(forward, run, x, y, outputs) -> None:
    """Raises ValueError if outputs or losses of one row depend on other rows.

    A custom `compute_loss` and losses from `add_loss` only cause a warning, unless the loss of a single
    row is constant. If the model fails on the synthetic rows, nothing is raised.

    Args:
        forward: The `Forward` of a compiled model.
        run: A function that maps x, y and weights to (the leaves of the model's outputs in training,
            losses from `add_loss`).
        x, y, outputs: Structures of `tf.TensorSpec`s [ROWS, ...]. y may be `WeightedTargets`.
    """
    model = forward.model
    if uses_batch_statistics(model):
        return  # mixes rows on purpose, as accounted
    losses = _names_of_losses(model)
    try:
        weights = _without_zeros(forward.variables)
        loss = _traced_loss(forward, weights)
        # Some models and losses mix rows only where numbers are large.
        for floats in (_fractions, _large):
            if floats is _fractions or _has_floats(x):
                _judge_outputs(forward, weights, run, _Lots((x, y), floats))
            if losses:
                data, predicted = _Lots((x, apart(y)[0])), _Lots(outputs, floats)
                _judge_loss(model, losses, loss, lambda i, j: (*data(i, j), predicted(i, j)))  # noqa: B023
    except _Mixed as error:
        raise ValueError(str(error)) from None
    except Exception as error:
        logging.info("Could not check whether model '%s' mixes rows: %s", model.name, error)
    finally:
        forget_losses(model)


class _Mixed(Exception):
    """Error for mixed rows. Other errors mean that the model cannot process the synthetic rows."""


def _has_floats(specs):
    return any(spec.dtype.is_floating for spec in tf.nest.flatten(specs))


def _fractions(rng, shape):
    return rng.uniform(0.1, 0.9, shape)  # probabilities, logits or numbers


def _large(rng, shape):
    return 5.0 * rng.standard_normal(shape)


class _Lots:
    """Two lots of synthetic numbers that differ in every row.

    Args:
        specs: A structure of `tf.TensorSpec`s [ROWS, ...].
        floats: Draws floats, from a generator and a shape. None makes them zeros and ones, as for
            all integers, which are labels, classes and tokens.
    """

    def __init__(self, specs, floats=None):
        rng = np.random.default_rng(0)

        def numbers(spec, lot):
            shape = [_LENGTH if size is None else size for size in spec.shape]
            if floats is not None and spec.dtype.is_floating:
                return floats(rng, shape)
            # A third of the entries are ones, so the means of the two lots differ.
            ones = (np.indices(shape).sum(0) % 3 == 1).astype(int)
            return 1 - ones if lot else ones

        self._specs = specs
        self._lots = [
            tf.nest.map_structure(functools.partial(numbers, lot=lot), specs) for lot in (0, 1)
        ]

    def __call__(self, kept: int, others: int, row: int = 0):
        """Returns the lot that has one row from lot number `kept`, and all others from `others`."""

        def mixed(spec, one, rest):
            rows = np.concatenate([rest[:row], one[row : row + 1], rest[row + 1 :]])
            return tf.as_string(rows) if spec.dtype == tf.string else tf.cast(rows, spec.dtype)

        return tf.nest.map_structure(mixed, self._specs, self._lots[kept], self._lots[others])


def _without_zeros(variables) -> list:
    """Returns the weights, with small random numbers for all-zero ones, which would hide mixed rows."""
    values = [tf.convert_to_tensor(v) for v in variables]
    return [
        value
        if tf.reduce_any(value != 0)
        else tf.random.stateless_uniform(value.shape, (0, index), -0.1, 0.1, value.dtype)
        for index, value in enumerate(values)
    ]


def _judge_outputs(forward, weights, run, lots):
    model = forward.model
    before, added = run(*lots(0, 0), weights)
    for row in (0, ROWS - 1):
        after, _ = run(*lots(0, 1, row), weights)
        if not _moved(before, after, row) or _moved(before, run(*lots(0, 0), weights)[0], row):
            continue
        operation = _mixing_operation(forward, weights, lots, row)
        layer = layer_of_operation(model, operation)
        who = f"Model '{model.name}'"
        if layer is not None:
            who = f"Layer '{layer.name}' ({type(layer).__name__}) of model '{model.name}'"
        raise _Mixed(
            f"{who} mixes the examples of a lot: a result for one example (of operation "
            f"'{operation}') depends on the other examples. {_ALONE} Compute outputs (rows, ...) "
            "row by row, for example with LayerNormalization instead of statistics over a batch, "
            "and make both parts of a pair one example."
        )
    if added and _interacts([run(*lots(*choice), weights)[1] for choice in _CHOICES]):
        _warn(model, "A loss that a layer of model '%s' adds (add_loss)")


def _moved(before, after, row: int) -> bool:
    """Whether a row differs by more than rounding in any tensor with ROWS rows."""
    return any(_differs(one, other, row) for one, other in zip(before, after, strict=True))


def _differs(before, after, row):
    if not before.shape.rank or before.shape[0] != ROWS or not before.dtype.is_floating:
        return False
    before, after = (np.asarray(tf.cast(t[row], tf.float64)) for t in (before, after))
    room = 1e-5 * np.max(np.abs(before), initial=0.0)
    return bool(np.any(np.abs(before - after) > room))  # NaN is inconclusive


def _mixing_operation(forward, weights, lots, row) -> str:
    """Returns the name of the operation that mixes rows, or "" if a trace does not show it.

    It is the first operation whose result for the row changes. If one of its inputs depends on `x` and
    has no axis of rows, it is the operation that merged the rows before, such as `tensordot` over all
    axes.
    """
    found_in: list[tf.Operation] = []
    reach: set[tf.Operation] = set()

    def everything(x):
        forward.outputs([tf.identity(value) for value in weights], forward.state(), x)
        operations = tf.compat.v1.get_default_graph().get_operations()
        tensors = [t for operation in operations for t in operation.outputs]
        found = [t for t in tensors if t.dtype.is_floating and t.shape.rank and t.shape[0] == ROWS]
        found_in[:] = [tensor.op for tensor in found]
        reach.update(reached(tf.nest.flatten(x)))
        return found

    x, other = lots(0, 0)[0], lots(0, 1, row)[0]
    specs = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), x)
    run = concrete_function(tf.function(everything, autograph=False), specs)
    results = zip(found_in, run(x), run(other), strict=True)
    operation = next((op for op, before, after in results if _differs(before, after, row)), None)
    while operation is not None:
        given = [t.op for t in operation.inputs if t.op in reach and t.shape[:1] != [ROWS]]
        if not given:
            return operation.name
        operation = given[0]
    return ""


def _names_of_losses(model) -> list[str]:
    if has_own_compute_loss(model):
        return ["compute_loss"]
    compiled = compiled_loss(model)
    if compiled is None or not compiled.built:
        return []
    # Synthetic labels are 0 and 1. Ignoring one of them would make the loss a mean over fewer labels.
    compared = (each[1] for each in flat_losses(compiled))
    return [one.name for one in compared if getattr(one, "ignore_class", None) not in (0, 1)]


_CHOICES = ((0, 0), (0, 1), (1, 0), (1, 1))


def _traced_loss(forward, weights):
    """Returns a `tf.function` of x, y and outputs: the loss, always with the same seeds."""

    def loss(x, y, y_pred):
        return forward.loss(forward.scope(weights, forward.state()), x, y, y_pred)

    return tf.function(loss, autograph=False)


def _judge_loss(model, names, loss, lots):
    values = [loss(*lots(*choice)) for choice in _CHOICES]
    if not _interacts(values) or float(loss(*lots(0, 0))) != float(values[0]):
        return
    if has_own_compute_loss(model):
        alone = [loss(*_first_row(lots(i, 0))) for i in (0, 1)]
        if float(alone[0]) != float(alone[1]):
            _warn(model, "The compute_loss of model '%s'")
            return
    raise _Mixed(
        f"The loss of model '{model.name}' ({', '.join(names)}) is not a sum over the rows of a "
        f"lot: the value of one row depends on the other rows. {_ALONE} Use a loss with one value "
        "for each row, computed from its own row, such as keras.ops.mean(keras.ops.square(y - "
        "y_pred), axis=-1). Replace means, deviations and class weights of a batch by public "
        "constants. Pass `axis` to Dice and Tversky, such as axis=(1, 2, 3) for images. Instead "
        "of Cox's likelihood, train hazards of time intervals (docs/own_code.md has the code)."
    )


def _interacts(values) -> bool:
    """Whether the effect of the first row on a number depends on the other rows."""
    first, *rest = np.asarray(values, np.float64).reshape([len(_CHOICES), -1])
    room = 1e-5 * np.max(np.abs([first, *rest]), 0) + 1e-3 * np.max(np.abs(rest - first), 0)
    return bool(np.any(np.abs(first - rest[0] - rest[1] + rest[2]) > room))


def _first_row(lot):
    return tf.nest.map_structure(lambda leaf: leaf[:1], lot)


def _warn(model, what):
    logging.warning(
        f"{what} compares examples, or does not scale with their number. {_ALONE} Make the "
        "compared parts one example, or return a mean over the rows.",
        model.name,
    )
