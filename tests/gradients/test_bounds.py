"""The global clip: no scaled gradient is longer than C, whatever its entries are."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.gradients.bounds import GlobalL2Clip


@settings(max_examples=60, deadline=None)
@given(
    gradient=st.lists(
        st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=6
    ),
    l2_norm_clip=st.floats(1e-3, 1e3),
)
def test_a_scaled_gradient_is_at_most_c_long(gradient, l2_norm_clip):
    gradient = np.array(gradient, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = (gradient**2).sum(dtype=np.float32)
    scale = GlobalL2Clip(l2_norm_clip).scales(tf.constant([[squares]])).numpy()[0, 0]
    assert 0.0 <= scale <= 1.0
    if np.isfinite(squares):
        assert np.linalg.norm(scale * gradient.astype(float)) <= l2_norm_clip * (1 + 1e-6)
    else:
        assert scale == 0.0


def test_the_norm_runs_over_all_variables():
    scales = GlobalL2Clip(1.0).scales(tf.constant([[9.0, 16.0], [0.01, 0.02], [0.0, 0.0]])).numpy()
    np.testing.assert_allclose(scales, [[0.2, 0.2], [1.0, 1.0], [1.0, 1.0]], rtol=1e-6)


def test_sensitivity_doubles_in_groups():
    bound = GlobalL2Clip(1.5)
    assert bound.sensitivity() == 1.5
    assert bound.sensitivity(microbatch_size=4) == 3.0


@pytest.mark.parametrize("clip", [0.0, -1.0, np.nan, np.inf])
def test_a_bad_clip_norm_is_refused(clip):
    with pytest.raises(ValueError, match="l2_norm_clip"):
        GlobalL2Clip(clip)
