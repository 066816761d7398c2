"""The privacy statement: both guarantees in plain words, and what they do not cover.

It has four formats: text for a terminal, in five lines or in full (`text`); a table in a notebook; a
JSON record (`to_dict`); and a section of a model card (`markdown`).
"""

import dataclasses
import html
import math
from collections.abc import Sequence
from typing import Any

from tfdp.accounting import composition, wording
from tfdp.accounting.assumptions import START
from tfdp.accounting.guarantee import Guarantee, format_epsilon, rounded_up
from tfdp.accounting.ledger import Ledger
from tfdp.accounting.meaning import NOT_COVERED, NOT_COVERED_SHORT, VERDICT, Facts, meaning
from tfdp.accounting.records import html_table
from tfdp.accounting.run import Run, check_runs
from tfdp.accounting.search import of_random_search
from tfdp.accounting.sentences import Declared, first_of

_FIXED_SEARCH = Declared(
    "The number of trials, and noise, lots and steps of each, were fixed beforehand, or follow rules "
    "that use no private results.",
    "a search planned in advance",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statement:
    """The privacy of trained weights in plain words: guarantees, assumptions and limits.

    `Statement.of` makes the statement of a planned training; `model.privacy.statement` returns the text
    for a trained model. Print `text()`, or write `markdown()` into a model card.

    Attributes:
        verdict: The strength of the protection in words, or why there is none.
        executed: One sentence for each different run that was executed or planned.
        released: The released values that the guarantees cover.
        neighbours: The neighbouring relation of the proven guarantee, in words.
        claimed, proven: The two guarantees.
        meaning: Sentences that explain the numbers, by topic: one of `meaning.MEANING`, or
            "search".
        assumptions: The assumptions of the proven guarantee, in sentences.
        not_covered: What the guarantees do not cover, in sentences.
        planned: Whether the runs were only described, and not counted by a ledger during training.

    Example:
        >>> from tfdp.accounting import Statement, describe
        >>> run = describe("dpsgd", "cyclic", num_examples=1000, lot_size=100, steps=20,
        ...                noise_multiplier=4.0)
        >>> print(Statement.of(run, delta=1e-4).text())
        Verdict:  Moderate protection of each record against anyone who sees the weights, ...
        Attacker: An observer who starts at 50:50 ends at most 75.9% sure whether a record was used, ...
        Proven:   epsilon 1.145 at delta 0.0001 (zero_out), if trained as planned: dpsgd, 20 steps ...
        Claimed:  epsilon ...
        Confirm:  initial weights independent of these data; ... For details: full=True.
    """

    verdict: str
    executed: tuple[str, ...]
    released: str
    neighbours: str
    claimed: Guarantee
    proven: Guarantee
    meaning: dict[str, str]
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...]
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
            runs_or_run: A planned run, such as the result of `describe`, or the runs that a ledger
                counted (`Ledger.runs`).
            delta: Probability in (0, 1), well below 1/N.
            adjacency: Neighbouring relation of the proven guarantee: "zero_out", "replace_one" or
                "add_or_remove_one".
            planned: Whether the runs are plans that tfdp has not executed.
        """
        runs = check_runs(runs_or_run)
        proven = composition.proven(runs, delta, adjacency)
        claimed = composition.claimed(runs, delta, adjacency)
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
        """Makes the statement of a hyperparameter search: of several trainings on one data set.

        Args:
            trials: The ledger of each training (`model.privacy.ledger`).
            delta: Probability in (0, 1), well below 1/N.
            adjacency: Neighbouring relation of the proven guarantee: "zero_out", "replace_one" or
                "add_or_remove_one".
            random_trials: The mean that was passed to `draw_trials` before the search, if only the
                best trial is released. None for a statement about all trials together.

        Raises:
            ValueError: If there are no trials, or an argument is invalid.

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
            raise ValueError("There are no trials. Pass the ledger of each training of the search.")
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
        """Makes the statement of runs from guarantees that are already computed."""
        facts = Facts(runs, claimed, proven)
        return cls(
            verdict=first_of(VERDICT, facts, f=facts),
            executed=wording.executed(runs) or ("Nothing yet.",),
            released=f"{proven.released}."
            + (" The guarantee is for all of this together." if runs and not proven.reason else ""),
            neighbours=f"{proven.neighbours} ({proven.adjacency}).",
            claimed=claimed,
            proven=proven,
            meaning=meaning(facts),
            assumptions=proven.assumptions or (() if runs else (START["assumed"],)),
            not_covered=() if math.isinf(proven.epsilon) else NOT_COVERED,
            planned=planned,
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns all attributes in JSON-safe form; tuples and `meaning` become lists."""
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        parts |= {"claimed": self.claimed.to_dict(), "proven": self.proven.to_dict()}
        parts["meaning"] = [*self.meaning.values()]
        return {name: [*v] if isinstance(v, tuple) else v for name, v in parts.items()}

    def rows(self) -> list[tuple[str, str]]:
        """Returns the statement as at most five (heading, text) rows."""
        number = len(self.executed)
        trained = self.executed[0] if number == 1 else f"{number} different trainings."
        plan = " This is a plan: nothing is trained yet." if self.planned else ""
        basis = f"{'if trained as planned' if self.planned else 'as trained'}: {trained}"
        names = (each.name for each in self.assumptions if isinstance(each, Declared))
        confirm = "; ".join(dict.fromkeys(names))
        covered = f"Not covered: {NOT_COVERED_SHORT}" if self.not_covered else ""
        rows = [
            ("Verdict", self.verdict + plan),
            ("Attacker", self._of("belief", "rates")),
            ("Proven", f"{figure(self.proven)}, {basis}"),
            (
                "Claimed",
                f"{figure(self.claimed)}, by the paper's formula. {self._of('comparison')}",
            ),
            ("Confirm", f"{confirm}. {covered}" if confirm else ""),
        ]
        return [(name, words.strip()) for name, words in rows if words]

    def text(self, full: bool = False, more: str = "full=True") -> str:
        """Returns the statement as text for a terminal.

        Args:
            full: Whether to list all assumptions, explanations and limits, instead of five lines.
            more: What the reader has to pass for the full text, shown after the five lines.
        """
        lines = [f"{name + ':':9} {words}" for name, words in self.rows()]
        if not full:
            lines[-1] += f" For details: {more}."
            return "\n".join(lines)
        about = " about a plan: tfdp has trained nothing" if self.planned else ""
        lines = [f"Privacy statement{about}", *lines]
        lines += [f"Released: {self.released}", f"Neighbours: {self.neighbours}"]
        for title, sentences in self._lists():
            lines += [f"{title}:", *(f"  - {sentence}" for sentence in sentences)]
        return "\n".join(lines)

    def markdown(self) -> str:
        """Returns the statement as a section of a model card, in Markdown."""
        table = (
            "| guarantee | epsilon | delta | neighbours |",
            "| --- | --- | --- | --- |",
            *(
                f"| {g.kind} | {format_epsilon(g.epsilon)} | {g.delta:g} | {g.adjacency} |"
                for g in (self.proven, self.claimed)
            ),
        )
        blocks = ["## Privacy", f"**{self.verdict}**", "\n".join(table)]
        blocks += [f"Released: {self.released}", f"Neighbours: {self.neighbours}"]
        for title, sentences in self._lists():
            blocks += [f"### {title}", "\n".join(f"- {sentence}" for sentence in sentences)]
        return "\n\n".join(blocks) + "\n"

    def __repr__(self) -> str:
        epsilons = (f"{g.kind}={rounded_up(g.epsilon, 4):g}" for g in (self.proven, self.claimed))
        about = f"delta={self.proven.delta:g}, adjacency={self.proven.adjacency!r}"
        return f"Statement({', '.join(epsilons)}, {about})"

    def _repr_html_(self) -> str:
        return html_table(self.rows())

    def _of(self, *topics: str) -> str:
        return " ".join(self.meaning[topic] for topic in topics if topic in self.meaning)

    def _lists(self) -> list[tuple[str, tuple[str, ...]]]:
        declared = tuple(each for each in self.assumptions if isinstance(each, Declared))
        lists = [
            ("What is planned" if self.planned else "What was executed", self.executed),
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


def figure(guarantee: Guarantee) -> str:
    """Returns a guarantee in a few words."""
    epsilon = f"{'' if guarantee.vacuous else 'epsilon '}{format_epsilon(guarantee.epsilon)}"
    return f"{epsilon} at delta {guarantee.delta:g} ({guarantee.adjacency})"


def _of_the_best(trials, delta, adjacency, mean):
    """The statement of the best of a random number of trials, which does not reveal that number."""
    runs = [ledger.runs for ledger in trials]
    proven = of_random_search(runs, delta, adjacency, mean)
    claims = (composition.claimed(each, delta, adjacency) for each in runs)
    claimed = max(claims, key=lambda claim: claim.epsilon)
    together = [run for each in runs for run in each]
    said = Statement.from_guarantees(together, claimed, proven, planned=False)
    return dataclasses.replace(
        said,
        executed=(f"A random number of trainings, {mean:g} on average.",),
        released=f"The best training only, with {said.released}",
        meaning=said.meaning
        | {
            "comparison": "Claimed is for one training only, as if the best of many were the only one.",
            "search": "The number of trainings, the others and their ledgers stay secret.",
        },
    )


class StatementText(str):
    """The text of a statement, which notebooks show as a table."""

    html: str

    @classmethod
    def of(cls, statement: Statement, full: bool = False) -> "StatementText":
        """Returns the text of a statement, in full or in five lines."""
        text = cls(statement.text(full))
        text.html = f"<pre>{html.escape(text)}</pre>" if full else statement._repr_html_()
        return text

    def _repr_html_(self) -> str:
        return self.html
