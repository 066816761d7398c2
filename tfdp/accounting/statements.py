"""The privacy statement: both guarantees in plain words, with what they do not cover.

It has three formats: text for a terminal (`text`), a JSON record (`to_dict`) and a section of a model
card (`markdown`).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from tfdp.accounting import wording
from tfdp.accounting.assumptions import START
from tfdp.accounting.composition import claimed_composition, proven_composition
from tfdp.accounting.guarantee import Guarantee, format_epsilon
from tfdp.accounting.ledger import Ledger
from tfdp.accounting.meaning import NOT_COVERED, WARNINGS, Facts, meaning
from tfdp.accounting.run import Run, check_runs
from tfdp.accounting.search import of_random_search
from tfdp.accounting.sentences import Declared, all_of

_FIXED_SEARCH = Declared(
    "The number of trials, and noise, lots and steps of each, were fixed beforehand, or follow rules "
    "that use no private results."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statement:
    """Everything that a reader has to know about the privacy of some trained weights.

    Attributes:
      executed: One sentence for each different run that was executed, or planned.
      released: The released values that the guarantees are about.
      neighbours: The neighbouring relation of the proven guarantee, in words.
      claimed, proven: The two guarantees.
      meaning: Sentences that explain the numbers, by topic: one of `meaning.MEANING`, or "search".
      assumptions: Sentences that have to be true for the proven guarantee to hold.
      not_covered: What the guarantees do not cover.
      warnings: Problems of this training or of the chosen delta.
      planned: Whether the runs were described, and not counted by a ledger while they were executed.

    Example:
      >>> from tfdp.accounting import Statement, describe
      >>> run = describe("dpsgd", "cyclic", num_examples=1000, lot_size=100, steps=20,
      ...                noise_multiplier=4.0)
      >>> print(Statement.of(run, delta=1e-4).markdown().splitlines()[0])
      ## Privacy
    """

    executed: tuple[str, ...]
    released: str
    neighbours: str
    claimed: Guarantee
    proven: Guarantee
    meaning: dict[str, str]
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...]
    warnings: tuple[str, ...]
    planned: bool = True

    @classmethod
    def of(
        cls,
        runs_or_run: Run | Sequence[Run],
        delta: float,
        adjacency: str = "zero_out",
        *,
        planned: bool = True,
    ) -> "Statement":
        """Makes the statement of one run, or of several on the same data.

        Args:
          runs_or_run: What is `planned`, such as the result of `describe`, or what a ledger counted.
          delta: Probability in (0, 1).
          adjacency: Neighbouring relation of the proven guarantee.
          planned: Whether it says that these are plans, and no run that tfdp has seen.
        """
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
            nothing but the best of them is released. None composes all trials.

        Example:
          >>> from tfdp.accounting import Ledger, Statement, describe
          >>> run = describe("dpsgd", "poisson", num_examples=10_000, lot_size=100,
          ...                steps=300, noise_multiplier=1.5)
          >>> ledgers = [Ledger() for _ in range(20)]
          >>> for ledger in ledgers:
          ...     ledger.record(ledger.open(run), 300)
          >>> all_of_them = Statement.of_search(ledgers, 1e-5).proven
          >>> best = Statement.of_search(ledgers, 1e-5, random_trials=20).proven
          >>> print(f"{best.epsilon:.2f} {all_of_them.epsilon:.2f}")
          1.37 2.40
        """
        if not trials:
            raise ValueError("Expected the ledger of each trial. Received none.")
        if random_trials is not None:
            return _of_the_best(trials, delta, adjacency, random_trials)
        together = Ledger()
        for ledger in trials:
            together.merge(ledger)
        said = cls.of(together.runs, delta, adjacency, planned=False)
        search = (
            f"This is about a search of {len(trials)} trainings, all of which may be released: their "
            "costs add up."
        )
        assumed = (*said.assumptions, _FIXED_SEARCH) if said.assumptions else ()
        return dataclasses.replace(
            said, meaning=said.meaning | {"search": search}, assumptions=assumed
        )

    @classmethod
    def from_guarantees(
        cls, runs: Sequence[Run], claimed: Guarantee, proven: Guarantee, *, planned: bool = True
    ) -> "Statement":
        """Makes the statement of runs whose guarantees the caller has computed already."""
        facts = Facts(runs, claimed, proven)
        return cls(
            executed=wording.executed(runs) or ("Nothing yet.",),
            released=f"{proven.released}."
            + (" The guarantee is for all of this together." if runs and not proven.reason else ""),
            neighbours=f"{proven.neighbours} ({proven.adjacency}).",
            claimed=claimed,
            proven=proven,
            meaning=meaning(facts),
            assumptions=proven.assumptions or (() if runs else (START["assumed"],)),
            not_covered=() if math.isinf(proven.epsilon) else NOT_COVERED,
            warnings=all_of(WARNINGS, facts, f=facts),
            planned=planned,
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON-safe form: the attributes, with tuples and `meaning` as lists."""
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        parts |= {"claimed": self.claimed.to_dict(), "proven": self.proven.to_dict()}
        parts["meaning"] = [*self.meaning.values()]
        return {name: [*v] if isinstance(v, tuple) else v for name, v in parts.items()}

    def text(self) -> str:
        """Returns the statement as several lines of text for a terminal."""
        lines = [
            f"Privacy statement{' about a plan: tfdp has trained nothing' if self.planned else ''}",
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
        rows = (
            f"| {g.kind} | {format_epsilon(g.epsilon)} | {g.delta:g} | {g.adjacency} |"
            for g in (self.proven, self.claimed)
        )
        table = ("| guarantee | epsilon | delta | neighbours |", "| --- | --- | --- | --- |", *rows)
        blocks = ["## Privacy", *(f"> **Warning:** {sentence}" for sentence in self.warnings)]
        blocks.append("\n".join(table))
        if self.proven.reason:
            blocks.append(f"Why: {self.proven.reason}")
        blocks += [f"Released: {self.released}", f"Neighbours: {self.neighbours}"]
        done = "What is planned" if self.planned else "What was executed"
        for title, sentences in ((done, self.executed), *self._lists()):
            blocks += [f"### {title}", "\n".join(f"- {sentence}" for sentence in sentences)]
        return "\n\n".join(blocks) + "\n"

    def _figures(self) -> list[str]:
        claimed, proven = self.claimed, self.proven
        basis = "for what was really sampled, computed and released"
        if self.planned:
            basis = "for lots, noise and steps as planned"
        return [
            f"Proven epsilon:  {format_epsilon(proven.epsilon)}  (delta = {proven.delta:g}, "
            f"{proven.adjacency}; {basis})",
            *([f"Why: {proven.reason}"] if proven.reason else []),
            f"Claimed epsilon: {format_epsilon(claimed.epsilon)}  (delta = {claimed.delta:g}, "
            f"{claimed.adjacency}; the paper's own formula)",
        ]

    def _lists(self) -> list[tuple[str, tuple[str, ...]]]:
        declared = tuple(each for each in self.assumptions if isinstance(each, Declared))
        lists = [
            ("What this means", tuple(self.meaning.values())),
            ("Assumptions that you must confirm", declared),
            (
                "Assumptions that tfdp enforces where it trains",
                tuple(each for each in self.assumptions if each not in declared),
            ),
            ("The claimed figure", self.claimed.assumptions),
            ("Not covered", self.not_covered),
        ]
        return [(title, sentences) for title, sentences in lists if sentences]


def _of_the_best(trials, delta, adjacency, mean):
    """The statement of the best of a random number of trials, which does not tell that number."""
    runs = [ledger.runs for ledger in trials]
    proven = of_random_search(runs, delta, adjacency, mean)
    claimed = max(
        (claimed_composition(each, delta, adjacency) for each in runs), key=lambda g: g.epsilon
    )
    together = [run for each in runs for run in each]
    said = Statement.from_guarantees(together, claimed, proven, planned=False)
    return dataclasses.replace(
        said,
        executed=(f"A random number of trainings, {mean:g} on average.",),
        released=f"The best training only, with {said.released}",
        meaning=said.meaning
        | {
            "comparison": "Claimed is for one training by itself, as papers report the best of many.",
            "search": "The number of trainings, the others and their ledgers stay secret.",
        },
    )


def statement(
    runs_or_run: Run | Sequence[Run],
    delta: float,
    adjacency: str = "zero_out",
    *,
    planned: bool = True,
) -> str:
    """The text of `Statement.of` with the same arguments.

    Args:
      runs_or_run: One run, or all runs on the same data.
      delta: Probability in (0, 1).
      adjacency: "zero_out", "replace_one" or "add_or_remove_one".
      planned: Whether the runs are a plan, of which nothing was executed.

    Example:
      >>> from tfdp.accounting import describe, statement
      >>> run = describe("dpsgd", "cyclic", num_examples=1000, lot_size=100, steps=20,
      ...                noise_multiplier=4.0)
      >>> print(statement(run, delta=1e-4))
      Privacy statement about a plan: tfdp has trained nothing
      ...
      Proven epsilon:  1.145  (delta = 0.0001, zero_out; for lots, noise and steps as planned)
      ...
    """
    return Statement.of(runs_or_run, delta, adjacency, planned=planned).text()
