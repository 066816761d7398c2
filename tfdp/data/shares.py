"""Divides a lot among the replicas of a training: which rows each of them reads.

Every machine draws the indices of the whole lot from the same secret, and reads only the rows of its
own shares. A lot is cut by place: with s rows in a share, share r begins at place r s. All shares of a
lot have the same number of rows, so a replica knows the place of its first row.

Formal guarantee: each row of a lot is in exactly one share. Rows that fill a share are copies of a real
row with weight 0.
"""

import dataclasses

import keras
import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Shares:
    """The shares of each lot that one machine reads, which have consecutive numbers.

    Attributes:
        parts: Number of shares of a lot, one for each replica on all machines.
        first: Number of this machine's first share.
        local: Number of this machine's shares.
    """

    parts: int = 1
    first: int = 0
    local: int = 1

    def at(self, element: int) -> tuple[int, int]:
        """Returns (lot, share) of an element in the order in which this machine reads shares."""
        lot, place = divmod(element, self.local)
        return lot, self.first + place

    def units(self, units: np.ndarray, share: int, rows: int, unit: int) -> tuple[np.ndarray, int]:
        """Returns the units of a share, and its number of rows.

        Args:
            units: Units of the whole lot.
            share: Number of the share.
            rows: Number of rows in the whole lot.
            unit: Number of rows of a unit, which stay in one share.
        """
        if self.parts == 1:
            return units, rows
        size = _size(rows, self.parts, unit)
        first = share * size // unit
        return units[first : first + size // unit], size


def _size(rows, parts, unit):
    return -(-rows // (parts * unit)) * unit


def share_of(batch, parts: int, share, unit: int = 1) -> tuple:
    """Returns the rows (x, y, sample_weight) of one share of a batch.

    Args:
        batch: x, (x, y) or (x, y, sample_weight), structures of tensors with at least one row.
        parts: Number of shares.
        share: Number of the share, an integer or a scalar tensor.
        unit: Number of consecutive rows that stay in one share.
    """
    x, y, weights = tf.nest.map_structure(
        lambda leaf: None if leaf is None else tf.convert_to_tensor(leaf),
        keras.utils.unpack_x_y_sample_weight(batch),
    )
    leaf = next(leaf for leaf in tf.nest.flatten(x) if leaf is not None)
    rows = tf.shape(leaf)[0] if leaf.shape[0] is None else leaf.shape[0]
    size = _size(rows, parts, unit)
    places = tf.cast(share, tf.int32) * size + tf.range(size)
    present = places < rows
    taken = tf.where(present, places, 0)
    x, y = tf.nest.map_structure(lambda t: None if t is None else tf.gather(t, taken), (x, y))

    def weight(leaf):
        if leaf is None:
            return tf.cast(present, tf.float32)
        kept = tf.reshape(present, [-1] + [1] * (leaf.shape.rank - 1))
        leaf = tf.gather(tf.cast(leaf, tf.float32), taken)
        return tf.where(kept, leaf, 0.0)

    return x, y, tf.nest.map_structure(weight, weights)
