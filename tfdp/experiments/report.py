"""Reports of an experiment: the final table, the model card and the record for run.json."""

import math

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdp.accounting import Guarantee
from tfdp.accounting.guarantee import format_epsilon
from tfdp.accounting.sentences import first_of
from tfdp.accounting.wording import ADVICE
from tfdp.experiments.command import command_of
from tfdp.experiments.experiment import Result


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
        "training": {"restarts": result.restarts, "lost_steps": result.lost_steps},
    }


def card(result: Result) -> str:
    """Returns the model card in Markdown: the training, the accuracy and the privacy statement."""
    lines = [f"# {result.experiment.model} on {result.experiment.dataset}", ""]
    lines += [f"- {name}: {said}" for name, said in _facts(result)]
    lines += ["", "Command:", "", f"    {command_of(result.experiment)}"]
    return "\n".join([*lines, "", result.statement.markdown()])


def print_table(result: Result, console: Console | None = None, folder: str | None = None) -> None:
    """Prints the results in short; the model card has the whole statement.

    Warnings about privacy, and the reason of an infinite epsilon, are always printed.

    Args:
        result: the result.
        console: the console to print to; by default the terminal.
        folder: the folder of the result as the user would type it; None does not mention it.
    """
    said, console = result.statement, console or Console()
    finite = math.isfinite(said.proven.epsilon)
    table = Table(title="Result", show_header=False, title_justify="left", pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, words in (
        *_facts(result),
        *(("Warning", sentence) for sentence in said.warnings),
        ("Proven epsilon", _guarantee(said.proven)),
        *(("", said.meaning.get(topic) if finite else "") for topic in ("belief", "rates")),
        ("Claimed epsilon", _guarantee(said.claimed)),
        ("", said.meaning.get("comparison")),
        ("Released", said.released),
        ("Compare", first_of(ADVICE, result.run) if finite else ""),
    ):
        if words:
            table.add_row(name, escape(words))
    console.print("", table)
    print("The model card lists the assumptions, and what is not covered.")
    if folder is not None:
        print(f"In {folder}: model.keras (the release), model_card.md, run.json (all figures).")
        print(f"The log: tensorboard --logdir {folder}")


def one_line(result: Result) -> str:
    """Returns one line about a point of a sweep, with its warnings."""
    figures = (
        f"{g.kind} epsilon {format_epsilon(g.epsilon)}" for g in (result.proven, result.claimed)
    )
    line = f"{100 * result.test_accuracy:.2f}% test accuracy; {'; '.join(figures)}."
    if result.proven.reason:
        line += f" Nothing is proven: {result.proven.reason}"
    return " ".join([line, *(f"Warning: {sentence}" for sentence in result.statement.warnings)])


def _facts(result) -> list[tuple[str, str]]:
    """The training and its accuracy in words, with headings."""
    experiment, run = result.experiment, result.run
    facts = [
        ("Test accuracy", f"{100 * result.test_accuracy:.2f}% of the {_released(result)}"),
        ("Mechanism", getattr(result.model.optimizer, "title", "none (no privacy)")),
        (
            "Training",
            f"{run.steps:,} steps with nominal lots of {run.sampling.lot_size:,} out of "
            f"{run.sampling.num_examples:,} examples of {experiment.dataset}; {run.sampling.words}; "
            f"{result.seconds:.1f} s",
        ),
        ("Settings", str(experiment)),
    ]
    if experiment.private:
        facts.append(("Noise", f"multiplier {_noise(run)}"))
    if result.restarts:
        lost = f"; steps lost in crashes, counted and not in the weights: {result.lost_steps:,}"
        times = "once" if result.restarts == 1 else f"{result.restarts} times"
        facts.append(("Interrupted", f"{times}{lost if experiment.private else ''}"))
    return [*facts, *(("Note", note) for note in result.notes)]


def _released(result) -> str:
    if result.experiment.weight_noise:
        draws = result.experiment.noise_draws
        return f"network with the weight noise (mean of {draws} draws; the release has none)"
    if getattr(result.run.mechanism, "release", None) == "mu":
        return "un-noised means (mu)"
    return "released weights"


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
