"""The global clip: no scaled gradient is longer than C, whatever its entries are."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rounding import FUNCTION, assert_close, rounding
from tfdp.gradients.bounds import (
    AutomaticClip,
    EachLayerL2Clip,
    GlobalL2Clip,
    PerLayerL2Clip,
    make_bound,
)


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
        rounded = 1 + rounding(len(gradient) + 2 * FUNCTION)
        assert np.linalg.norm(scale * gradient.astype(float)) <= l2_norm_clip * rounded
    else:
        assert scale == 0.0


def test_the_norm_runs_over_all_variables():
    scales = GlobalL2Clip(1.0).scales(tf.constant([[9.0, 16.0], [0.01, 0.02], [0.0, 0.0]])).numpy()
    assert_close(scales, [[0.2, 0.2], [1.0, 1.0], [1.0, 1.0]], 2 + 2 * FUNCTION)


def test_sensitivity_doubles_in_groups():
    bound = GlobalL2Clip(1.5)
    assert bound.relative_sensitivity() == 1.0
    assert bound.relative_sensitivity(microbatch_size=4) == 2.0


@pytest.mark.parametrize("clip", [0.0, -1.0, np.nan, np.inf])
def test_a_bad_clip_norm_is_refused(clip):
    with pytest.raises(ValueError, match="l2_norm_clip"):
        make_bound("global", clip, ["a/kernel"])


BOUNDS = {
    "global": GlobalL2Clip(2.0),
    "per_layer": PerLayerL2Clip(2.0, (0, 0, 1, 2, 3)),
    "each_layer": EachLayerL2Clip(2.0, (0, 0, 1, 2, 3)),
    "automatic": AutomaticClip(2.0),
    "adaptive": make_bound("adaptive", tf.constant(2.0), []),
}


@pytest.mark.parametrize("name", BOUNDS)
@settings(max_examples=50, deadline=None)
@given(norms=st.lists(st.floats(0, 2.0**59, width=32), min_size=4, max_size=4))
def test_every_bound_keeps_the_whole_vector_within_its_sensitivity(name, norms):
    norms = np.array(norms, np.float32)
    scales = BOUNDS[name].scales(tf.constant(norms[np.newaxis] ** 2)).numpy()[0]
    limit = {"each_layer": 4.0}.get(name, 2.0)
    assert 2.0 * BOUNDS[name].relative_sensitivity() == limit
    assert np.linalg.norm(scales.astype(float) * norms) <= limit * (1 + rounding(4 + 2 * FUNCTION))


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_every_bound_drops_a_row_that_is_not_finite_anywhere(name, bad):
    scales = BOUNDS[name].scales(tf.constant([[1.0, bad, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]])).numpy()
    assert not scales[0].any()
    assert scales[1].all()


def test_per_layer_clips_a_layer_at_its_share_and_leaves_small_ones():
    scales = BOUNDS["per_layer"].scales(tf.constant([[25.0, 16.0, 0.01, 100.0]])).numpy()[0]
    assert_close(scales, [1 / 5, 1 / 4, 1.0, 1 / 10], 2 * FUNCTION)


def test_each_layer_is_clipped_at_the_whole_clip_norm():
    bound = EachLayerL2Clip(2.0, (0, 0, 1, 2, 3))
    scales = bound.scales(tf.constant([[25.0, 16.0, 0.01, 100.0]])).numpy()[0]
    assert_close(scales, [0.4, 0.5, 1.0, 0.2], 2 * FUNCTION)
    assert bound.clip_groups == 4
    assert BOUNDS["per_layer"].clip_groups == BOUNDS["global"].clip_groups == 1
    assert bound.relative_sensitivity(microbatch_size=2) == 4.0


def test_automatic_normalizes_and_spares_vanishing_gradients():
    scales = AutomaticClip(2.0).scales(tf.constant([[25.0], [0.0]])).numpy()[:, 0]
    assert_close(scales, [2.0 / 5.01, 200.0], 3 * FUNCTION)


def test_layers_are_told_by_their_paths():
    bound = make_bound("per_layer", 1.0, ["a/kernel", "a/bias", "b/cell/kernel", "b/kernel"])
    assert bound.layers == (0, 0, 1, 2)
    assert make_bound("each_layer", 1.0, ["a/kernel", "b/kernel"]) == EachLayerL2Clip(1.0, (0, 1))
    with pytest.raises(ValueError, match="clipping"):
        make_bound("nonsense", 1.0, ["a/kernel"])
