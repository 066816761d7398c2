"""The sentences about a run in a privacy statement: what it executed and released, and advice."""

import collections
from collections.abc import Iterable

from tfdp.accounting import noise_tables
from tfdp.accounting.mechanisms import SIDPSGD, DiscreteSGD, Matrix, NoisyMechanism, NoMechanism
from tfdp.accounting.run import Run
from tfdp.accounting.sampling import Unknown
from tfdp.accounting.sentences import Table, all_of, always, mechanism_is, sampling_is

# The released values of a run: the first row that applies.
RELEASED: Table = {
    "no privacy": (mechanism_is(NoMechanism), "weights trained without privacy"),
    "means": (
        lambda run: isinstance(run.mechanism, SIDPSGD) and run.mechanism.release != "theta",
        "one noisy draw of the weights per step, and the un-noised means at the end",
    ),
    "noised weights": (
        mechanism_is(SIDPSGD),
        "one noisy draw of the weights per step; the means are never released",
    ),
    "noisy gradients": (
        always,
        "all noisy gradients, hence every intermediate and final weight",
    ),
}

# A better mechanism at the same proven epsilon.
ADVICE: Table = {
    "means": (
        mechanism_is(SIDPSGD),
        "DP-SGD at the same proven epsilon leaves at most as much noise in the final weights, about "
        "half as much after ten epochs (with a fixed order of lots and a constant learning rate).",
    ),
}


def _momentum(run: Run) -> bool:
    linear = isinstance(run.mechanism, SIDPSGD)
    return linear and bool(run.mechanism.schedule("momentum", run.steps).any())


# Parts of the sentence about a run that was executed, or planned.
EXECUTED: Table = {
    "name": (always, "{run.mechanism.name}, "),
    "one step": (lambda run: run.taken is None and run.steps == 1, "1 step"),
    "steps": (lambda run: run.taken is None and run.steps != 1, "{run.steps} steps"),
    "planned steps": (
        lambda run: run.taken is not None,
        "{run.taken} of {run.steps} planned steps",
    ),
    "sampling": (always, " with {run.sampling.words}, "),
    "unknown lots": (
        sampling_is(Unknown),
        "of at most {run.sampling.lot_size} examples each",
    ),
    "examples in every lot": (
        lambda run: isinstance(run.sampling, Unknown) and not run.sampling.whole_epochs,
        ", every one of which may be in every batch",
    ),
    "nominal lots": (
        lambda run: run.sampling.random_sizes,
        "nominally {run.sampling.lot_size} out of {run.sampling.num_examples} "
        "{run.contribution.units}",
    ),
    "lots": (
        lambda run: not (run.sampling.random_sizes or isinstance(run.sampling, Unknown)),
        "lots of {run.sampling.lot_size} out of {run.sampling.num_examples} {run.contribution.units}",
    ),
    "nominal examples": (lambda run: run.sampling.nominal, " (a nominal number)"),
    "no privacy": (mechanism_is(NoMechanism), ", without privacy"),
    "noise": (mechanism_is(NoisyMechanism), ", noise multiplier {noise}"),
    "noise of a family": (mechanism_is(DiscreteSGD), " ({run.mechanism.encoding.family})"),
    "strategy": (mechanism_is(Matrix), " correlated by {run.mechanism.strategy.name}"),
    "bands": (
        lambda run: isinstance(run.mechanism, Matrix) and run.mechanism.strategy.bands is not None,
        " of {run.mechanism.strategy.bands} bands",
    ),
    "update rule": (mechanism_is(SIDPSGD), ", update rule {run.mechanism.optimizer}"),
    "momentum": (
        lambda run: _momentum(run) and not run.mechanism.nesterov,
        " with momentum {momentum}",
    ),
    "Nesterov momentum": (
        lambda run: _momentum(run) and run.mechanism.nesterov,
        " with Nesterov momentum {momentum}",
    ),
    "learning rates": (
        lambda run: isinstance(getattr(run.mechanism, "learning_rates", None), tuple),
        ", learning rates {learning_rates}",
    ),
    "adaptive clipping": (
        lambda run: run.contribution.adaptive_clipping,
        " (adaptive clipping included)",
    ),
    "groups of weights": (
        lambda run: run.contribution.clip_groups > 1,
        ", clipping {run.contribution.clip_groups} groups of weights, each to the clip norm",
    ),
    "microbatches": (
        lambda run: run.contribution.microbatch_size > 1,
        ", clipping the mean gradient of {run.contribution.microbatch_size} examples at a time, so "
        "that one example can change it by twice the clip norm",
    ),
    "people": (
        lambda run: run.contribution.examples_per_person is not None,
        ", averaging at most {run.contribution.examples_per_person} examples of each person before "
        "clipping",
    ),
    "views": (
        lambda run: run.contribution.augmentations > 1,
        ", with {run.contribution.augmentations} views of each example, averaged before clipping",
    ),
    "lot statistics": (
        lambda run: run.contribution.batch_statistics,
        ", normalized by statistics of the lot, so that one example changes the gradients of all "
        "others",
    ),
    "end": (always, "."),
}


def executed(runs: Iterable[Run]) -> tuple[str, ...]:
    """Returns the sentences about executed runs; equal ones appear once, with their number."""
    counts = collections.Counter(map(_executed, runs))
    return tuple(f"{n} times: {each}" if n > 1 else each for each, n in counts.items())


def _executed(run: Run) -> str:
    if isinstance(run.mechanism, NoMechanism) and run.sampling.num_examples == 1:
        # A run that stands for unaccounted training has only a reason.
        return run.mechanism.reason
    tables = {
        name: noise_tables.words(value, run.steps)
        for name in ("noise_multiplier", "momentum", "learning_rates")
        if (value := getattr(run.mechanism, name, None)) is not None
    }
    words = all_of(EXECUTED, run, run=run, noise=tables.pop("noise_multiplier", ""), **tables)
    if run.taken is not None:
        words += (
            f" All {run.steps} steps are counted, because results may have decided when to stop, or "
            "which weights to keep.",
        )
    return "".join(words)
