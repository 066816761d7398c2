"""Scores: the output of an attack, and how well they separate included canaries from absent ones.

A score is a number for each canary, computed from the release alone. Larger scores mean "was included".
"""

import dataclasses

import numpy as np

from tfdp._validate import fraction

# Releases are averaged over at most this many stretches of the training before they are weighted. Each
# needs at least eight canaries, since the weights of few canaries would follow their noise.
_MOST_STRETCHES, _CANARIES_EACH = 48, 8


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """An attacker's scores of canaries, with the truth: which canaries were included.

    Attributes:
        values: The scores, float64 [canaries]. With a larger one, the canary was more likely
            included.
        included: The truth, bool [canaries].

    Example:
        >>> import numpy as np
        >>> from tfdp.auditing import Scores
        >>> scores = Scores(np.array([3.0, 1.0, 2.0, 0.0]), np.array([True, False, True, False]))
        >>> scores.auc, scores.guesses(2), scores.tpr_at(0.25)
        (1.0, 2, 1.0)
    """

    values: np.ndarray
    included: np.ndarray

    def __post_init__(self):
        values, included = np.asarray(self.values, float), np.asarray(self.included, bool)
        finite = bool(np.isfinite(values).all())
        if values.ndim != 1 or values.shape != included.shape or not finite:
            raise ValueError(
                "Expected a finite score and a boolean for each canary. Received shapes "
                f"{values.shape} and {included.shape}; all finite: {finite}."
            )
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "included", included)

    @classmethod
    def of(cls, parts) -> "Scores":
        """Returns the scores of several trainings taken together."""
        parts = list(parts)
        return cls(
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.included for part in parts]),
        )

    def guesses(self, number: int) -> int:
        """Returns how many of a number of guesses are right.

        Half of the guesses say "included", for the largest scores, and half say "absent", for the
        smallest. Ties are broken by the order of the canaries, which is independent of the coins.

        Args:
            number: Number of guesses.
        """
        order = np.argsort(self.values, kind="stable")
        low, high = order[: number // 2], order[len(order) - (number - number // 2) :]
        return int(np.sum(~self.included[low]) + np.sum(self.included[high]))

    def roc(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns false and true positive rates of all thresholds, float64, from (0, 0) to (1, 1)."""
        thresholds = np.unique(self.values)[::-1]
        ins = np.sort(self.values[self.included])
        outs = np.sort(self.values[~self.included])
        tpr = 1.0 - np.searchsorted(ins, thresholds, "left") / max(1, len(ins))
        fpr = 1.0 - np.searchsorted(outs, thresholds, "left") / max(1, len(outs))
        return np.concatenate([[0.0], fpr]), np.concatenate([[0.0], tpr])

    def tpr_at(self, fpr: float) -> float:
        """Returns the largest true positive rate of a threshold with false positive rate <= `fpr`."""
        fpr = fraction("fpr", fpr)
        rates, tpr = self.roc()
        return float(np.max(tpr[rates <= fpr]))

    @property
    def auc(self) -> float:
        """Area under the ROC curve: 0.5 for guessing, 1 if all included canaries score above others."""
        rates, tpr = self.roc()
        return float(np.sum(np.diff(rates) * (tpr[1:] + tpr[:-1]) / 2.0))


def matched_filter(canaries: np.ndarray, blanks: np.ndarray) -> np.ndarray:
    """Returns the scores of canaries from all released values of their weights: float64 [canaries].

    The values are averaged over stretches of the training, and weighted by S^-1 d. S is the covariance
    of the blank weights, which only noise moves; d is the mean of *all* canaries, included or not,
    minus the mean of the blanks. So the weighting depends only on the release, not on the coins. The
    unit of the scores is the standard deviation of the blanks. With too few canaries or blanks for such
    a weighting, the last release is the score.

    Args:
        canaries: float64 [releases, canaries], the released weights of the canaries.
        blanks: float64 [releases, blanks], the released weights that no example changes.
    """
    stretches = min(_MOST_STRETCHES, canaries.shape[1] // _CANARIES_EACH, len(canaries))
    if stretches < 2 or blanks.shape[1] < 4 * stretches:
        return _in_units_of(canaries[-1], blanks[-1])
    inside, outside = (_in_stretches(values, stretches) for values in (canaries, blanks))
    scale = np.std(outside, axis=1, keepdims=True)
    if not np.all(scale > 0):
        return _in_units_of(canaries[-1], blanks[-1])
    inside, outside = inside / scale, outside / scale
    effect = inside.mean(axis=1) - outside.mean(axis=1)
    # A small multiple of the identity limits the influence of directions with almost no noise.
    weights = np.linalg.solve(np.cov(outside, bias=True) + 1e-3 * np.eye(stretches), effect)
    return _in_units_of(weights @ inside, weights @ outside)


def _in_units_of(canaries, blanks):
    if len(blanks) < 2 or np.std(blanks) == 0:
        return canaries
    return (canaries - np.mean(blanks)) / np.std(blanks)


def _in_stretches(values, number):
    """Means over consecutive stretches of releases, and the last release separately."""
    parts = [*np.array_split(values[:-1], number - 1), values[-1:]]
    return np.stack([part.mean(axis=0) for part in parts])
