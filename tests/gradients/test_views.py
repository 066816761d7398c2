"""The views of an example are averaged, and the average is clipped once."""

import numpy as np
import pytest
import tensorflow as tf

from tests.gradients.checking import normal
from tests.gradients.engines.test_exact import dense, dropout, run
from tests.rounding import assert_close, terms_of
from tfdp.gradients.engines import exact, ghost, loop

VIEWS = 3
ENGINES = pytest.mark.parametrize("engine", [ghost, exact, loop], ids=["ghost", "exact", "loop"])


def mean_gradient(model, x, y, weight):
    """The gradient of a batch, whose loss is the weighted sum over its rows by their number."""
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True), sample_weight=weight)
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    return np.concatenate([np.ravel(g) for g in gradients])


@ENGINES
@pytest.mark.parametrize(("microbatch_size", "chunk"), [(1, None), (2, 2 * VIEWS)])
def test_the_sum_is_that_of_a_loop_over_batches_of_views(engine, microbatch_size, chunk):
    """One view of example 1 and all of example 2 are absent; two of example 3 are not finite."""
    model, x, y = dense(), normal(12, 6), np.arange(12) % 3
    weight = np.float32([1, 1, 1, 1.5, 0, 1.5, 0, 0, 0, 1, 1, 1])
    finite = np.float32([1] * 9 + [0, 0, 1])
    means = np.array(
        [
            mean_gradient(model, *rows)
            for rows in zip(
                *(np.split(a, 4 // microbatch_size) for a in (x, y, weight * finite)), strict=True
            )
        ]
    )
    norms = np.linalg.norm(means, axis=1)
    clip = float(np.mean(norms))
    x[[4, 6, 9, 10]] = np.nan
    options = {"microbatch_size": microbatch_size, "views": VIEWS, "physical_batch_size": chunk}
    got = run(model, x, y, weight, clip, engine=engine, **options)
    expected = np.minimum(1.0, clip / np.maximum(norms, 1e-30)) @ means
    assert_close(got["sum"], expected, terms_of(model, 12))
    assert_close(got["norms"], norms, terms_of(model, VIEWS))
    np.testing.assert_array_equal(got["clipped"], norms > clip)
    np.testing.assert_array_equal(got["present"], norms > 0)
    assert int(got["non_finite"]) == 1 and 0 < np.sum(norms > clip) < len(norms)


@ENGINES
def test_equal_views_have_masks_of_their_own(engine):
    model, x, y = dropout(), np.ones((4, 40), np.float32), np.zeros(4, int)
    options = {"clip": 1e9, "engine": engine}
    rows, views = (run(model, x, y, np.ones(4), views=k, **options) for k in (1, 2))
    assert_close(2 * views["sum"], rows["sum"], terms_of(model, 4))
    assert np.all(views["norms"] < 0.9 * np.mean(np.reshape(rows["norms"], (2, 2)), axis=1))
