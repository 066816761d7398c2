"""Claimed and proven guarantees of one run, or of several runs on the same data."""

import math
from collections.abc import Sequence

from tfdp.accounting import claims
from tfdp.accounting.analysis import Analysis
from tfdp.accounting.assumptions import OF_SEVERAL_RUNS
from tfdp.accounting.guarantee import Guarantee, check_adjacency, check_delta, check_kind
from tfdp.accounting.mechanisms import entry_of
from tfdp.accounting.numerics import group_privacy, privacy_loss
from tfdp.accounting.proofs import analyse
from tfdp.accounting.run import Run, check_runs
from tfdp.accounting.sentences import all_of, first_of
from tfdp.accounting.wording import RELEASED

_NO_NOISE = "No noise, or almost none, was added."
# A single change gets a much smaller delta than all of them, so its losses need finer tails.
_TAILS_OF_ONE_CHANGE = 1e-2


def proven(runs: Run | Sequence[Run], delta: float, adjacency: str = "zero_out") -> Guarantee:
    """Computes the proven guarantee of a training, or of several trainings on the same data together.

    It follows from a theorem about the sampling, computation and releases of each run; `claimed` is
    the paper's formula.

    Runs compose adaptively, in any order: a later run may start from weights that an earlier one
    released. SI-DPSGD that continues from earlier *means* is not a new run, but one run with more
    steps. Without runs, epsilon is 0. Neighbours may differ by several changes (users, replaced
    records). Then the theorems about them are compared with group privacy, and the smaller epsilon
    counts.

    Args:
        runs: One `Run`, or a sequence of them: what was executed or is planned.
        delta: Probability in (0, 1), well below 1/N.
        adjacency: "zero_out", "replace_one", or "add_or_remove_one" (for Poisson sampling with a
            nominal number of examples only).

    Returns:
        A `Guarantee`; epsilon is infinite, with a reason, if nothing finite can be proven.

    Raises:
        ValueError: If an argument is invalid, or the adjacency is not defined for the sampling.

    Example:
        >>> from tfdp.accounting import describe, proven
        >>> run = describe("dpsgd", "poisson", num_examples=60000, lot_size=256,
        ...                steps=3516, noise_multiplier=1.1)
        >>> print(f"{proven(run, delta=1e-5).epsilon:.2f} {proven([run, run], delta=1e-5).epsilon:.2f}")
        1.13 1.64
    """
    runs = _counted(check_runs(runs))
    found = directly_proven(runs, delta, adjacency)
    for way in (0, -1):  # the fewest changes, and the simplest
        found = _by_group_privacy(
            runs, [r.contribution.chains(adjacency)[way] for r in runs], found
        )
    return found


def _by_group_privacy(
    runs: Sequence[Run], chains: Sequence[tuple[str, int]], found: Guarantee
) -> Guarantee:
    """Returns the guarantee by group privacy from one change, or `found` if that is not larger."""
    changes = max((number for _, number in chains), default=1)
    if changes == 1:
        return found
    tails = _TAILS_OF_ONE_CHANGE * found.delta
    analyses = [
        analyse(run, tails, kind, True) for run, (kind, _) in zip(runs, chains, strict=True)
    ]
    losses = _losses(analyses)
    if any(a.reason for a in analyses):
        return found
    spent = group_privacy.epsilon_of(losses, found.delta, changes, below=found.epsilon)
    if spent is None:
        return found
    spent.details["change"] = " or ".join(_unique(kind for kind, _ in chains))
    fields = {"delta": found.delta, "adjacency": found.adjacency, "changes": changes}
    return _guarantee(runs, analyses, spent, **fields)


def directly_proven(runs: Run | Sequence[Run], delta: float, adjacency: str) -> Guarantee:
    """Computes `proven` by theorems about these neighbours only, without group privacy."""
    check_delta(delta)
    runs = _counted(check_runs(runs))
    check_adjacency(adjacency)
    analyses = [analyse(run, delta, adjacency) for run in runs]
    spent = privacy_loss.epsilon_of(_losses(analyses), delta)
    return _guarantee(runs, analyses, spent, delta=delta, adjacency=adjacency)


def _counted(runs: Sequence[Run]) -> list[Run]:
    return in_equal_terms([[run for run in runs if run.steps or len(runs) == 1]])[0]


def in_equal_terms(trials: Sequence[Sequence[Run]]) -> list[list[Run]]:
    """Returns the runs with the same `max_examples_per_user`, the largest among them.

    A user may have that many examples in each run, so each run is analysed for that number.
    """
    users = max((r.contribution.max_examples_per_user for t in trials for r in t), default=1)
    return [[run.for_users(users) for run in runs] for runs in trials]


def _losses(analyses: Sequence[Analysis]) -> tuple[privacy_loss.Loss, ...]:
    return tuple(loss for analysis in analyses for loss in analysis.losses)


def _guarantee(
    runs: Sequence[Run], analyses: Sequence[Analysis], spent: privacy_loss.Spent, **fields
) -> Guarantee:
    """The proven guarantee of runs whose analyses compose to `spent`."""
    fields |= {"kind": "proven", **_facts(runs)}
    reasons = _unique(a.reason for a in analyses if a.reason)
    if len({run.contribution.units for run in runs}) > 1 and fields["max_examples_per_user"] == 1:
        reasons = (*reasons, _DIFFERENT_UNITS)
    if reasons:
        return Guarantee(epsilon=math.inf, reason=" ".join(reasons), **fields)
    assumptions = _unique(sentence for a in analyses for sentence in a.assumptions)
    details = (analyses[0].details if len(analyses) == 1 else {}) | spent.details
    reason = None
    if math.isinf(spent.epsilon):
        reason = (
            "The noise is too small for a finite bound, or the probability that has to be charged to "
            "delta exceeds it. Use more noise or a larger delta."
        )
    return Guarantee(
        epsilon=spent.epsilon,
        mu=spent.mu,
        assumptions=(*assumptions, *all_of(OF_SEVERAL_RUNS, runs)),
        details=details,
        reason=reason,
        losses=_losses(analyses),
        **fields,
    )


_DIFFERENT_UNITS = (
    "Some steps drew people and others single examples, so no single guarantee covers both. Pass "
    "max_examples_per_user, the largest number of a person's examples, for a guarantee for people."
)


def claimed(runs: Run | Sequence[Run], delta: float, adjacency: str = "zero_out") -> Guarantee:
    """Computes the guarantee of one run, or of several together, by the formulas of the papers.

    Use it to compare with published numbers. It is no proof about the run: see `proven`.

    The papers' formulas are for one record added or removed, whatever the `adjacency`. For
    replace_one, the guarantee has the adjacency add_or_remove_one, and its assumptions say so.

    Claims of several runs are combined. Rényi divergences add up. Runs with a formula for epsilon
    count as one run if only their steps differ. Several such claims, or such claims and divergences,
    share delta evenly.

    Args:
        runs: One `Run`, or a sequence of them: what was executed or is planned.
        delta: Probability in (0, 1), well below 1/N.
        adjacency: "zero_out", "replace_one" or "add_or_remove_one".

    Returns:
        A `Guarantee`; epsilon is infinite, with a reason, if the formulas give nothing finite.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        >>> from tfdp.accounting import claimed, describe
        >>> run = describe("dpsgd", "poisson", num_examples=60000, lot_size=256,
        ...                steps=3516, noise_multiplier=1.1)
        >>> print(f"{claimed(run, delta=1e-5).epsilon:.3f}")
        1.594
    """
    check_delta(delta)
    runs = check_runs(runs)
    check_adjacency(adjacency)
    formulas = [(run, entry_of(claims.CLAIMS, run.mechanism)) for run in runs]
    renyi = [formula.divergences(run) for run, formula in formulas if formula.divergences]
    others = _merged((run, formula.epsilon) for run, formula in formulas if formula.epsilon)
    share = delta / (len(others) + bool(renyi) or 1)
    parts = [claim(run, share) for run, claim in others]
    if renyi or not others:
        parts.append(claims.of_divergences(renyi, share))
    epsilon = sum(part.epsilon for part in parts)
    known = [part.reason for part in parts] + [getattr(r.mechanism, "reason", None) for r in runs]
    reasons = _unique(reason for reason in known if reason) or (_NO_NOISE,)
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        kind="claimed",
        adjacency="add_or_remove_one" if adjacency == "replace_one" else adjacency,
        assumptions=(
            *_unique(sentence for _, formula in formulas for sentence in formula.assumptions),
            *claims.differences(runs, adjacency),
        ),
        details=parts[0].details
        if len(parts) == 1
        else {"conversion": "sum of parts, delta split"},
        reason=" ".join(reasons) if math.isinf(epsilon) else None,
        **_facts(runs) | {"max_examples_per_user": 1},
    )


def guarantee_of_all(
    kind: str, runs: Sequence[Run], delta: float, adjacency: str = "zero_out"
) -> Guarantee:
    """Returns `claimed(...)` or `proven(...)`, depending on `kind`."""
    return {"claimed": claimed, "proven": proven}[check_kind(kind)](runs, delta, adjacency)


def _merged(pairs):
    """Merges (run, formula) pairs that differ only in the number of steps, which add."""
    merged: dict = {}
    for run, formula in pairs:
        alike = run.with_steps(0), formula
        merged[alike] = merged.get(alike, 0) + run.steps
    return [(run.with_steps(steps), formula) for (run, formula), steps in merged.items()]


def _facts(runs: Sequence[Run]) -> dict:
    users = [run.contribution.max_examples_per_user for run in runs]
    return {
        "max_examples_per_user": max(users, default=1),
        "unit": "person" if {run.contribution.unit for run in runs} == {"person"} else "record",
        "sampling": ", ".join(_unique(run.sampling.name for run in runs)) or "nothing",
        "mechanism": ", ".join(_unique(run.mechanism.name for run in runs)) or "nothing",
        "released": "; ".join(_unique(first_of(RELEASED, run) for run in runs)) or "nothing",
    }


def _unique(items) -> tuple:
    return tuple(dict.fromkeys(items))
