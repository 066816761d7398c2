"""Normalization by statistics of a whole private lot, as in the papers' batch normalization.

One example then changes the gradients of all others. Layers that may do so have the property
`uses_lot_statistics`, which the engines and the accounting check.
"""

import contextlib

import tensorflow as tf

from tfdp._compat.keras import layers_of

_present_rows: list[tf.Tensor] = []


@contextlib.contextmanager
def running_lot(present: tf.Tensor):
    """Context in which statistics over a lot include only the rows that are present.

    Args:
        present: Bool [rows]; False for the rows that pad the lot.
    """
    _present_rows.append(tf.cast(present, tf.float32))
    try:
        yield
    finally:
        _present_rows.pop()


def present_rows(rows: tf.Tensor) -> tf.Tensor:
    """Returns float32 [rows]: 1 for the present rows of the current lot, and 0 for others.

    Args:
        rows: Number of rows. Outside of `running_lot`, all are present.
    """
    return _present_rows[-1] if _present_rows else tf.ones([rows])


def uses_batch_statistics(model) -> bool:
    """Returns whether some layer of `model` normalizes with statistics over the private lot."""
    layers = layers_of(model, itself=True)
    return any(getattr(layer, "uses_lot_statistics", False) for layer in layers)
