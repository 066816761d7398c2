"""Checks labels before training, so that the error can name the invalid label."""

import numpy as np


def check_labels(y, num_classes: int) -> None:
    """Checks that labels are class indices from 0 to `num_classes - 1`.

    `fit` of a private model does this for arrays with a sparse categorical loss. Call the function
    before you train on other data: on some devices TensorFlow turns an invalid label into a NaN loss,
    and a private step drops the example as not finite.

    Args:
        y: Labels of any shape, integers (or floats that are whole numbers).
        num_classes: Number of classes.

    Raises:
        ValueError: If a label is out of range or not a whole number. The message names its index.

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
