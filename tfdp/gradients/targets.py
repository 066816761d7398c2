"""Targets with weights for parts of a row, such as tokens, in the form that engines use.

Keras' `sample_weight` may have one number for each row, one for each token of a row, or one array for
each output of the model. Engines need one factor for the loss of each row, a tensor [rows] that is zero
for absent rows. Finer weights are part of the targets, as `WeightedTargets`, and reach the loss with
their row.

Normalization: the loss of a row is the one that Keras computes for a batch of this row alone. With
weights [rows], Keras' unweighted loss is multiplied by the row's weight. With finer weights, Keras'
loss gets them, so that the default reduction divides a sum over tokens by the number of tokens (and not
by the sum of the weights, which "mean_with_sample_weight" does), while losses from `add_loss` are not
weighted. No other row takes part. A row whose weights are all zero is absent.

`tf.nest` treats None as a leaf, so absent inputs and targets are empty tuples in engines.
"""

from typing import Any, NamedTuple

import keras
import tensorflow as tf


class WeightedTargets(NamedTuple):
    """Targets with weights for parts of a row.

    Attributes:
        targets: A structure of tensors [rows, ...].
        weights: One float32 tensor [rows, tokens, ...], or one [rows, ...] for each of the targets,
            in their structure.
    """

    targets: Any
    weights: Any


def apart(y) -> tuple[Any, Any]:
    """Returns (targets, weights of their parts); weights is None if each row has only a factor."""
    return tuple(y) if isinstance(y, WeightedTargets) else (y, None)


def without_none(tree):
    """Replaces every None in a structure by an empty tuple, which has no leaves."""
    if tree is None:
        return ()
    return tf.nest.map_structure(lambda leaf: () if leaf is None else leaf, tree)


def with_none(tree):
    """Replaces empty tuples by None: the inverse of `without_none`."""

    def absent(part):
        return keras.tree.MAP_TO_NONE if isinstance(part, tuple) and not part else None

    return keras.tree.traverse(absent, tree)


def weighted(y, sample_weight, rows) -> tuple[Any, tf.Tensor]:
    """Converts the targets and sample weights of a batch to the form that engines use.

    Args:
        y: Targets, a structure of tensors [rows, ...], with None for absent targets.
        sample_weight: None; a tensor [rows], [rows, 1] or [rows, tokens, ...]; or a structure like
            `y` with such tensors, or None for a target without weights.
        rows: Number of rows.

    Returns:
        The targets without None, or `WeightedTargets`; and a factor for the loss of each row,
        float32 [rows], which is zero for absent rows.

    Raises:
        ValueError: If the weights do not fit the targets.
    """
    targets = without_none(y)
    if sample_weight is None:
        return targets, tf.ones([rows], tf.float32)
    if tf.nest.is_nested(sample_weight):
        check_weights(y, sample_weight)
        weights = tf.nest.map_structure(lambda leaf: _weight(leaf, rows), sample_weight)
    else:
        weights = _weight(sample_weight, rows)
        if weights.shape.rank == 1:
            return targets, weights
        check_weights(y, weights)
    present = tf.stack([_present(leaf) for leaf in tf.nest.flatten(weights)])
    return WeightedTargets(targets, weights), tf.cast(tf.reduce_any(present, axis=0), tf.float32)


def check_weights(y, sample_weight) -> None:
    """Raises ValueError or TypeError if weights for parts of a row do not fit the targets.

    Args:
        y: Targets, a structure of arrays or tensors.
        sample_weight: One array or tensor of rank above 1, or a structure of them.
    """
    nested = tf.nest.is_nested(sample_weight)
    if not nested and not tf.nest.is_nested(y):
        return
    if not nested:
        raise ValueError(
            "A single `sample_weight` for several targets must have one number for each example. Its "
            f"shape is {tuple(sample_weight.shape)}. Pass shape (rows,), or weights in the "
            "structure of the targets."
        )
    tf.nest.assert_same_structure(*map(keras.tree.lists_to_tuples, (y, sample_weight)))


def _weight(leaf, rows):
    """Returns one tensor of weights, without a trailing axis of length one, [rows, 1]."""
    if leaf is None:
        return tf.ones([rows], tf.float32)
    leaf = tf.cast(tf.convert_to_tensor(leaf), tf.float32)
    if not leaf.shape.rank:
        raise ValueError(
            "`sample_weight` is a single number for all rows. Pass one number for each example, shape "
            "(rows,), or for each token, shape (rows, tokens)."
        )
    return leaf[:, 0] if leaf.shape.rank == 2 and leaf.shape[1] == 1 else leaf


def _present(weights):
    """Whether each row has a weight that is not zero, bool [rows]."""
    return tf.reduce_any(tf.not_equal(weights, 0.0), axis=[*range(1, weights.shape.rank)])
