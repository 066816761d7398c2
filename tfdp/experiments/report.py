"""Reports of an experiment: the final table, the model card and the record for run.json."""

import math

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdp.accounting import VACUOUS_ABOVE, Guarantee
from tfdp.accounting.guarantee import format_epsilon
from tfdp.experiments import facts
from tfdp.experiments.console import command_line
from tfdp.experiments.experiment import Result
from tfdp.experiments.settings import SETTINGS


def record(result: Result) -> dict:
    """Returns the JSON-safe record of what was executed; `RunFolder` adds the settings."""
    run = result.run
    return {
        "num_examples": run.sampling.num_examples,
        "lot_size": run.sampling.lot_size,
        "steps": run.steps,
        "noise_multiplier": getattr(run.mechanism, "noise_multiplier", 0.0),
        "test_accuracy": result.test_accuracy,
        "curve": [list(point) for point in result.curve],
        "claimed": result.claimed.to_dict(),
        "proven": result.proven.to_dict(),
        "seconds": result.seconds,
        "statement": result.statement.to_dict(),
        "runs": [run.to_dict() for run in result.runs],
        "notes": list(result.notes),
        # What `--initial_weights` of another training looks at.
        "trained_on": list(result.trained_on),
        "training": {"restarts": result.restarts, "lost_steps": result.lost_steps},
    }


def card(result: Result, command: str | None = None) -> str:
    """Returns the model card in Markdown: the training, the accuracy and the privacy statement.

    Args:
        result: the result.
        command: the command that makes such a model; None leaves it out.
    """
    lines = [f"# {result.experiment.model} on {result.experiment.dataset}", ""]
    lines += [f"- {name}: {said}" for name, said in _facts(result)]
    if command is not None:
        lines += ["", "Such a model is made by", "", f"    {command}"]
    return "\n".join([*lines, "", result.statement.markdown()])


def print_table(result: Result, console: Console | None = None, folder: str | None = None) -> None:
    """Prints what a person wants to know at the end; the model card has the whole statement.

    Warnings about privacy, and the reason of an infinite epsilon, are always printed.

    Args:
        result: the result.
        console: the console to print to; by default the terminal.
        folder: the folder of the result as the user would type it; None says nothing of it.
    """
    said, console = result.statement, console or Console()
    table = Table(title="Result", show_header=False, title_justify="left", pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    rows = [*_facts(result), *(("Warning", sentence) for sentence in said.warnings)]
    rows += [("Proven epsilon", _guarantee(said.proven))]
    rows += [("", said.belief)] if math.isfinite(said.proven.epsilon) else []
    rows += [("Claimed epsilon", _guarantee(said.claimed)), ("", said.comparison)]
    rows.append(("Released", said.released))
    if advice := result.run.mechanism.advice:
        # The reason of an infinite epsilon stands above.
        advice = "" if math.isinf(said.proven.epsilon) else f"{advice} "
        rows.append(("Compare", f"{advice}Try: {_alternative(result)}"))
    for name, words in rows:
        if words:
            table.add_row(name, escape(words))
    console.print("", table)
    print("What the guarantee assumes, and what it does not cover, is in the model card.")
    if folder is not None:
        print(f"In {folder}: model.keras (the release), model_card.md, run.json (all figures).")
        print(f"The log: tensorboard --logdir {folder}")


def one_line(result: Result) -> str:
    """Returns the end of one point of a sweep in one line, and its warnings."""
    figures = (
        f"{g.kind} epsilon {format_epsilon(g.epsilon)}" for g in (result.proven, result.claimed)
    )
    line = f"{100 * result.test_accuracy:.2f}% test accuracy; {'; '.join(figures)}."
    if result.proven.reason:
        line += f" Nothing is proven: {result.proven.reason}"
    return " ".join([line, *(f"Warning: {sentence}" for sentence in result.statement.warnings)])


def _facts(result) -> list[tuple[str, str]]:
    """What was trained, in words, with headings: the settings, and what became of them."""
    experiment, run = result.experiment, result.run
    accuracy = f"{100 * result.test_accuracy:.2f}% of the {_released(result)}"
    known = {"Test accuracy": accuracy, "Mechanism": _title(result), **facts.facts(experiment)}
    known["Training"] = (
        f"{run.steps:,} steps with nominal lots of {run.sampling.lot_size:,} out of "
        f"{run.sampling.num_examples:,} examples of {experiment.dataset}; {run.sampling.words}; "
        f"{result.seconds:.1f} s"
    )
    if experiment.private:
        known["Noise"] = f"multiplier {_noise(run)}"
    if result.restarts:
        known["Interrupted"] = _interrupted(result)
    return [*known.items(), *(("Note", note) for note in result.notes)]


def _released(result) -> str:
    if result.experiment.weight_noise:
        draws = result.experiment.noise_draws
        return f"network with the weight noise (mean of {draws} draws; the release has none)"
    if getattr(result.run.mechanism, "release", None) == "mu":
        return "un-noised means (mu)"
    return "released weights"


def _interrupted(result) -> str:
    """Says how often the training was resumed, and what that has cost."""
    times, lost = f"{result.restarts} times", result.lost_steps
    if not result.experiment.private:
        return f"{times}; what came after the last state was trained again"
    return f"{times}; steps that crashes lost, counted and not in the weights: {lost:,}"


def _alternative(result) -> str:
    """Returns the command that trains with the default mechanism at about the same proven epsilon.

    The command has epsilon 2 if the proven epsilon is zero, infinite or vacuous.
    """
    dataset, proven = result.experiment.dataset, result.proven.epsilon
    epsilon = f"{proven:.2g}" if 0 < proven <= VACUOUS_ABOVE else "2"
    where = "" if dataset == SETTINGS["dataset"].default else f" --dataset={dataset}"
    mechanism = SETTINGS["mechanism"].default
    return f"{command_line()} --mechanism={mechanism}{where} --epsilon={epsilon}"


def _title(result) -> str:
    """Returns the mechanism in words."""
    title = getattr(result.model.optimizer, "title", "none (no privacy)")
    strategy = getattr(result.run.mechanism, "strategy", None)
    if strategy is not None:
        title += f": {strategy.name}"
        title += "" if strategy.bands is None else f" of {strategy.bands} bands"
    return title


def _noise(run) -> str:
    noise = run.mechanism.noise_multiplier
    if isinstance(noise, tuple):
        return f"{noise[0]:.4g} in the first step to {noise[-1]:.4g} in the last one"
    return f"{noise:.4g}"


def _guarantee(guarantee: Guarantee) -> str:
    epsilon = format_epsilon(guarantee.epsilon)
    if math.isinf(guarantee.epsilon):
        return f"{epsilon}: {guarantee.reason}"
    return f"{epsilon}, delta = {guarantee.delta:g}, adjacency: {guarantee.adjacency}"
