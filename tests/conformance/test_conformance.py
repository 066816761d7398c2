"""tfdp's clipped sums equal those of TensorFlow Privacy and Opacus on the same weights and data.

`make_fixtures.py` stored their sums; each file names the versions that computed them.
"""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conformance import conformance_cases as cases
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import exact, ghost
from tfdp.gradients.forward import Forward
from tfdp.gradients.testing import run_engine

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("*.npz"))
ENGINES = {"ghost": ghost.bounded_sum, "vectorized": exact.bounded_sum}


def ours(case, engine):
    model = cases.model(keras, case)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = cases.data(case)
    return run_engine(
        ENGINES[engine],
        Forward(model),
        GlobalL2Clip(cases.L2_NORM_CLIP[case]),
        x,
        y,
        tf.ones([len(x)]),
        cases.MICROBATCH_SIZE.get(case, 1),
    )


def stored(fixture, prefix):
    return [fixture[f"{prefix}_{i}"] for i in range(sum(k.startswith(prefix) for k in fixture))]


def test_every_case_has_two_peers_or_groups():
    found = {(path.stem.split("-")[0], path.stem.split("-")[1].split("_")[0]) for path in FIXTURES}
    assert found >= {(case, "tf") for case in cases.ROWS}
    assert found >= {(case, "opacus") for case in cases.ROWS.keys() - cases.MICROBATCH_SIZE.keys()}
    assert sum(path.stat().st_size for path in FIXTURES) < 300_000


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_clipped_sums(path, engine):
    case = path.stem.split("-")[0]
    with np.load(path) as fixture:
        for mine, theirs in zip(cases.weights(case), stored(fixture, "weight"), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        for mine, name in zip(cases.data(case), ("x", "y"), strict=True):
            np.testing.assert_array_equal(mine, fixture[name])
        expected = stored(fixture, "sum")
    found = ours(case, engine)
    assert 0 < np.sum(found.clipped) < len(found.clipped)  # both branches of the clip are used
    largest = max(np.abs(array).max() for array in expected)
    for mine, theirs in zip(found.sums, expected, strict=True):
        # Opacus divides by the norm plus 1e-6, tfdp does not.
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5 * largest)


def test_a_wrong_clip_norm_would_be_seen():
    """The tolerance is far smaller than the effect of any other convention."""
    path = next(path for path in FIXTURES if path.stem == "dense-opacus_hooks")
    with np.load(path) as fixture:
        expected = stored(fixture, "sum")
    found = ours("dense", "vectorized").sums
    mean = [array / len(cases.data("dense")[0]) for array in found]
    for wrong in (mean, [1.001 * array for array in found]):
        largest = max(np.abs(array).max() for array in expected)
        with pytest.raises(AssertionError):
            for mine, theirs in zip(wrong, expected, strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5 * largest)
