"""The privacy statement: both guarantees in plain words, with what they do not cover.

The statement is written for readers who are not experts. It has three formats: text for a terminal
(`text`), a JSON record (`to_dict`) and a section of a model card (`markdown`).
"""

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from tfdp.accounting.analysis import INSECURE_SEED
from tfdp.accounting.composition import claimed_composition, proven_composition
from tfdp.accounting.guarantee import (
    VACUOUS_ABOVE,
    Guarantee,
    check_delta,
    delta_warning,
    format_epsilon,
    neighbours,
    rounded_up,
)
from tfdp.accounting.ledger import Ledger
from tfdp.accounting.run import Run, check_runs
from tfdp.accounting.search import of_random_search

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
_FIXED_SEARCH = (
    "The number of trials, and noise, lots and steps of each, were fixed beforehand, or follow rules "
    "that use no private results."
)
_PAIRS = {
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statement:
    """Everything that a reader has to know about the privacy of some trained weights.

    Attributes:
      executed: One sentence for each different run that was executed, or planned.
      released: Description of the released values that the guarantees are about.
      neighbours: The neighbouring relation of the proven guarantee, in words.
      claimed: The guarantee by the papers' accounting.
      proven: The proven guarantee.
      belief: What the proven guarantee leaves to an observer.
      pair: What neighbours are.
      comparison: Why the two epsilons differ, or None.
      assumptions: Sentences that have to be true for the proven guarantee to hold.
      not_covered: Sentences that list what the guarantees do not cover.
      warnings: Sentences about problems of this training or of the chosen delta.
      planned: Whether nothing was executed, so that all of this is about a plan.
      search: What a search of several trials releases, or None.

    Example:
      >>> from tfdp.accounting import Statement, describe
      >>> run = describe("dpsgd", "cyclic", num_examples=1000, lot_size=100, steps=20,
      ...                noise_multiplier=4.0)
      >>> said = Statement.of(run, delta=1e-4)
      >>> said.executed
      ('dpsgd, 20 steps with epochs in one fixed order, lots of 100 out of 1000 examples, noise
      multiplier 4.',)
      >>> print(f"{said.proven.epsilon:.3f}")
      1.144
      >>> print(said.markdown().splitlines()[0])
      ## Privacy
    """

    executed: tuple[str, ...]
    released: str
    neighbours: str
    claimed: Guarantee
    proven: Guarantee
    belief: str
    pair: str
    comparison: str | None
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...]
    warnings: tuple[str, ...]
    planned: bool = False
    search: str | None = None

    @property
    def meaning(self) -> tuple[str, ...]:
        """Sentences that explain the numbers."""
        sentences = (self.belief, self.pair, NOMINAL_LOT, self.comparison, self.search)
        return tuple(each for each in sentences if each)

    @classmethod
    def of(
        cls,
        runs_or_run: Run | Sequence[Run],
        delta: float,
        adjacency: str = "zero_out",
        *,
        planned: bool = False,
    ) -> "Statement":
        """Makes the statement of one run, or of several runs on the same data.

        Args:
          runs_or_run: One run, or the segments of one training.
          delta: Probability in (0, 1).
          adjacency: Neighbouring relation of the proven guarantee.
          planned: Whether the runs are only planned.
        """
        check_delta(delta)
        runs = [runs_or_run] if isinstance(runs_or_run, Run) else check_runs(runs_or_run)
        proven = proven_composition(runs, delta, adjacency)
        claimed = claimed_composition(runs, delta, adjacency)
        return cls.from_guarantees(runs, claimed, proven, planned=planned)

    @classmethod
    def of_search(
        cls,
        trials: Sequence[Ledger],
        delta: float,
        adjacency: str = "zero_out",
        *,
        random_trials: float | None = None,
    ) -> "Statement":
        """Makes the statement of a search: of all trials, or of the best of a random number of them.

        Args:
          trials: The ledger of each training on the same data.
          delta: Probability in (0, 1).
          adjacency: Neighbouring relation of the proven guarantee.
          random_trials: Mean with which `draw_trials` drew the number of trials before the search, if
            nothing but the best of them is released. None composes all trials, whose figures may then
            all be looked at and released.

        Example:
          >>> from tfdp.accounting import Ledger, Statement, describe
          >>> run = describe("dpsgd", "poisson", num_examples=10_000, lot_size=100,
          ...                steps=300, noise_multiplier=1.5)
          >>> ledgers = [Ledger() for _ in range(20)]
          >>> for ledger in ledgers:
          ...     ledger.record(ledger.open(run), 300)
          >>> one, all_of_them = (Statement.of_search(ledgers[:n], 1e-5).proven for n in (1, 20))
          >>> best = Statement.of_search(ledgers, 1e-5, random_trials=20).proven
          >>> print(f"{one.epsilon:.2f} {best.epsilon:.2f} {all_of_them.epsilon:.2f}")
          0.50 1.37 2.40
        """
        together = Ledger()
        for ledger in trials:
            together.merge(ledger)
        said = cls.of(together.runs, delta, adjacency)
        number = f"This is about a search of {len(trials)} trials"
        if random_trials is None:
            words = f"{number}, all of which may be released: their costs add up."
            assumed = (*said.assumptions, _FIXED_SEARCH) if said.assumptions else ()
            return dataclasses.replace(said, search=words, assumptions=assumed)
        proven = of_random_search(
            [ledger.runs for ledger in trials], delta, adjacency, random_trials
        )
        said = cls.from_guarantees(together.runs, said.claimed, proven)
        words = f"{number}, of which only the best is released. Claimed is for all of them."
        return dataclasses.replace(said, search=words)

    @classmethod
    def from_guarantees(
        cls, runs: Sequence[Run], claimed: Guarantee, proven: Guarantee, *, planned: bool = False
    ) -> "Statement":
        """Makes the statement of guarantees that the caller has computed already.

        Args:
          runs: The runs that both guarantees are about.
          claimed: Their claimed guarantee.
          proven: Their proven guarantee.
          planned: Whether the runs are only planned.
        """
        return cls(
            executed=_counted(_executed(run) for run in runs) or ("Nothing was executed.",),
            released=f"{proven.released}. The guarantee is for all of this together.",
            neighbours=f"{_neighbours(proven)} ({proven.adjacency}).",
            claimed=claimed,
            proven=proven,
            belief=_belief(proven) + ("" if proven.vacuous else f" {_rates(proven)}"),
            pair=_pair(proven),
            comparison=_comparison(runs, claimed, proven),
            assumptions=proven.assumptions,
            not_covered=() if math.isinf(proven.epsilon) else NOT_COVERED,
            warnings=_warnings(runs, proven),
            planned=planned,
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes in JSON-safe form, and `meaning`."""
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        parts["meaning"] = self.meaning
        for name, value in parts.items():
            if isinstance(value, Guarantee):
                parts[name] = value.to_dict()
            elif isinstance(value, tuple):
                parts[name] = list(value)
        return parts

    def text(self) -> str:
        """Returns the statement as several lines of text for a terminal."""
        lines = [
            f"Privacy statement{' about a plan: nothing was trained' if self.planned else ''}",
            *(f"Warning: {sentence}" for sentence in self.warnings),
            *(f"{'Planned' if self.planned else 'Executed'}: {each}" for each in self.executed),
            f"Released: {self.released}",
            f"Neighbours: {self.neighbours}",
            *self._figures(),
        ]
        for title, sentences in self._lists():
            lines += [f"{title}:", *(f"  - {sentence}" for sentence in sentences)]
        return "\n".join(lines)

    def markdown(self) -> str:
        """Returns the statement as a section of a model card, in Markdown."""
        blocks = ["## Privacy"]
        blocks += [f"> **Warning:** {sentence}" for sentence in self.warnings]
        blocks.append(
            "\n".join(
                [
                    "| guarantee | epsilon | delta | neighbours |",
                    "| --- | --- | --- | --- |",
                    *(
                        f"| {g.kind} | {format_epsilon(g.epsilon)} | {g.delta:g} | {g.adjacency} |"
                        for g in (self.proven, self.claimed)
                    ),
                ]
            )
        )
        if self.proven.reason:
            blocks.append(f"Why: {self.proven.reason}")
        blocks.append(f"Released: {self.released}")
        done = "What is planned" if self.planned else "What was executed"
        for title, sentences in ((done, self.executed), *self._lists()):
            blocks.append(f"### {title}")
            blocks.append("\n".join(f"- {sentence}" for sentence in sentences))
        return "\n\n".join(blocks) + "\n"

    def _figures(self) -> list[str]:
        claimed, proven = self.claimed, self.proven
        lines = [
            f"Proven epsilon:  {format_epsilon(proven.epsilon)}  (delta = {proven.delta:g}, "
            f"{proven.adjacency}; {_BASIS[self.planned]})",
        ]
        if proven.reason:
            lines.append(f"Why: {proven.reason}")
        return [
            *lines,
            f"Claimed epsilon: {format_epsilon(claimed.epsilon)}  (delta = {claimed.delta:g}, "
            f"{claimed.adjacency}; the paper's own formula)",
        ]

    def _lists(self) -> list[tuple[str, tuple[str, ...]]]:
        lists = [
            ("What this means", self.meaning),
            ("The proven guarantee assumes", self.assumptions),
            ("Not covered", self.not_covered),
        ]
        return [(title, sentences) for title, sentences in lists if sentences]


def statement(
    runs_or_run: Run | Sequence[Run],
    delta: float,
    adjacency: str = "zero_out",
    *,
    planned: bool = False,
) -> str:
    """Privacy statement in words: what was executed and released, and what is claimed and proven.

    Args:
      runs_or_run: One run, or the segments of one training.
      delta: Probability in (0, 1).
      adjacency: Neighbouring relation of the proven guarantee.
      planned: Whether the runs are only planned.

    Returns:
      Several lines of text; `Statement.of` returns the same content as separate attributes.

    Example:
      >>> from tfdp.accounting import describe, statement
      >>> run = describe("dpsgd", "cyclic", num_examples=1000, lot_size=100, steps=20,
      ...                noise_multiplier=4.0)
      >>> print(statement(run, delta=1e-4))
      Privacy statement
      Executed: dpsgd, 20 steps with epochs in one fixed order, lots of 100 out of 1000 examples, noise
      multiplier 4.
      Released: all noisy gradients, hence every intermediate and final weight.
      ...
      Proven epsilon:  1.145  (delta = 0.0001, zero_out; for what was really sampled, computed and
      released)
      ...
    """
    return Statement.of(runs_or_run, delta, adjacency, planned=planned).text()


_BASIS = {
    False: "for what was really sampled, computed and released",
    True: "for lots, noise and steps as planned",
}


def _counted(sentences) -> tuple[str, ...]:
    """Equal sentences once, with their number."""
    counts = collections.Counter(sentences)
    return tuple(f"{n} times: {each}" if n > 1 else each for each, n in counts.items())


def _neighbours(guarantee: Guarantee) -> str:
    return neighbours(guarantee.adjacency, guarantee.max_examples_per_user)


def _executed(run: Run) -> str:
    if run.taken is None:
        return _described(run)
    return (
        f"{_described(run)} All {run.steps} steps are counted, because results may have decided when "
        "to stop, or which weights to keep."
    )


def _described(run: Run) -> str:
    words = run.mechanism.executed_words(run)
    if words is not None:
        return words
    nominal = " (a nominal number)" if run.sampling.nominal else ""
    clipping = " (adaptive clipping included)" if run.contribution.adaptive_clipping else ""
    size = run.contribution.microbatch_size
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
    steps = f"{run.steps} steps"
    if run.taken is not None:
        steps = f"{run.taken} of {run.steps} planned steps"
    return (
        f"{run.mechanism.name}, {steps} with {run.sampling.words}, "
        f"{run.sampling.sizes}{nominal}"
        f"{run.mechanism.noise_words(run.steps)}{clipping}."
    )


def _pair(proven: Guarantee) -> str:
    users = proven.max_examples_per_user > 1
    return _PAIRS[proven.adjacency].format(one="all records of one user" if users else "one record")


def _belief(proven: Guarantee) -> str:
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


def _rates(proven: Guarantee) -> str:
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


def _comparison(runs: Sequence[Run], claimed: Guarantee, proven: Guarantee) -> str | None:
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


def _warnings(runs: Sequence[Run], proven: Guarantee) -> tuple[str, ...]:
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
