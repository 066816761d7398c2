"""Clipped sums equal those of TensorFlow Privacy, Opacus and jax_privacy on the same numbers.

`make_peer_fixtures.py` stored sums of the first two; each file names the versions that computed them.
"""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.gradients import peer_models as cases
from tests.gradients.reference import run_engine
from tests.rounding import FUNCTION, assert_close, terms_of
from tfdp.gradients.bounds import EachLayerL2Clip, GlobalL2Clip
from tfdp.gradients.engines import exact, ghost
from tfdp.gradients.forward import Forward

OPACUS = 2**9  # Opacus divides by the norm plus 1e-6, tfdp does not
FOLDER = Path(__file__).parent / "fixtures"
ENGINES = {"ghost": ghost.bounded_sum, "vectorized": exact.bounded_sum}


def ours(case, engine):
    model = cases.model(keras, case)
    terms = terms_of(model, len(cases.data(case)[0]))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = cases.data(case)
    found = run_engine(
        ENGINES[engine],
        Forward(model),
        GlobalL2Clip(cases.L2_NORM_CLIP[case]),
        x,
        y,
        tf.ones([len(x)]),
        cases.MICROBATCH_SIZE.get(case, 1),
    )
    return found, terms


def stored(fixture, prefix):
    return [fixture[f"{prefix}_{i}"] for i in range(sum(k.startswith(prefix) for k in fixture))]


@pytest.mark.parametrize(
    ("case", "engine"),
    [*((case, "ghost") for case in cases.ROWS), ("dense_microbatches", "vectorized")],
)
def test_clipped_sums_of_every_peer(case, engine):
    found, terms = ours(case, engine)
    assert 0 < np.sum(found.clipped) < len(found.clipped)  # both branches of the clip are used
    paths = sorted(FOLDER.glob(f"{case}-*.npz"))
    assert len(paths) >= (1 if case in cases.MICROBATCH_SIZE else 4)
    for path in paths:
        with np.load(path) as fixture:
            for mine, theirs in zip(cases.weights(case), stored(fixture, "weight"), strict=True):
                np.testing.assert_array_equal(mine, theirs)
            for mine, name in zip(cases.data(case), ("x", "y"), strict=True):
                np.testing.assert_array_equal(mine, fixture[name])
            expected = stored(fixture, "sum")
        largest = max(np.abs(array).max() for array in expected)
        for mine, theirs in zip(found.sums, expected, strict=True):
            assert_close(mine, theirs, terms + OPACUS, largest, message=path.stem)


def test_golden_sum_of_a_gaussian_query():
    """TensorFlow Privacy, gaussian_query_test.py: (-6, 8) clipped at 5 and (4, -3) are (1, 1)."""
    for records, clip in (([[2, 0], [-1, 1]], 10.0), ([[-6, 8], [4, -3]], 5.0)):
        squares = tf.constant(np.sum(np.square(records), axis=1, keepdims=True), tf.float32)
        scales = GlobalL2Clip(clip).scales(squares).numpy()
        assert_close(np.sum(scales * np.array(records), axis=0), [1, 1], 2 + 2 * FUNCTION)


def test_golden_clipping_of_each_layer():
    """jax_privacy, clipping_test.py: layers of norm 5 and 10, each clipped at 2 or at 5."""
    gradients = np.array([0.0, 3.0, 4.0, 0.0, 8.0, 6.0])
    squares = tf.constant([[25.0, 100.0]], tf.float32)
    for clip, expected in ((2.0, [0, 1.2, 1.6, 0, 1.6, 1.2]), (5.0, [0, 3, 4, 0, 4, 3])):
        scales = EachLayerL2Clip(clip, (0, 0, 1, 1)).scales(squares).numpy()[0]
        found = gradients * np.repeat(scales, 3)
        assert_close(found, expected, 2 * FUNCTION)
