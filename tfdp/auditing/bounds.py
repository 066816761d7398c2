"""Lower bounds on epsilon from what an attack got right, each a statistical test turned round.

Every bound is the largest epsilon that its test refutes: if the true epsilon is at most that, results
as good as those seen have a probability of at most 1 - confidence. Everything here is NumPy and SciPy.

Sources: Jagielski, Ullman, Oprea 2020 and Nasr et al. 2021 (many runs, Clopper-Pearson); Fisher 1925
(combination of two independent tests); Steinke, Nasr, Jagielski 2023 (one run, approximate DP);
Mahloujifar, Melis, Chaudhuri 2024 (one run, any trade-off curve).
"""

import dataclasses
import math

import numpy as np
from scipy import stats

from tfdp._validate import fraction, one_of, refuse, whole
from tfdp.accounting.guarantee import check_delta
from tfdp.auditing.tradeoffs import HYPOTHESES, Tradeoff, largest_refuted, of_epsilon


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowerBound:
    """A lower bound on epsilon, and what it rests on.

    Attributes:
        epsilon: the bound; 0 if nothing was shown.
        delta: probability in (0, 1).
        confidence: probability, in (0, 1), with which a true statement is not contradicted.
        method: "one_run" or "many_runs", with "_gaussian" for that hypothesis.
        ceiling: the bound that an attack without any error would have given.
        conditions: sentences that have to be true for the bound to hold.
        counts: what the bound was computed from.

    Example:
        >>> from tfdp.auditing import one_run
        >>> bound = one_run(correct=48, guesses=50, canaries=100, delta=1e-5)
        >>> print(f"epsilon >= {bound.epsilon:.2f}; no error at all would show {bound.ceiling:.2f}")
        epsilon >= ...; no error at all would show 2.78...
    """

    epsilon: float
    delta: float
    confidence: float
    method: str
    ceiling: float
    conditions: tuple[str, ...]
    counts: dict

    def to_dict(self) -> dict:
        """A JSON-safe dictionary."""
        return dataclasses.asdict(self) | {"conditions": list(self.conditions)}


# -- one run with many canaries ----------------------------------------------------------------------


def one_run(
    correct: int,
    guesses: int,
    canaries: int,
    *,
    delta: float,
    confidence: float = 0.95,
    hypothesis: str = "approximate",
) -> LowerBound:
    """A lower bound from one run, or from several runs taken together, with many canaries in each.

    Args:
        correct: number of guesses ("was included", "was not") that were right.
        guesses: number of guesses; the number was fixed before the run.
        canaries: number of canaries, at least `guesses`; each was included with probability 1/2,
            independently of all others.
        delta: the delta of the epsilon, in (0, 1).
        confidence: in (0, 1).
        hypothesis: "approximate" tests (epsilon, delta)-DP (Steinke et al. 2023, with
            abstentions). "gaussian" tests the trade-off curve of the Gaussian mechanism with this
            epsilon at delta (Mahloujifar et al. 2024): a tighter bound, under a narrower hypothesis.

    Raises:
        ValueError: an argument is not in its range.

    Example:
        >>> from tfdp.auditing import one_run
        >>> print(f"{one_run(100, 100, 100, delta=1e-5).epsilon:.4f}")
        3.4902
    """
    canaries = whole("canaries", canaries, 1)
    guesses = _at_most("guesses", whole("guesses", guesses, 1), "canaries", canaries)
    correct = _at_most("correct", whole("correct", correct, 0), "guesses", guesses)
    delta, confidence = check_delta(delta), fraction("confidence", confidence)
    one_of("hypothesis", hypothesis, HYPOTHESES)

    def epsilon_of(right):
        def refutes(epsilon):
            if hypothesis == "approximate":
                p_value = one_run_p_value(right, guesses, canaries, epsilon, delta)
                return p_value <= 1.0 - confidence
            curve = of_epsilon("gaussian", epsilon, delta)
            return one_run_refutes(curve, right, guesses, canaries, 1.0 - confidence)

        return largest_refuted(refutes)

    gaussian = hypothesis == "gaussian"
    return LowerBound(
        epsilon=epsilon_of(correct),
        delta=delta,
        confidence=confidence,
        method="one_run_gaussian" if gaussian else "one_run",
        ceiling=epsilon_of(guesses),
        conditions=(
            "each canary was included with probability 1/2, independently of all others",
            "the number of guesses was fixed beforehand",
            *(_GAUSSIAN if gaussian else ()),
        ),
        counts={"correct": correct, "guesses": guesses, "canaries": canaries},
    )


_GAUSSIAN = (
    "the bound is for mechanisms with the trade-off curve of a Gaussian mechanism; others may have "
    "less epsilon and the same attack",
)


def one_run_p_value(
    correct: int, guesses: int, canaries: int, epsilon: float, delta: float
) -> float:
    """Probability of at least `correct` right guesses under (epsilon, delta)-DP, from above.

    Under pure DP each guess is right with probability at most q = e^epsilon / (1 + e^epsilon) whatever
    the others were, so the number is at most binomial; delta adds what the second term bounds (Steinke
    et al. 2023).

    Args:
        correct, guesses, canaries: as in `one_run`.
        epsilon: number of at least 0.
        delta: probability in [0, 1).
    """
    q = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(stats.binom.sf(correct - 1, guesses, q))
    if not delta:
        return tail
    steps = np.arange(1, correct + 1)
    between = stats.binom.sf(correct - 1 - steps, guesses, q) - tail
    return min(1.0, tail + 2.0 * canaries * delta * float(np.max(between / steps, initial=0.0)))


def one_run_refutes(
    curve: Tradeoff, correct: int, guesses: int, canaries: int, significance: float
) -> bool:
    """Whether `correct` right guesses have a probability below `significance` under a trade-off curve.

    Let W be the number of right guesses, p its law, n the number of guesses and m that of canaries. For
    a canary i and a number j, the event "i is guessed to be s, and at least j - 1 others are right" is
    an event of the output, and whether i was s is a coin of its own. So the curve
    bounds the probability that the guess is right by that that it is wrong. Averaged over canaries and
    guesses, with the curve concave (Jensen's inequality), for every j:

        sum_{w >= j} (w / m) p_w  <=  largest_tpr( sum_{w >= j-1} ((n - w) / m) p_w )

    If P(W >= c) were `significance` or more, then the sums would grow from j = c down to 0 at least as
    below (all mass of the tail at c makes them grow least), and end at n / m. Where they end beyond it,
    the curve is refuted.

    Args:
        curve: the hypothesis.
        correct, guesses, canaries: as in `one_run`.
        significance: 1 - confidence.
    """
    right = significance * correct / canaries
    wrong = significance * (guesses - correct) / canaries
    for j in range(correct, 0, -1):
        needed = max(wrong, float(curve.least_fpr(min(1.0, right))))
        if needed == wrong:
            # Then neither sum grows any more.
            break
        # A row of p_{j-1} adds (j - 1) / m to `right` for every (n - j + 1) / m in `wrong`.
        right += (needed - wrong) * (j - 1) / (guesses - j + 1)
        wrong = needed
        if right + wrong > guesses / canaries:
            return True
    return right + wrong > guesses / canaries


def usual_guesses(canaries: int) -> int:
    """Number of guesses that is made where the user fixes none: fewer where there are many canaries.

    Abstaining from the middle scores makes the rest surer. The fractions, a half to 50 canaries, a
    quarter to 200 and a tenth above, were chosen by simulation of SI-DPSGD's last weights; they are
    fixed so that nobody chooses them after having seen scores.
    """
    share = 2 if canaries <= 50 else 4 if canaries <= 200 else 10
    return max(1, canaries // share)


# -- many runs ---------------------------------------------------------------------------------------


def many_runs(
    true_positives: int,
    included: int,
    false_positives: int,
    absent: int,
    *,
    delta: float,
    confidence: float = 0.95,
    hypothesis: str = "approximate",
    region: str = "joint",
) -> LowerBound:
    """A lower bound from independent runs with and without one record.

    Args:
        true_positives: number of runs with the record in which the attack said so.
        included: number of runs with the record.
        false_positives: number of runs without the record in which the attack said it was there.
        absent: number of runs without the record.
        delta: the delta of the epsilon, in (0, 1).
        confidence: in (0, 1).
        hypothesis: as in `one_run`.
        region: "joint" combines the evidence of both rates (Fisher's method); "clopper_pearson" takes
            an interval of its own for each rate, with half of the error, as most papers do.

    Raises:
        ValueError: an argument is not in its range.

    Example:
        >>> from tfdp.auditing import many_runs
        >>> clopper = many_runs(50, 50, 0, 50, delta=1e-5, region="clopper_pearson")
        >>> print(f"{many_runs(50, 50, 0, 50, delta=1e-5).epsilon:.2f}, {clopper.epsilon:.2f}")
        3.0..., 2.57
    """
    included, absent = whole("included", included, 1), whole("absent", absent, 1)
    tp = whole("true_positives", true_positives, 0)
    fp = whole("false_positives", false_positives, 0)
    _at_most("true_positives", tp, "included", included)
    _at_most("false_positives", fp, "absent", absent)
    delta, confidence = check_delta(delta), fraction("confidence", confidence)
    one_of("hypothesis", hypothesis, HYPOTHESES)
    one_of("region", region, _REGIONS)

    def epsilon_of(tp, fp):
        refuted = _REGIONS[region](tp, included, fp, absent, 1.0 - confidence)
        return largest_refuted(lambda epsilon: refuted(of_epsilon(hypothesis, epsilon, delta)))

    gaussian = hypothesis == "gaussian"
    return LowerBound(
        epsilon=epsilon_of(tp, fp),
        delta=delta,
        confidence=confidence,
        method="many_runs_gaussian" if gaussian else "many_runs",
        ceiling=epsilon_of(included, 0),
        conditions=(
            "the scores are independent of each other, with one law where the record is included and "
            "one where it is absent",
            "the threshold was fixed beforehand",
            *(_GAUSSIAN if gaussian else ()),
        ),
        counts={
            "true_positives": tp,
            "included": included,
            "false_positives": fp,
            "absent": absent,
            "region": region,
        },
    )


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The two-sided interval of Clopper and Pearson (1934) for a probability.

    Args:
        successes: number of successes.
        trials: number of independent trials, at least 1.
        confidence: in (0, 1).

    Example:
        >>> from tfdp.auditing import clopper_pearson
        >>> low, high = clopper_pearson(0, 100)
        >>> print(f"{low:.3f} to {high:.3f}")
        0.000 to 0.036
    """
    trials = whole("trials", trials, 1)
    successes = _at_most("successes", whole("successes", successes, 0), "trials", trials)
    error = (1.0 - fraction("confidence", confidence)) / 2.0
    return _least(successes, trials, error), _most(successes, trials, error)


def _least(successes, trials, error):
    return float(stats.beta.ppf(error, successes, trials - successes + 1)) if successes else 0.0


def _most(successes, trials, error):
    rest = trials - successes
    return float(stats.beta.isf(error, successes + 1, rest)) if rest else 1.0


def _by_intervals(tp, included, fp, absent, significance):
    least_tpr = _least(tp, included, significance / 2.0)
    most_fpr = _most(fp, absent, significance / 2.0)
    return lambda curve: least_tpr > float(curve.largest_tpr(most_fpr))


def _jointly(tp, included, fp, absent, significance):
    """Fisher's combination of two exact tests, at the least favourable rates that a curve allows.

    For rates (fpr, tpr), u = P(at most fp false positives) and v = P(at least tp true positives) are
    independent and P(u v <= w) <= w (1 - log w). u falls with fpr, and v at tpr = largest_tpr(fpr)
    rises with it, so on a short interval of fpr the product is at most u at its left end times v at its
    right end.
    """
    # Rates at which one of the tests takes given values: dense where the product is largest.
    values = np.concatenate([np.geomspace(1e-14, 0.02, 160), np.linspace(0.025, 1.0, 160)])
    rates_fpr = stats.beta.isf(values, fp + 1, absent - fp) if fp < absent else np.ones(1)
    rates_tpr = stats.beta.ppf(values, tp, included - tp + 1) if tp else np.zeros(1)
    bound = _quantile_of_product(significance)

    def refuted(curve):
        fpr = np.concatenate([[0.0, 1.0], rates_fpr, curve.least_fpr(rates_tpr)])
        fpr = np.unique(np.clip(fpr, 0.0, 1.0))
        tpr = np.asarray(curve.largest_tpr(fpr))
        u = stats.binom.cdf(fp, absent, fpr)
        v = stats.binom.sf(tp - 1, included, tpr)
        return float(np.max(u[:-1] * v[1:], initial=u[-1] * v[-1])) <= bound

    return refuted


def _quantile_of_product(significance: float) -> float:
    """The w with w (1 - log w) = significance, rounded down."""
    low, high = 0.0, significance
    for _ in range(200):
        middle = (low + high) / 2.0
        value = middle * (1.0 - math.log(middle)) if middle > 0 else 0.0
        low, high = (middle, high) if value <= significance else (low, middle)
    return low


_REGIONS = {"joint": _jointly, "clopper_pearson": _by_intervals}


def _at_most(name, value, other, limit):
    if value > limit:
        refuse(name, f"at most {other} = {limit}", value, "A part cannot be larger than the whole.")
    return value
