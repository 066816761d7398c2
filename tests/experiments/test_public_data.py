"""Public examples: random strokes of any size, and none of the private ones."""

import numpy as np
import pytest

from tfdp import data
from tfdp.experiments.public_data import public_examples, strokes


@pytest.mark.parametrize("shape", [(8, 8, 1), (28, 28, 1), (12, 7, 3)])
def test_images(shape):
    images = strokes(20, shape)
    assert images.shape == (20, *shape) and images.dtype == np.float32
    assert images.min() >= -1 and images.max() <= 1
    assert len(np.unique(images.reshape(20, -1), axis=0)) == 20
    # The images are mostly background with some ink, as in handwriting.
    assert (images < 0).mean() > 0.5 and (images.max(axis=(1, 2, 3)) > 0.5).all()
    np.testing.assert_array_equal(images, strokes(20, shape))
    assert np.abs(images - strokes(20, shape, seed=1)).max() > 0.5


def test_public_examples_of_the_digits():
    drawn = public_examples("digits", 5)
    np.testing.assert_array_equal(drawn, strokes(5, (8, 8, 1)))
    private = data.load("digits").x_train.reshape(-1, 64)
    assert not (drawn.reshape(5, 1, 64) == private).all(axis=2).any()


def test_refusals():
    with pytest.raises(ValueError, match="count"):
        public_examples("digits", 0)
    with pytest.raises(ValueError, match="source"):
        public_examples("digits", 3, source="kmnist")
