"""Checks labels before training, so that the error can name the invalid label."""

import numpy as np


def check_labels(y, num_classes: int) -> None:
    """Raises an error for labels that are not class indices in `[0, num_classes)`.

    TensorFlow turns an out-of-range label into a NaN loss on some devices and into an error on
    others; a private run would silently drop such examples as non-finite.

    Args:
        y: Labels, any shape, integers (or floats that are whole numbers).
        num_classes: The number of classes.

    Raises:
        ValueError: For a label that is out of range or not a whole number.

    Example:
        >>> import tfdp
        >>> tfdp.data.check_labels([0, 2, 1], num_classes=3)
        >>> tfdp.data.check_labels([0, 3, 1], num_classes=3)
        Traceback (most recent call last):
        ...
        ValueError: ... Expected class indices from 0 to 2. Received: 3 at index [1] (1 such labels).
    """
    y = np.asarray(y)
    if y.dtype.kind not in "biuf":
        raise ValueError(
            "Invalid value received for argument `y`. Expected class indices (integers). "
            f"Received an array of dtype {y.dtype}."
        )
    # The condition is negated as a whole, so that NaN counts as invalid.
    wrong = ~((y >= 0) & (y < num_classes) & (y == np.floor(y)))
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(
            f"Invalid value received for argument `y`. Expected class indices from 0 to "
            f"{num_classes - 1}. Received: {y[where]} at index {list(where)} "
            f"({int(wrong.sum())} such labels)."
        )
