"""The coins that include canaries."""

import numpy as np


def seed_of(purpose: bytes, seed: int, run: int) -> list[int]:
    """The seed of the coins of one training.

    The purpose keeps the coins apart from what a user draws with the same seed.

    Args:
        purpose: what the coins are for.
        seed: of the audit.
        run: number of the training.
    """
    return [int.from_bytes(purpose), seed, run]


def toss(count: int, seed, included=None) -> np.ndarray:
    """Tosses a fair coin for each canary: bool [count].

    Args:
        count: number of canaries.
        seed: as `numpy.random.default_rng` takes it.
        included: bool [count], the coins themselves, instead of those of the seed.

    Raises:
        ValueError: `included` has another length.
    """
    if included is None:
        return np.random.default_rng(seed).random(count) < 0.5
    included = np.asarray(included, bool)
    if included.shape != (count,):
        raise ValueError(
            f"Expected included to hold {count} booleans, one for each canary. Received shape "
            f"{included.shape}."
        )
    return included
