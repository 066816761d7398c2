"""Lots of people instead of examples, with a limited number of examples of each person.

Formal guarantee: a person is drawn as one unit, regardless of the number of their examples, and at most
`max_examples` of them enter a lot. They are averaged and clipped as one, so a person changes a sum by
no more than one example would.
"""

import hashlib
from typing import Any

import numpy as np

from tfdp._validate import whole
from tfdp.data.permutation import siphash


class People:
    """The people of a data set and their examples.

    Args:
        privacy_ids: Integers or texts of shape [N], equal for the examples of one person.
        max_examples: k, the largest number of a person's examples in one lot.

    Attributes:
        count: Number of people.
        max_examples: k, as in the arguments.
        num_rows: Number of examples.

    Raises:
        ValueError: If the ids have another shape, or there are none.
    """

    def __init__(self, privacy_ids: Any, max_examples: int):
        ids = _ids(privacy_ids)
        self.max_examples = whole("examples_per_person", max_examples, 1)
        self.num_rows = len(ids)
        self._rows = np.argsort(ids, kind="stable")
        ordered = ids[self._rows]
        new = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
        self._starts = np.concatenate([[0], new, [len(ids)]])
        self.count = len(self._starts) - 1

    @property
    def digest(self) -> str:
        """A digest of which rows belong together, and of the numbers of the people."""
        return hashlib.sha256(self._rows.tobytes() + self._starts.tobytes()).hexdigest()

    def examples(self, people: np.ndarray, secret: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Chooses at most k examples of each person at random; every set of k is equally likely.

        Args:
            people: Numbers of people, int64 of shape [n].
            secret: 16 bytes for the step. The choice depends only on it and on the person's rows.

        Returns:
            The rows of the examples, int64 of shape [n, k], -1 where a person has fewer than k; and
            how many rows each person has among them, of shape [n].
        """
        k = self.max_examples
        counts = self._starts[people + 1] - self._starts[people]
        owners = np.repeat(np.arange(len(people)), counts)
        firsts = np.cumsum(counts) - counts
        rows = self._rows[np.arange(len(owners)) + (self._starts[people] - firsts)[owners]]
        # Keeps the k rows whose hashes are the smallest of the person's.
        by_score = np.lexsort((siphash(secret, rows), owners))
        ranks = np.arange(len(owners)) - firsts[owners]
        kept = ranks < k
        found = np.full((len(people), k), -1, np.int64)
        found[owners[kept], ranks[kept]] = rows[by_score][kept]
        return found, np.minimum(counts, k)


def _ids(privacy_ids) -> np.ndarray:
    """Checks ids and converts them to an array [N] of integers or texts, which can be sorted."""
    if isinstance(privacy_ids, str):
        raise ValueError(
            f"Expected an id for each example. Received the text {privacy_ids!r}. For a column of a "
            f"table, pass its values: source.rows(np.arange(len(source)))[0][{privacy_ids!r}]."
        )
    ids = np.asarray(privacy_ids)
    if ids.dtype.kind == "O" and ids.size:
        kinds = (int, np.integer), str, bytes
        kind = next((kind for kind in kinds if isinstance(ids.flat[0], kind)), ())
        for row, value in enumerate(ids.flat):
            if not isinstance(value, kind):
                raise ValueError(
                    f"The id of row {row} is {value!r}. Expected privacy_ids that are all integers or "
                    "all texts, without missing values. Give each row without an id a new one, or "
                    "remove these rows."
                )
        ids = np.array(ids.tolist())
    if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "biuSU":
        raise ValueError(
            "Invalid value received for argument `privacy_ids`. Expected one integer or text for each "
            f"example. Received an array of shape {ids.shape} and dtype {ids.dtype}."
        )
    return ids


def split_people(privacy_ids: Any, fraction: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Splits a data set into training and held-out rows, with all examples of a person on one side.

    Use it when several examples belong to one person: a split of examples would test a model on people
    that it was trained on.

    Args:
        privacy_ids: The person of each example, one integer or text for each, as for `make_lots`.
        fraction: Fraction of the people to hold out, in (0, 1).
        seed: Seed for the choice of the people.

    Returns:
        The tuple (training rows, held-out rows), indices of type int64 in increasing order.

    Raises:
        ValueError: If the ids are invalid, or one side would have no people.

    Example:
        >>> import tfdp
        >>> train, held_out = tfdp.data.split_people(["a", "b", "a", "c", "b", "d"], 0.25)
        >>> len(train) + len(held_out), len(held_out) <= 2
        (6, True)
    """
    found, numbers = np.unique(_ids(privacy_ids), return_inverse=True)
    held = max(1, round(fraction * len(found)))
    if not 0.0 < fraction < 1.0 or held == len(found):
        raise ValueError(
            f"Expected a fraction between 0 and 1 that leaves people on both sides. Received "
            f"{fraction} of {len(found)} people."
        )
    outside = np.zeros(len(found), bool)
    outside[np.random.default_rng(seed).permutation(len(found))[:held]] = True
    return np.flatnonzero(~outside[numbers]), np.flatnonzero(outside[numbers])
