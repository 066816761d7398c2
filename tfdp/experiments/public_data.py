"""Public examples that resemble a private data set, for batch normalization."""

from collections.abc import Sequence

import numpy as np

from tfdp._validate import one_of, whole
from tfdp.data.datasets import DATASETS, load_split

# The source of public examples for each private data set. KMNIST and CIFAR-100 (their test splits) are
# used in SI-DPSGD, section 5. "strokes" is random and needs no download.
# CIFAR-100 itself is for pre-training without privacy.
PUBLIC = {"mnist": "kmnist", "cifar10": "cifar100", "digits": "strokes", "cifar100": "cifar100"}

_WIDTH = 0.09  # width of a stroke, in units of the image's side
_POINTS = 16  # number of points at which a stroke is sampled


def public_examples(name: str, count: int, source: str | None = None, seed: int = 0) -> np.ndarray:
    """Draws public examples that are disjoint from the private data set.

    Args:
        name: Name of the private data set, a key of `PUBLIC`.
        count: Number of examples, at least 1.
        source: "kmnist", "cifar100" or "strokes". None takes the source in `PUBLIC`.
        seed: Seed of the draw, which is public.

    Returns:
        A float32 array of shape (count, height, width, channels), preprocessed like the private data.

    Raises:
        ValueError: If the data set has no public counterpart, the source has images of another
            shape, or the count is out of range.
        DataUnavailable: If the source is not on this machine and cannot be downloaded.
    """
    one_of("name", name, sorted(PUBLIC), remedy="Use one with a public counterpart.")
    shape, source = DATASETS[name].input_shape, source or PUBLIC[name]
    fits = [each for each in ("kmnist", "cifar100") if DATASETS[each].input_shape == shape]
    one_of("source", source, [*fits, "strokes"], remedy=f"{name!r} has images of another shape.")
    if source == "strokes":
        return strokes(whole("count", count, 1), shape, seed)
    inputs, _ = load_split(source, "test")
    count = whole("count", count, 1, len(inputs))
    return inputs[np.random.default_rng(seed).choice(len(inputs), count, replace=False)]


def strokes(count: int, shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Draws float32 images [count, *shape] in [-1, 1] of one or two bent strokes, like digits.

    They come only from a random number generator, so they do not depend on any data.
    """
    height, width, channels = shape
    random = np.random.Generator(np.random.PCG64(seed))
    rows, columns = (np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width
    pixels = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1)
    t = np.linspace(0.0, 1.0, _POINTS)[:, np.newaxis]
    images = np.empty((count, height, width), np.float32)
    for image in images:
        ink = np.zeros((height, width))
        for _ in range(random.integers(1, 3)):
            # A quadratic Bezier curve.
            start, bend, end = random.uniform(0.1, 0.9, (3, 2))
            curve = (1 - t) ** 2 * start + 2 * t * (1 - t) * bend + t**2 * end
            distance = np.square(pixels[:, :, np.newaxis] - curve).sum(axis=-1).min(axis=-1)
            ink = np.maximum(ink, np.exp(-distance / (2 * _WIDTH**2)))
        image[:] = 2.0 * np.minimum(1.3 * ink, 1.0) - 1.0
    return np.repeat(images[..., np.newaxis], channels, axis=-1)
