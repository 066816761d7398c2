"""Were lots drawn by the scheme that is accounted?"""

import collections
import dataclasses

import numpy as np
from scipy import stats


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        name: of the check.
        p_value: probability that a sound training looks at least as bad; 0 for what never happens in
            one, 1 if there is nothing to see.
        detail: a sentence.
        step: the step that it is about, or None for all of them.
    """

    name: str
    p_value: float
    detail: str = ""
    step: int | None = None


def check_lots(lots, run) -> list[Finding]:
    """Findings about the lots of one run.

    Args:
        lots: for each step a list of numbers of examples, in [0, run.sampling.num_examples).
        run: what the steps were accounted as (`accounting.Run`).
    """
    sampling = run.sampling
    for step, lot in enumerate(lots):
        if not {*lot} <= {*range(run.sampling.num_examples)}:
            return [Finding("lots", 0.0, "a row is none of the examples", step)]
        if len({*lot}) < len(lot) and sampling.name != "with_replacement":
            return [Finding("lots", 0.0, "an example is in it twice", step)]
        if sampling.largest_lot is not None and len(lot) != run.sampling.lot_size:
            return [Finding("lots", 0.0, f"it has {len(lot)} examples", step)]
    if sampling.whole_epochs:
        return _epochs(lots, run)
    return _coins(lots, run) if sampling.coin_flips else _draws(lots, run)


def _epochs(lots, run):
    """Each example at most once in an epoch; in a fixed order, in the same lot of every epoch."""
    length = run.sampling.steps_per_epoch
    for first in range(0, len(lots), length):
        epoch = lots[first : first + length]
        if max(collections.Counter(np.concatenate(epoch).tolist()).values()) > 1:
            return [Finding("lots", 0.0, "an example is twice in an epoch", first)]
        if run.sampling.fixed_order and any(
            {*now} != {*before} for now, before in zip(epoch, lots, strict=False)
        ):
            return [Finding("lots", 0.0, "they are not those of the first epoch", first)]
    return [Finding("lots", 1.0)]


def _draws(lots, run):
    """Lots of fixed size: each example is drawn as often as the others."""
    trials, chance = len(lots), run.sampling.lot_size / run.sampling.num_examples
    if run.sampling.name == "with_replacement":
        trials, chance = len(lots) * run.sampling.lot_size, 1.0 / run.sampling.num_examples
    return _counts(lots, np.full(run.sampling.num_examples, trials), chance)


def _coins(lots, run):
    """Each example of the group whose turn it is joins by a coin of its own."""
    q, groups = run.sampling.probability, run.sampling.groups
    group = np.arange(run.sampling.num_examples) % groups
    turns = np.arange(len(lots)) % groups
    for step, (lot, turn) in enumerate(zip(lots, turns, strict=True)):
        if np.any(group[lot] != turn):
            return [Finding("lots", 0.0, "an example is in the turn of another group", step)]
    members = np.bincount(group)[turns]
    sizes = np.array([len(lot) for lot in lots])
    total = float(stats.binomtest(int(sizes.sum()), int(members.sum()), q).pvalue)
    # Lots that were cut pile up at one size; it is chosen by the data, hence the factor.
    most = int(sizes.max())
    chance = stats.binom.pmf(most, int(members.max()), q)
    piled = float(stats.binom.sf(np.sum(sizes == most) - 1, len(sizes), chance)) * members.max()
    return [
        Finding("mean lot size", total, f"{sizes.mean():.1f}, {q * members.mean():.1f} expected"),
        Finding("largest lots", min(1.0, piled), f"many have {most} examples, and none has more"),
        Finding("spread of lot sizes", _dispersion(sizes, members, q)),
        *_counts(lots, np.bincount(turns, minlength=groups)[group], q),
    ]


def _counts(lots, trials, chance):
    """Whether examples are drawn as often, and as differently often, as is accounted."""
    counts = np.bincount(np.concatenate(lots).astype(int), minlength=len(trials))
    tails = stats.binom.sf(counts - 1, trials, chance)
    most = float(min(1.0, tails.min() * len(counts)))
    return [
        Finding("most drawn example", most, f"number {tails.argmin()}"),
        Finding("spread of draws", _dispersion(counts, trials, chance)),
    ]


def _dispersion(counts, trials, q) -> float:
    """Two-sided p-value of the squared errors of binomial counts, by a gamma law with both moments."""
    variance = trials * q * (1.0 - q)
    total = float(np.sum((counts - trials * q) ** 2 / variance))
    mean, spread = float(len(counts)), float(np.sum(1.0 / variance + 2.0 - 6.0 / trials))
    return two_sided(stats.gamma(mean**2 / spread, scale=spread / mean), total)


def two_sided(law, value) -> float:
    """Two-sided p-value of a number under a continuous SciPy law."""
    return min(1.0, 2.0 * min(float(law.cdf(value)), float(law.sf(value))))
