"""The sentences of a privacy statement, for readers who are not experts."""

import collections
import math
from collections.abc import Sequence

from tfdp.accounting.assumptions import INSECURE_SEED
from tfdp.accounting.guarantee import (
    VACUOUS_ABOVE,
    Guarantee,
    delta_warning,
    format_epsilon,
    rounded_up,
)
from tfdp.accounting.run import Run

NOT_COVERED = (
    "Training loss, training accuracy and other figures or diagnostics computed on the private data.",
    "Ends of the training, and choices among its checkpoints, that were decided by training loss or "
    "accuracy.",
    "Hyperparameters, and the noise or length of later trainings, that were chosen by results on "
    "private data, unless the trials are counted here.",
    "Other models that were trained on these data and are not counted here, such as folds, trials of a "
    "tuner and earlier attempts: what they cost adds up (Ledger.merge, Statement.of_search).",
    "Attacks on the floating-point representation of the noise.",
    "Copies: a saved file that is trained on in two places knows, in each place, its own training "
    "only. For both together, merge their ledgers (Ledger.merge) and read the statement of that.",
    "Validation data: they are not protected at all, and metrics computed on them come without noise.",
    "What functions of your own do with private data: callbacks between two steps, regularizers, "
    "constraints, schedules and metrics.",
    "The ledger itself: it is trusted. Whoever can edit the file can edit what it says was spent.",
)
NOMINAL_LOT = (
    "The nominal lot size is the fixed number that every sum is divided by, however many examples "
    "were really drawn."
)
PAIRS = {
    "zero_out": "Zero-out means: two data sets are neighbours if they are equal, but {one} may count "
    "as nothing in one of them: take a place in a lot, and add zero to the sum.",
    "replace_one": "Replace-one means: two data sets are neighbours if they are equal, but {one} may "
    "be replaced by anything else.",
    "add_or_remove_one": "Add-or-remove-one means: two data sets are neighbours if they are equal, "
    "but {one} may be missing in one of them.",
}
# Above this epsilon, the belief of an observer has practically no bound.
_LITTLE_ABOVE = 10.0
_GUESS = {
    "zero_out": "that {a} took part or counted as nothing",
    "replace_one": "that a certain place holds one of two records",
    "add_or_remove_one": "that {a} is in the data or is not",
}


def counted(sentences) -> tuple[str, ...]:
    """Equal sentences once, with their number."""
    counts = collections.Counter(sentences)
    return tuple(f"{n} times: {each}" if n > 1 else each for each, n in counts.items())


def executed(run: Run) -> str:
    """What was executed, in a sentence or two."""
    steps, size, counted = f"{run.steps} steps", run.contribution.microbatch_size, ""
    if run.taken is not None:
        steps = f"{run.taken} of {run.steps} planned steps"
        counted = (
            f" All {run.steps} steps are counted, because results may have decided when to stop, or "
            "which weights to keep."
        )
    words = run.mechanism.executed_words(run)
    if words is not None:
        return words + counted
    nominal = " (a nominal number)" if run.sampling.nominal else ""
    clipping = " (adaptive clipping included)" if run.contribution.adaptive_clipping else ""
    if size > 1:
        clipping += (
            f", clipping the mean gradient of {size} examples at a time, so that one example can "
            "change it by twice the clip norm"
        )
    if run.contribution.batch_statistics:
        clipping += (
            ", normalized by statistics of the lot, so that one example changes the gradients of all "
            "others"
        )
    return (
        f"{run.mechanism.name}, {steps} with {run.sampling.words}, {run.sampling.sizes}{nominal}"
        f"{run.mechanism.noise_words(run.steps)}{clipping}.{counted}"
    )


def belief(proven: Guarantee) -> str:
    """Explains what a proven epsilon means for one record."""
    if math.isinf(proven.epsilon):
        return "An infinite epsilon promises nothing: an observer may become certain of a record."
    if proven.epsilon > VACUOUS_ABOVE:
        return (
            "An epsilon this large gives no meaningful protection: an observer may become as good as "
            "certain of a record."
        )
    if proven.epsilon == 0:
        return (
            f"Epsilon 0 at delta = {proven.delta:g}: what was released hardly depends on a record."
        )
    users = proven.max_examples_per_user > 1
    whose = "all records of one user" if users else "one record"
    guess = _GUESS[proven.adjacency].format(a="a certain user" if users else "a certain record")
    belief = 100 / (1 + math.exp(-proven.epsilon))
    start = (
        f"Epsilon {format_epsilon(proven.epsilon)}, for {whose}: an observer who knows every other "
        f"record, and holds it as likely as not {guess}, "
    )
    if belief > 99.9:
        return f"{start}may become all but certain of it: this promises little."
    return (
        f"{start}is at most {belief:.1f}% sure of the truth afterwards, except with a chance of at "
        f"most {proven.chance_of_more:.2g}."
    )


def rates(proven: Guarantee) -> str:
    """What the guarantee leaves to a test of membership."""
    who = "users" if proven.max_examples_per_user > 1 else "records"
    test = (
        f"A test of membership that wrongly accuses 1% of the {who} that did not take part finds at "
        "most {} of those that did"
    )
    if proven.adjacency == "replace_one":
        test = (
            "A test of which record it is that is wrong about 1% of the one kind is right about at "
            "most {} of the other"
        )
    return (
        f"{test.format(_percent(proven.tpr(0.01)))} (0.1%: {_percent(proven.tpr(0.001))}); whatever "
        "the test, the two rates differ by at most "
        f"{float(rounded_up(100 * proven.advantage, 3)):g} percentage points."
    )


def _percent(rate: float) -> str:
    """A rate in percent, rounded up to three digits."""
    return f"{float(rounded_up(100 * rate, 3)):g}%"


def comparison(runs: Sequence[Run], claimed: Guarantee, proven: Guarantee) -> str | None:
    """Explains why the two epsilons differ, or returns None if they are equal or proven is infinite."""
    if claimed.epsilon == proven.epsilon or math.isinf(proven.epsilon):
        return None
    if claimed.adjacency != proven.adjacency and proven.adjacency == "replace_one":
        return (
            "Claimed and proven are about different neighbours here: the paper's formula is for one "
            "record added or removed, and replacing a record costs about twice as much."
        )
    if len(runs) > 1:
        return "Claimed and proven add up trainings in different ways. Rely on the proven figure."
    if claimed.epsilon > proven.epsilon and not all(run.sampling.coin_flips for run in runs):
        return (
            "Claimed is larger than proven here, but only by chance: the paper's formula is for "
            "Poisson lots. Rely on the proven figure."
        )
    if claimed.epsilon > proven.epsilon:
        return (
            "Claimed is larger than proven here: the paper's formula is older and looser. The proven "
            "figure is a tighter theorem about the same noise."
        )
    return (
        "Claimed is smaller than proven here: the paper's formula leaves out something that was "
        "really done. Rely on the proven figure."
    )


def warnings_of(runs: Sequence[Run], proven: Guarantee) -> tuple[str, ...]:
    sentences = []
    if any(run.insecure_seed for run in runs):
        sentences.append(INSECURE_SEED)
    if proven.vacuous:
        sentences.append(
            "Nothing meaningful is proven about these weights. Do not call them private."
        )
    elif proven.epsilon > _LITTLE_ABOVE:
        sentences.append(
            f"An epsilon above {_LITTLE_ABOVE:g} promises little: an observer may become all but "
            "certain of a record."
        )
    too_large = delta_warning(
        proven.delta, max((run.sampling.num_examples for run in runs), default=1)
    )
    if too_large and runs:
        sentences.append(too_large)
    return tuple(sentences)
