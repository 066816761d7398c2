"""Checks of a replay: were lots drawn by the scheme that is accounted?

The examples that lots are drawn from are part of the recording, so records that look alike, and
examples that are never drawn, are known. Everything here is NumPy and SciPy.
"""

import collections
import itertools
import math

import numpy as np
from scipy import stats

from tfdp.auditing.checks import Finding, two_sided


def check_lots(lots, places, run, examples, others: int = 0) -> list[Finding]:
    """Whether the lots of one fit are those of their sampling scheme.

    Args:
        lots: for each step a list of hashable examples.
        places: for each step its number in the run, from 0.
        run: what the steps were accounted as (`accounting.Run`).
        examples: all examples, hashable, in their order; None if they are not known.
        others: number of further examples that were left out of `examples` and of the lots.
    """
    found = []
    largest = run.sampling.largest_lot
    sizes = np.array([len(lot) for lot in lots])
    if largest is not None and sizes.max(initial=0) > largest:
        words = f"a lot has {sizes.max()}, more than {largest}"
        found.append(_never("lot size", words, sizes.argmax()))
    if examples is None:
        return found
    return (
        found or _membership(lots, run, examples, others) or _of_scheme(lots, places, run, examples)
    )


def _never(name, words, step=None):
    return Finding(name, 0.0, words, None if step is None else int(step))


def _membership(lots, run, examples, others):
    """Faults that no sound training has: examples that are none, or too often in a lot."""
    available, accounted = len(examples) + others, run.num_examples
    whole = -(-available // run.lot_size) * run.lot_size
    nominal = run.sampling.nominal
    if (
        not nominal
        and accounted != available
        and not (run.sampling.fixed_order and accounted == whole)
    ):
        words = f"{accounted} are accounted, and lots are drawn from {available}"
        return [_never("number of examples", words)]
    copies = collections.Counter(examples)
    again = run.sampling.name == "with_replacement"
    for step, lot in enumerate(lots):
        for example, times in collections.Counter(lot).items():
            if example not in copies:
                return [_never("examples", "a row is none of the examples", step)]
            if times > copies[example] and not again:
                return [_never("examples", f"one example is {times} times in a lot", step)]
    return []


def _of_scheme(lots, places, run, examples):
    sampling = run.sampling
    if sampling.whole_epochs:
        return _epochs(lots, places, run, examples)
    if not sampling.random_lots:
        return []
    if not sampling.coin_flips:
        wrong = [step for step, lot in enumerate(lots) if len(lot) != run.lot_size]
        if wrong:
            words = f"a lot has {len(lots[wrong[0]])} examples, not {run.lot_size}"
            return [_never("lot size", words, wrong[0])]
        if sampling.name == "with_replacement":
            trials = np.full(len(examples), len(lots) * run.lot_size)
            chance = 1.0 / len(examples)
        else:
            trials, chance = np.full(len(examples), len(lots)), run.lot_size / len(examples)
        return _draws(lots, examples, trials, chance) + _overlap(lots)
    return _coins(lots, places, run, examples)


# -- epochs ------------------------------------------------------------------------------------------


def _epochs(lots, places, run, examples):
    """Each example at most once in an epoch; in a fixed order, in the same lot of every epoch."""
    copies, length = collections.Counter(examples), run.steps_per_epoch
    seen, epoch, before = collections.Counter(), None, {}
    for step, (lot, place) in enumerate(zip(lots, places, strict=True)):
        last = place % length == length - 1 and run.sampling.fixed_order
        if len(lot) != run.lot_size and not (last and len(lot) < run.lot_size):
            return [_never("lot size", f"a lot has {len(lot)} examples, not {run.lot_size}", step)]
        if place // length != epoch:
            epoch, seen = place // length, collections.Counter()
        seen.update(lot)
        often = next((e for e in lot if seen[e] > copies[e]), None)
        if often is not None:
            return [_never("epochs", f"one example is {seen[often]} times in an epoch", step)]
        if run.sampling.fixed_order:
            now = collections.Counter(lot)
            if before.setdefault(place % length, now) != now:
                return [_never("order of lots", "the lot is not that of the epoch before", step)]
    return []


# -- coins -------------------------------------------------------------------------------------------


def _coins(lots, places, run, examples):
    """Each example of the group whose turn it is joins by a coin of its own."""
    n, q, groups = len(examples), run.sampling_probability, run.groups
    turns = np.asarray(places) % groups
    if groups > 1:
        turns = _turns(lots, turns, groups, examples)
        if turns is None:
            return [_never("groups", "lots have examples of groups whose turn it is not")]
    group = np.arange(n) % groups
    trials = np.bincount(turns, minlength=groups)[group]
    members = np.bincount(group, minlength=groups)[turns]
    sizes = np.array([len(lot) for lot in lots])
    if q >= 1:
        wrong = np.flatnonzero(sizes != members)
        return [_never("lot size", "an example is not in its lot", wrong[0])] if len(wrong) else []
    found = _sizes(sizes, members, q) if run.sampling.max_lot_size is None else []
    found += _draws(lots, examples, trials, q)
    return found + (_overlap(lots) if groups == 1 else [])


def _turns(lots, turns, groups, examples):
    """The group of each lot, with the first group that fits all lots; None if none does."""
    groups_of = collections.defaultdict(set)
    for index, example in enumerate(examples):
        groups_of[example].add(index % groups)
    for first in range(groups):
        shifted = (turns + first) % groups
        if all(
            turn in groups_of[example]
            for lot, turn in zip(lots, shifted, strict=True)
            for example in lot
        ):
            return shifted
    return None


def _sizes(sizes, members, q):
    """Whether lots are as large, and as different in size, as coins make them."""
    expected = members * q
    p = float(stats.binomtest(int(sizes.sum()), int(members.sum()), q).pvalue)
    found = [Finding("mean lot size", p, f"{sizes.mean():.1f} of {expected.mean():.1f} expected")]
    # Lots that were cut pile up at one size, which no larger lot exceeds. The size is chosen by the
    # data, so the probability is taken times the number of sizes.
    most, n = int(sizes.max()), int(members.max())
    piled = int(np.sum(sizes == most))
    p = float(stats.binom.sf(piled - 1, len(sizes), stats.binom.pmf(most, n, q))) * n
    words = f"{piled} of {len(sizes)} lots have {most} examples, and none has more"
    found.append(Finding("largest lots", min(1.0, p), words))
    p, ratio = _dispersion(sizes, members, q)
    return [*found, Finding("spread of lot sizes", p, f"{ratio:.2f} of the variance of coin flips")]


def _draws(lots, examples, trials, chance):
    """Whether examples are drawn as often, and as differently often, as is accounted."""
    drawn, allowed = collections.Counter(), collections.Counter()
    for lot in lots:
        drawn.update(lot)
    for example, number in zip(examples, trials, strict=True):
        allowed[example] += int(number)
    kinds = [example for example, number in allowed.items() if number]
    counts = np.array([drawn[example] for example in kinds])
    numbers = np.array([allowed[example] for example in kinds])
    tails = stats.binom.sf(counts - 1, numbers, chance)
    worst = int(np.argmin(tails))
    words = (
        f"one example is drawn {counts[worst]} times, {numbers[worst] * chance:.1f} are expected"
    )
    found = [Finding("most drawn example", min(1.0, float(tails[worst]) * len(kinds)), words)]
    p, ratio = _dispersion(counts, numbers, chance)
    words = f"counts of examples have {ratio:.2f} of the variance that is accounted"
    return [*found, Finding("spread of draws", p, words)]


def _dispersion(counts, trials, q) -> tuple[float, float]:
    """(two-sided p-value, ratio) of the squared errors of binomial counts.

    Their sum has a known mean and variance; the law is a gamma law with both.
    """
    variance = trials * q * (1.0 - q)
    total = float(np.sum((counts - trials * q) ** 2 / variance))
    mean, spread = float(len(counts)), float(np.sum(1.0 / variance + 2.0 - 6.0 / trials))
    if spread <= 0:
        return 1.0, total / mean
    return two_sided(stats.gamma(mean**2 / spread, scale=spread / mean), total), total / mean


def _overlap(lots):
    """Whether neighbouring lots share as many examples as lots that are drawn independently.

    Given in how many of T lots an example is, all places are equally likely, so the number of
    neighbouring lots that share it has a known mean and variance; records that look alike count once.
    """
    sets = [frozenset(lot) for lot in lots]
    if len(sets) < 2:
        return []
    counts = collections.Counter()
    for lot in sets:
        counts.update(lot)
    shared = sum(len(one & other) for one, other in itertools.pairwise(sets))
    t, c = len(sets), np.array([*counts.values()], float)
    expected = float(np.sum(c * (c - 1) / t))
    variance = float(np.sum(c * (c - 1) * (t - c) * (t - c + 1) / (t**2 * max(1, t - 1))))
    if variance <= 0:
        return []
    words = f"{shared} examples in common, {expected:.0f} expected"
    if expected < 1000 and variance > 0.5 * expected:
        # A sum of many rare events; its variance is at most that of Poisson's law.
        p = two_sided(stats.poisson(expected), shared, step=1)
    else:
        p = 2.0 * float(stats.norm.sf(abs(shared - expected) / math.sqrt(variance)))
    return [Finding("overlap of neighbouring lots", p, words)]
