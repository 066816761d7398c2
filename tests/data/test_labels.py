"""Labels out of range are refused before training."""

import numpy as np
import pytest

from tfdp import data


@pytest.mark.parametrize("y", [[0, 1, 2], np.array([[0.0], [2.0]]), np.array([], np.int32)])
def test_accepts_class_indices(y):
    data.check_labels(y, 3)


@pytest.mark.parametrize("y", [[0, 3], [-1, 0], [0.5], [np.nan, 1], ["a"]])
def test_refuses_anything_else(y):
    with pytest.raises(ValueError, match="`y`"):
        data.check_labels(y, 3)
