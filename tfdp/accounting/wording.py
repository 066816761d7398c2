"""The sentences of a privacy statement, for readers who are not experts."""

import collections
import math
from collections.abc import Sequence

from tfdp.accounting.assumptions import INSECURE_SEED
from tfdp.accounting.contribution import Contribution
from tfdp.accounting.guarantee import (
    VACUOUS_ABOVE,
    Guarantee,
    delta_warning,
    format_epsilon,
    rounded_up,
)
from tfdp.accounting.run import Run

NOT_COVERED = (
    "Figures computed on private data without noise: training loss and accuracy, other metrics and "
    "diagnostics, and whatever is computed on validation data, which are not protected at all.",
    "Choices by such figures: when training ended, which of its checkpoints was kept, hyperparameters, "
    "the noise or length of later trainings. (Public or held-out data may decide when to end and what "
    "to keep; trials that are counted here may be compared.)",
    "Other models that were trained on these data and are not counted here, such as folds, trials of a "
    "tuner, earlier attempts, and a copy of a saved file that is trained on elsewhere: what they cost "
    "adds up (Ledger.merge, Statement.of_search).",
    "What functions of your own do with private data: callbacks between two steps, regularizers, "
    "constraints, schedules and metrics.",
    "Attacks on the floating-point representation of the noise.",
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
# Above this chance of more, a bound on an observer's belief is no promise.
_LIKELY = 0.2
# Above this epsilon, the belief of an observer has practically no bound.
_LITTLE_ABOVE = 10.0
_GUESS = {
    "zero_out": "that {a} took part or counted as nothing",
    "replace_one": "that {a} is the first or the second of two candidates",
    "add_or_remove_one": "that {a} is in the data or is not",
}


def counted(sentences) -> tuple[str, ...]:
    """Equal sentences once, with their number."""
    counts = collections.Counter(sentences)
    return tuple(f"{n} times: {each}" if n > 1 else each for each, n in counts.items())


def executed(run: Run) -> str:
    """What was executed, in a sentence or two."""
    steps = f"{run.steps} step{'s' if run.steps != 1 else ''}"
    counted = ""
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
    return (
        f"{run.mechanism.name}, {steps} with {run.sampling.words}, {run.sampling.sizes}{nominal}"
        f"{run.mechanism.noise_words(run.steps)}{_clipping(run.contribution)}.{counted}"
    )


def _clipping(contribution: Contribution) -> str:
    """How gradients were clipped, where it is not one by one to one clip norm."""
    size, groups = contribution.microbatch_size, contribution.clip_groups
    words = " (adaptive clipping included)" if contribution.adaptive_clipping else ""
    if groups > 1:
        words += f", clipping {groups} groups of weights, each to the clip norm"
    if size > 1:
        words += (
            f", clipping the mean gradient of {size} examples at a time, so that one example can "
            "change it by twice the clip norm"
        )
    if contribution.batch_statistics:
        words += (
            ", normalized by statistics of the lot, so that one example changes the gradients of all "
            "others"
        )
    return words


def pair(proven: Guarantee) -> str:
    """What neighbours are, and whether their distance is bridged by group privacy."""
    users = proven.max_examples_per_user > 1
    words = PAIRS[proven.adjacency].format(one="all records of one user" if users else "one record")
    if proven.changes == 1:
        return words
    return (
        f"{words} Neighbours are up to {proven.changes} single changes apart, and the proven figure "
        "follows from the cost of one (group privacy)."
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
            f"Epsilon 0: with and without a record, the chances of whatever may be released differ by "
            f"at most delta = {proven.delta:g}."
        )
    users = proven.max_examples_per_user > 1
    whose = "all records of one user" if users else "one record"
    guess = _GUESS[proven.adjacency].format(a="a certain user" if users else "a certain record")
    belief, chance = 100 / (1 + math.exp(-proven.epsilon)), proven.chance_of_more
    start = f"Epsilon {format_epsilon(proven.epsilon)}, for {whose}: "
    observer = f"an observer who knows every other record, and holds it as likely as not {guess}, "
    if belief > 99.9:
        return f"{start}{observer}may become all but certain of it: this promises little."
    if chance > _LIKELY:
        return f"{start}how sure an observer may become of the truth has no useful bound here."
    return (
        f"{start}{observer}is at most {float(rounded_up(belief, 3)):g}% sure of the truth afterwards, "
        f"except with a chance of at most {float(rounded_up(chance, 2)):.2g} (which is not delta)."
    )


def definition(proven: Guarantee) -> str:
    """What epsilon and delta bound together."""
    if proven.epsilon > _LITTLE_ABOVE:
        return ""
    factor = float(rounded_up(math.exp(proven.epsilon), 3))
    return (
        "Epsilon and delta together: whatever is released from one of two neighbours has at most "
        f"{factor:g} times the chance that it has from the other, plus {proven.delta:g}."
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
            f"A test of which of two {who} it is that mistakes the first for the second in 1% of "
            "cases recognizes the second in at most {}"
        )
    return (
        f"{test.format(_percent(proven.tpr(0.01)))}, where blind guesses reach 1% (at 0.1%: "
        f"{_percent(proven.tpr(0.001))}); whatever the test, the second rate exceeds the first by at "
        f"most {float(rounded_up(100 * proven.advantage, 3)):g} percentage points."
    )


def _percent(rate: float) -> str:
    """A rate in percent, rounded up to three digits."""
    return f"{float(rounded_up(100 * rate, 3)):g}%"


def comparison(runs: Sequence[Run], claimed: Guarantee, proven: Guarantee) -> str | None:
    """Explains why the two epsilons differ, or returns None if they are equal or proven is infinite."""
    if claimed.epsilon == proven.epsilon or math.isinf(proven.epsilon):
        return None
    rely = "Rely on the proven figure."
    if math.isinf(claimed.epsilon):
        return f"The paper's formula gives no finite epsilon for this. {rely}"
    if claimed.adjacency != proven.adjacency and proven.adjacency == "replace_one":
        return (
            "Claimed and proven are about different neighbours here: the paper's formula is for one "
            f"record added or removed. Replacing a record costs about twice as much by itself. {rely}"
        )
    if len(runs) > 1:
        return f"Claimed and proven may differ for each training, and in how they add up. {rely}"
    if claimed.epsilon > proven.epsilon and not all(run.sampling.coin_flips for run in runs):
        return (
            "Claimed is larger than proven here, but only by chance: the paper's formula is for "
            f"Poisson lots. {rely}"
        )
    if claimed.epsilon > proven.epsilon:
        return (
            "Claimed is larger than proven here: the paper's formula is looser than the theorem about "
            f"what was done. {rely}"
        )
    return (
        "Claimed is smaller than proven here: the paper's formula is not for what was done (how lots "
        "were drawn, users, microbatches, groups of weights, or means that stay without noise). "
        f"{rely}"
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
            f"certain of {'a user' if proven.max_examples_per_user > 1 else 'a record'}."
        )
    too_large = delta_warning(
        proven.delta, max((run.sampling.num_examples for run in runs), default=1)
    )
    if too_large and runs:
        sentences.append(too_large)
    return tuple(sentences)
