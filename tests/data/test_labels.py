"""Labels out of range are refused before training."""

import numpy as np
import pytest

from tfdp import data


@pytest.mark.parametrize("y", [[0, 1, 2], np.array([[0.0], [2.0]]), np.array([], np.int32)])
def test_accepts_class_indices(y):
    data.check_labels(y, 3)


@pytest.mark.parametrize(
    ("y", "received"),
    [([0, 3], r"3 at index \[1\]"), ([-1, 0], "-1"), ([0.5], "0.5"), ([np.nan, 1], "nan")],
)
def test_refuses_anything_else(y, received):
    with pytest.raises(ValueError, match=f"`y`.*from 0 to 2.*Received: {received}"):
        data.check_labels(y, 3)


def test_refuses_text():
    with pytest.raises(ValueError, match="integers"):
        data.check_labels(["a"], 3)
