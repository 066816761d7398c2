"""Lower bounds on epsilon from the results of an attack, by inverting statistical tests.

Every bound is the largest epsilon that its test refutes: if the true epsilon is at most that, results
at least as good have a probability of at most 1 - confidence. This module needs only NumPy and SciPy.

Sources: Steinke, Nasr, Jagielski 2023 (one run); Jagielski, Ullman, Oprea 2020 and Nasr et al. 2021
(many runs).
"""

import dataclasses
import math

import numpy as np
from scipy import optimize, stats

from tfdp._validate import fraction, whole
from tfdp.accounting.guarantee import check_delta

# No audit with fewer than e^40 canaries can show a larger epsilon.
_MOST = 40.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowerBound:
    """A lower bound on epsilon from an attack, with the counts behind it.

    `one_run` and `many_runs` return it.

    Attributes:
        epsilon: The bound; 0 if the attack shows nothing.
        delta: The delta of this epsilon, in (0, 1).
        confidence: Least probability that a true epsilon is not refuted, in (0, 1).
        ceiling: The bound that the same number of guesses or runs would show without any error.
        counts: Numbers of guesses or of runs, by name.

    Example:
        >>> from tfdp.auditing import one_run
        >>> bound = one_run(correct=48, guesses=50, canaries=100, delta=1e-5)
        >>> print(f"epsilon >= {bound.epsilon:.2f}; no error at all would show {bound.ceiling:.2f}")
        epsilon >= ...; no error at all would show 2.78...
    """

    epsilon: float
    delta: float
    confidence: float
    ceiling: float
    counts: dict


def one_run(
    correct: int, guesses: int, canaries: int, *, delta: float, confidence: float = 0.95
) -> LowerBound:
    """Computes a lower bound on epsilon from guesses about many canaries in one training.

    The guesses may also come from several such trainings taken together; `many_runs` is for many
    trainings with one canary. Each canary must have been included with probability 1/2, independently
    of all others, and the number of guesses must have been fixed beforehand. Nothing is assumed about
    the training.

    Args:
        correct: Number of guesses ("was included", "was not") that were right.
        guesses: Number of guesses.
        canaries: Number of canaries, at least `guesses`. There may be no guess about some of them.
        delta: The delta of the epsilon, in (0, 1).
        confidence: Confidence of the bound, in (0, 1).

    Returns:
        A `LowerBound`.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> from tfdp.auditing import one_run
        >>> print(f"{one_run(100, 100, 100, delta=1e-5).epsilon:.4f}")
        3.4902
    """
    canaries = whole("canaries", canaries, 1)
    guesses = whole("guesses", guesses, 1, canaries)
    correct = whole("correct", correct, 0, guesses)
    delta, confidence = check_delta(delta), fraction("confidence", confidence)

    def epsilon_of(right):
        return _largest_refuted(
            lambda epsilon: _p_value(right, guesses, canaries, epsilon, delta) <= 1.0 - confidence
        )

    return LowerBound(
        epsilon=epsilon_of(correct),
        delta=delta,
        confidence=confidence,
        ceiling=epsilon_of(guesses),
        counts={"correct": correct, "guesses": guesses, "canaries": canaries},
    )


def _p_value(correct, guesses, canaries, epsilon, delta) -> float:
    """Upper bound on the probability of at least `correct` right guesses under (epsilon, delta)-DP.

    Under pure DP, each guess is right with probability at most q = e^epsilon / (1 + e^epsilon), for all
    outcomes of the others, so their number is at most binomial; the second term bounds the effect of
    delta (Steinke et al. 2023).
    """
    q = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(stats.binom.sf(correct - 1, guesses, q))
    steps = np.arange(1, correct + 1)
    between = stats.binom.sf(correct - 1 - steps, guesses, q) - tail
    return min(1.0, tail + 2.0 * canaries * delta * float(np.max(between / steps, initial=0.0)))


def usual_guesses(canaries: int) -> int:
    """Returns the default number of guesses: a half to a tenth of the canaries.

    Abstaining from middle scores makes the other guesses more accurate. The fractions were chosen by
    simulating SI-DPSGD's last weights; they are fixed so that nobody chooses them after seeing scores.
    """
    share = 2 if canaries <= 50 else 4 if canaries <= 200 else 10
    return max(1, canaries // share)


def many_runs(
    true_positives: int,
    included: int,
    false_positives: int,
    absent: int,
    *,
    delta: float,
    confidence: float = 0.95,
) -> LowerBound:
    """Computes a lower bound on epsilon from many trainings with one record and many without it.

    Use it if trainings are cheap or accumulate, as in a nightly test; `one_run` needs one training
    only. Both rates are bounded by Clopper-Pearson intervals (1934), each with half of the error. The
    trainings with the record have to be independent and identically distributed, and so do the others.
    The threshold of the attack has to be fixed beforehand.

    Args:
        true_positives: Number of trainings with the record that the attack recognized as such.
        included: Number of trainings with the record.
        false_positives: Number of trainings without the record that the attack took for trainings
            with it.
        absent: Number of trainings without the record.
        delta: The delta of the epsilon, in (0, 1).
        confidence: Confidence of the bound, in (0, 1).

    Returns:
        A `LowerBound`.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> from tfdp.auditing import many_runs
        >>> print(f"{many_runs(50, 50, 0, 50, delta=1e-5).epsilon:.2f}")
        2.57
    """
    included, absent = whole("included", included, 1), whole("absent", absent, 1)
    tp = whole("true_positives", true_positives, 0, included)
    fp = whole("false_positives", false_positives, 0, absent)
    delta, confidence = check_delta(delta), fraction("confidence", confidence)

    def epsilon_of(tp, fp):
        error = (1.0 - confidence) / 2.0
        tpr = stats.beta.ppf(error, tp, included - tp + 1) if tp else 0.0
        fpr = stats.beta.isf(error, fp + 1, absent - fp) if fp < absent else 1.0
        ratio = max((tpr - delta) / fpr, (1.0 - fpr - delta) / (1.0 - tpr))
        return math.log(max(1.0, ratio))

    return LowerBound(
        epsilon=epsilon_of(tp, fp),
        delta=delta,
        confidence=confidence,
        ceiling=epsilon_of(included, 0),
        counts=dict(true_positives=tp, included=included, false_positives=fp, absent=absent),
    )


def _largest_refuted(refutes) -> float:
    """Returns the largest epsilon that a test refutes, rounded down; 0 if it refutes none."""
    if not refutes(0.0):
        return 0.0
    if refutes(_MOST):
        return _MOST
    found = optimize.bisect(lambda epsilon: 0.5 - refutes(epsilon), 0.0, _MOST, xtol=1e-8)
    return max(found - 1e-8, 0.0)
