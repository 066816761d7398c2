"""Images of random strokes: public examples for handwriting that need no download."""

from collections.abc import Sequence

import numpy as np

_WIDTH = 0.09  # width of a stroke, in units of the image's side
_POINTS = 16  # number of points at which a stroke is sampled


def strokes(count: int, shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Draws images of one or two bent strokes each, white on black like handwritten digits.

    The images come from a random number generator alone, so they are disjoint from any data and
    depend on none.

    Args:
        count: number of images.
        shape: (height, width, channels) of an image.
        seed: seed of the random number generator.

    Returns:
        A float32 array [count, height, width, channels] in [-1, 1].

    Raises:
        ValueError: `shape` does not have three dimensions.
    """
    if len(shape) != 3:
        raise ValueError(
            "Invalid value received for argument `shape`. Expected (height, width, channels). "
            f"Received: {tuple(shape)}"
        )
    height, width, channels = shape
    random = np.random.Generator(np.random.PCG64(seed))
    grid = np.stack(
        np.meshgrid(
            (np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width, indexing="ij"
        ),
        axis=-1,
    )
    t = np.linspace(0.0, 1.0, _POINTS)[:, np.newaxis]
    images = np.empty((count, height, width), np.float32)
    for image in images:
        ink = np.zeros((height, width))
        for _ in range(random.integers(1, 3)):
            # A quadratic Bezier curve.
            start, bend, end = random.uniform(0.1, 0.9, (3, 2))
            curve = (1 - t) ** 2 * start + 2 * t * (1 - t) * bend + t**2 * end
            distance = np.square(grid[:, :, np.newaxis] - curve).sum(axis=-1).min(axis=-1)
            ink = np.maximum(ink, np.exp(-distance / (2 * _WIDTH**2)))
        image[:] = 2.0 * np.minimum(1.3 * ink, 1.0) - 1.0
    return np.repeat(images[..., np.newaxis], channels, axis=-1)
