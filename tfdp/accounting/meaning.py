"""Explanations of the two guarantees of a statement, for readers who are not experts."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

from tfdp.accounting.guarantee import Guarantee, delta_warning, rounded_up
from tfdp.accounting.mechanisms import SIDPSGD, Matrix
from tfdp.accounting.run import Run
from tfdp.accounting.sentences import Table, always, first_of, mechanism_is

# Above this chance of exceeding it, a bound on an observer's belief does not protect.
_LIKELY = 0.2
# Above this belief in percent, an observer is practically certain.
_CERTAIN = 99.9
# Up to this epsilon, protection is strong (tier 1 of Ponomareva et al. 2023, "How to DP-fy ML").
_STRONG = 1.0
# Above this epsilon, the factor exp(epsilon) means little to a reader.
_LARGE = 10.0
_PROTECTION = (
    " protection of {f.each} against anyone who sees the weights, even if they know all other data."
)


@dataclasses.dataclass(frozen=True)
class Facts:
    """Runs and their guarantees, with the numbers and words that the sentences use."""

    runs: Sequence[Run]
    claimed: Guarantee
    proven: Guarantee

    @property
    def one(self) -> str:
        """The difference between neighbours."""
        one = self.proven.max_examples_per_user == 1
        return f"one {self.proven.unit}" if one else "all records of one user"

    @property
    def each(self) -> str:
        """The protected unit."""
        if (most := self.proven.max_examples_per_user) > 1:
            return f"each user's records together ({most} at most)"
        return f"each {self.proven.unit}"

    @property
    def used(self) -> str:
        """The event that an observer guesses."""
        if self.proven.max_examples_per_user == 1 and self.proven.unit == "record":
            return "a record was used"
        who = "user" if self.proven.unit == "record" else self.proven.unit
        return f"the data of a {who} were used"

    @property
    def belief(self) -> float:
        """Largest belief, in percent, of an observer who starts at 50."""
        return 100 / (1 + math.exp(-self.proven.epsilon))

    @property
    def delta_warning(self) -> str | None:
        """A warning about delta for the largest data set, or None."""
        examples = max((run.sampling.num_examples for run in self.runs), default=0)
        return delta_warning(self.proven.delta, examples) if examples else None

    @functools.cached_property
    def rounded(self) -> dict[str, float]:
        """The numbers of the sentences, rounded up."""
        proven, digits = self.proven, {"chance": 2}
        numbers = {
            "belief": self.belief,
            "chance": proven.chance_of_more,
            "factor": math.exp(min(proven.epsilon, 700.0)),
            "tpr": 100 * proven.tpr(0.01),
            "small_tpr": 100 * proven.tpr(0.001),
            "advantage": 100 * proven.advantage,
        }
        return {n: float(rounded_up(x, digits.get(n, 3))) for n, x in numbers.items()}


def _replaced(f: Facts) -> bool:
    return f.proven.adjacency == "replace_one"


def _any(condition: Callable[[Run], bool]) -> Callable[[Facts], bool]:
    """The condition that any of the runs satisfies `condition`."""
    return lambda f: any(condition(run) for run in f.runs)


# The strength of the protection: the first row that applies.
VERDICT: Table = {
    "infinite": (
        lambda f: math.isinf(f.proven.epsilon),
        "No protection is proven. Do not call these weights private. {f.proven.reason}",
    ),
    "vacuous": (
        lambda f: f.proven.vacuous,
        "No meaningful protection: an observer may become practically certain of {f.one}. Do not call "
        "these weights private.",
    ),
    "delta": (lambda f: f.delta_warning is not None, "No meaningful protection: {f.delta_warning}"),
    "nothing": (lambda f: not f.runs, "Nothing is spent: no training on these data is counted."),
    "certain": (
        lambda f: f.belief > _CERTAIN,
        "Weak protection of {f.each}: an observer may become almost certain about it.",
    ),
    "unbounded": (
        lambda f: f.rounded["chance"] > _LIKELY,
        "Weak protection of {f.each}: an observer's certainty has no useful bound.",
    ),
    "moderate": (lambda f: f.proven.epsilon > _STRONG, f"Moderate{_PROTECTION}"),
    "strong": (always, f"Strong{_PROTECTION}"),
}

# Topics, each with a table; the first row that applies is used.
MEANING: Mapping[str, Table] = {
    "belief": {
        "no bound": (
            lambda f: f.belief > _CERTAIN or f.rounded["chance"] > _LIKELY or f.proven.epsilon == 0,
            "",
        ),
        "replaced": (
            _replaced,
            "An observer who starts at 50:50 ends at most {f.rounded[belief]:g}% sure which of two "
            "candidates was used, except with probability at most {f.rounded[chance]:.2g}.",
        ),
        "used": (
            always,
            "An observer who starts at 50:50 ends at most {f.rounded[belief]:g}% sure whether {f.used}"
            ", except with probability at most {f.rounded[chance]:.2g}.",
        ),
    },
    "rates": {
        "vacuous": (lambda f: f.proven.vacuous or not f.runs, ""),
        "replaced": (
            _replaced,
            "A test that mistakes the first of two candidates for the second in 1% of cases recognizes "
            "the second in at most {f.rounded[tpr]:g}%; guessing reaches 1%.",
        ),
        "membership": (
            always,
            "A membership test with 1% false alarms finds at most {f.rounded[tpr]:g}% of what was "
            "used; guessing finds 1%.",
        ),
    },
    "other rates": {
        "vacuous": (lambda f: f.proven.vacuous or not f.runs, ""),
        "finite": (
            always,
            "With 0.1% false alarms, a test finds at most {f.rounded[small_tpr]:g}%. The true positive "
            "rate of any test exceeds its false positive rate by at most {f.rounded[advantage]:g} "
            "percentage points.",
        ),
    },
    "definition": {
        "definition": (
            lambda f: f.proven.epsilon <= _LARGE,
            "Epsilon and delta together: whatever is released from one of two neighbours has at "
            "most {f.rounded[factor]:g} times the chance that it has from the other, plus "
            "{f.proven.delta:g}.",
        ),
    },
    "neighbours": {
        "zero_out": (
            lambda f: f.proven.adjacency == "zero_out",
            "Zero-out means: two data sets are neighbours if they are equal, except that {f.one} may "
            "contribute nothing in one of them: it takes a place in a lot, and adds zero to the sum.",
        ),
        "replace_one": (
            _replaced,
            "Replace-one means: two data sets are neighbours if they are equal, except that {f.one} "
            "may be replaced by anything else.",
        ),
        "add_or_remove_one": (
            always,
            "Add-or-remove-one means: two data sets are neighbours if they are equal, except that "
            "{f.one} may be missing in one of them.",
        ),
    },
    "changes": {
        "several": (
            lambda f: f.proven.changes > 1,
            "Neighbours are up to {f.proven.changes} single changes apart, and the proven figure "
            "follows from the cost of one (group privacy).",
        ),
    },
    "nominal lots": {
        "nominal lots": (
            lambda f: any(run.sampling.random_sizes for run in f.runs),
            "The nominal lot size is the fixed number that every sum is divided by, however many "
            "examples were drawn.",
        ),
    },
    "comparison": {
        "equal": (
            lambda f: f.claimed.epsilon == f.proven.epsilon or math.isinf(f.proven.epsilon),
            "",
        ),
        "no claim": (
            lambda f: math.isinf(f.claimed.epsilon),
            "The paper's formula gives no finite epsilon for this.",
        ),
        "other neighbours": (
            lambda f: f.claimed.adjacency != f.proven.adjacency and _replaced(f),
            "Claimed and proven are about different neighbours here: the paper's formula is for "
            "one record added or removed, the theorem for {f.one} replaced, which costs more.",
        ),
        "several runs": (
            lambda f: len(f.runs) > 1,
            "Claimed and proven may differ for each training, and in how they add up.",
        ),
        "larger for other lots": (
            lambda f: (
                f.claimed.epsilon > f.proven.epsilon
                and not all(run.sampling.coin_flips for run in f.runs)
            ),
            "Claimed happens to be larger; it does not apply to this sampling.",
        ),
        "larger": (
            lambda f: f.claimed.epsilon > f.proven.epsilon,
            "Claimed is larger: that formula is looser than the theorem about this run.",
        ),
        "means": (
            _any(mechanism_is(SIDPSGD)),
            "Claimed is smaller: the paper counts each step as fresh noise; here the means keep "
            "earlier gradients.",
        ),
        "lots": (
            _any(lambda run: not (run.sampling.coin_flips or isinstance(run.mechanism, Matrix))),
            "Claimed is smaller: the paper's formula is for Poisson lots, but these are not.",
        ),
        "users": (
            lambda f: f.proven.max_examples_per_user > 1,
            "Claimed is smaller: the paper's formula is for one record, not for all records of "
            "a user.",
        ),
        "microbatches": (
            _any(lambda run: run.contribution.microbatch_size > 1),
            "Claimed is smaller: in the paper's formula, one example changes the sum by the clip "
            "norm; here it changes the mean of its microbatch by twice that.",
        ),
        "lot statistics": (
            _any(lambda run: run.contribution.batch_statistics),
            "Claimed is smaller: in the paper's formula, one example changes its own gradient "
            "only; here it changes the statistics of its lot.",
        ),
        "groups of weights": (
            _any(lambda run: run.contribution.clip_groups > 1),
            "Claimed is smaller: the paper's formula is for gradients clipped once; here each "
            "group of weights is clipped to the clip norm.",
        ),
        "smaller": (
            always,
            "Claimed is smaller: the paper's formula differs from the proof.",
        ),
    },
}

# Limits of a finite proven epsilon, in short and in full.
NOT_COVERED_SHORT = (
    "training metrics and choices by them, other models of these data, your own code."
)
NOT_COVERED = (
    "Numbers computed on private data without noise: training loss and accuracy, other metrics and "
    "diagnostics, and anything computed on validation data, which is not protected at all.",
    "Choices by such numbers: when training ended, which of its checkpoints was kept, "
    "hyperparameters, the noise or length of later trainings. (Public or held-out data may decide "
    "when to end and what to keep; trials that are counted here may be compared.)",
    "Other models that were trained on these data and are not counted here, such as folds, trials "
    "of a tuner, earlier attempts, and a copy of a saved file that was trained further elsewhere: "
    "their costs add up (Ledger.merge, Statement.of_search).",
    "Private data used by your own functions: callbacks between two steps, regularizers, "
    "constraints, schedules and metrics.",
    "Attacks on the floating-point representation of the noise.",
)


def meaning(facts: Facts) -> dict[str, str]:
    """Returns the sentences that explain the numbers, by topic."""
    found = {topic: first_of(table, facts, f=facts) for topic, table in MEANING.items()}
    if found["comparison"]:
        found["comparison"] += " Rely on the proven figure."
    return {topic: sentence for topic, sentence in found.items() if sentence}
