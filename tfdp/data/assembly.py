"""Turns the units of a lot into rows: neighbours, people, views, functions and padding.

Formal guarantees:

* Every row depends on one example, the secret of its view and the step, and on no other row.
* Absent rows and padding are copies of one row of the lot (of the source's first row in an empty lot),
  with weight 0.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.data.arrays import as_weights
from tfdp.data.examples import at_places, conformed, stacked
from tfdp.data.mapping import RowFunction
from tfdp.data.people import People
from tfdp.data.permutation import siphash
from tfdp.data.sources import Source


@dataclasses.dataclass(frozen=True)
class Assembly:
    """Turns the units of a lot into its rows.

    Attributes:
        source: The source of the examples.
        available: Number of examples (or people) that units consist of.
        unit_size: Number of neighbours in a unit.
        augmentations: Number of views of each example.
        people: The person of each example, where units are people; or None.
        functions: Applied to each example, in order.
        weights_of: Computes weights from targets [rows, ...]; the source then has no weights.
    """

    source: Source
    available: int
    unit_size: int = 1
    augmentations: int = 1
    people: People | None = None
    functions: tuple[RowFunction, ...] = ()
    weights_of: Callable[[Any], np.ndarray] | None = None

    @property
    def views(self) -> int:
        """Number of consecutive rows that are averaged before clipping."""
        return self.augmentations * (1 if self.people is None else self.people.max_examples)

    def neighbours(self, units: np.ndarray) -> np.ndarray:
        """Returns the members of units; `available` where the last unit has fewer."""
        if self.unit_size == 1:
            return units
        members = (units[:, None] * self.unit_size + np.arange(self.unit_size)).ravel()
        return np.minimum(members, self.available)

    def places(
        self, units: np.ndarray, rows: int, people: Callable[[], bytes]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns where the rows of a lot are in the source, unit after unit, then padding.

        Args:
            units: As a scheme draws them.
            rows: Number of rows of the lot, at least those of its units.
            people: Returns the secret for the choice among a person's examples.

        Returns:
            The index of each row, int64, and its share of a weight, float32: 0 for absent rows.
        """
        indices = self.neighbours(units)
        indices = np.where(indices < self.available, indices, -1)
        scale = np.ones(len(indices), np.float32)
        if self.people is not None:
            indices, scale = self._of_people(indices, people())
        if self.augmentations > 1:
            indices, scale = (np.repeat(each, self.augmentations) for each in (indices, scale))
        present = np.flatnonzero(indices >= 0)
        taken = np.full(rows, indices[present[0]] if len(present) else 0)
        share = np.zeros(rows, np.float32)
        taken[present], share[present] = indices[present], scale[present]
        return taken, share

    def rows(
        self,
        taken: np.ndarray,
        share: np.ndarray,
        views: Callable[[], bytes],
        step: int,
        spec: tuple | None = None,
    ) -> tuple:
        """Returns the rows (x, y, sample_weight) at some places.

        Args:
            taken, share: As `places` returns them: of one lot if there are functions, else of any
                number of lots.
            views: Returns the secret from which the seeds of functions are derived.
            step: Number of the lot.
            spec: The `tf.TensorSpec`s that all lots have; None does not compare them.
        """
        if self.functions:
            present = np.flatnonzero(share)
            found = np.zeros(len(taken), np.int64)
            found[present] = np.arange(len(present))
            drawn = self._mapped(taken[present], present % self.augmentations, views(), step)
            x, y, weight = at_places(drawn, found)
        else:
            x, y, weight = self.source.rows(taken)
        if spec is not None:
            x, y = self._conformed(x, y, spec[:2], taken)
        if self.weights_of is not None:
            if weight is not None:
                raise ValueError("class_weight and sample_weight cannot be combined. Remove one.")
            weight = self.weights_of(y)
        return x, y, tf.nest.map_structure(lambda leaf: _weighted(leaf, share), weight)

    def _conformed(self, x, y, spec, taken):
        """Inputs and targets in the form of all lots; an error names the row that has another one."""
        try:
            return conformed((x, y), spec, int(taken[0]))
        except ValueError:
            for index in np.unique(taken):
                conformed(self.examples(np.array([index]))[:2], spec, int(index))
            raise

    def examples(self, indices: np.ndarray) -> tuple:
        """Examples (x, y, sample_weight) with all functions applied, in their first view."""
        if self.functions:
            return self._mapped(indices, np.zeros_like(indices), bytes(16), 0)
        return self.source.rows(indices)

    def _of_people(self, people, secret):
        """Returns the examples of people, -1 where a person has fewer than k, and their weights."""
        k = self.people.max_examples
        found, counts = np.full((len(people), k), -1), np.ones(len(people), np.int64)
        here = people >= 0
        found[here], counts[here] = self.people.examples(people[here], secret)
        # With these weights, the mean over k rows is the mean over existing rows.
        return found.ravel(), np.repeat((k / counts).astype(np.float32), k)

    def _mapped(self, indices, views, secret, step) -> tuple:
        """Returns the examples at indices with all functions applied; without indices one example."""
        if not len(indices):
            indices = views = np.zeros(1, np.int64)
        at, places = np.unique(indices, return_inverse=True)
        rows: Any = self.source.read(at)
        seeds, repeated = np.zeros((len(at), 2), np.int32), False
        for function, random in zip(self.functions, self._random(), strict=True):
            if random and not repeated:
                rows, at, repeated = at_places(rows, places), indices, True
                seeds = _seeds(siphash(secret, step, indices, views))
            rows = function(rows, seeds, at)
        if isinstance(rows, list):
            rows = stacked(rows, at)
        return rows if repeated else at_places(rows, places)

    def _random(self) -> list[bool]:
        """Whether the result of each function may differ between the views of an example.

        Functions without a seed may draw random numbers; they run for each view if none takes a seed.
        """
        seeded = [function.seeded for function in self.functions]
        return seeded if any(seeded) else [self.augmentations > 1] * len(seeded)


def _seeds(hashes):
    parts = hashes[:, None] >> np.array([0, 32], np.uint64)
    return (parts & np.uint64(0x7FFFFFFF)).astype(np.int32)


def _weighted(weights: np.ndarray | None, share: np.ndarray) -> np.ndarray:
    if weights is None:
        return share
    weights = as_weights(weights)
    return weights * share.reshape(-1, *[1] * (weights.ndim - 1))
