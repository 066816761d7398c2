"""Reports a result: in the final table, the model card and the record in run.json."""

import math

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdp.accounting.guarantee import format_epsilon
from tfdp.accounting.sentences import Declared, first_of
from tfdp.accounting.statements import figure
from tfdp.accounting.wording import ADVICE
from tfdp.experiments.command import command_of
from tfdp.experiments.experiment import Result
from tfdp.experiments.run_folder import PICTURE


def record(result: Result) -> dict:
    """Returns the JSON-safe record of an executed experiment. `RunFolder` adds the settings."""
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


def card(result: Result, picture: bool = False) -> str:
    """Returns the model card in Markdown: the training, the accuracy and the privacy statement.

    Args:
        result: The result.
        picture: Whether to show the picture in the same folder.
    """
    lines = [f"# {result.experiment.model} on {result.experiment.dataset}", ""]
    lines += [f"- {name}: {said}" for name, said in _facts(result)]
    lines += ["", "Command:", "", f"    {command_of(result.experiment)}"]
    lines += ["", result.statement.markdown()]
    if picture:
        lines.append(f"![Epsilon over the steps; what an attacker can find]({PICTURE})\n")
    return "\n".join(lines)


def print_table(result: Result, console: Console | None = None, folder: str | None = None) -> None:
    """Prints a summary of a result, verdict first. The model card has the full statement.

    Args:
        result: The result.
        console: The console to print to. By default the terminal.
        folder: The folder of the result, as shown to the user. None omits it.
    """
    said, console = result.statement, console or Console()
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    shown = dict(said.rows()) | {"Proven": figure(said.proven)}
    confirm = sum(isinstance(each, Declared) for each in said.assumptions)
    shown["Confirm"] = f"{confirm} assumptions; the model card lists them." if confirm else ""
    if math.isfinite(said.proven.epsilon):
        shown["Compare"] = first_of(ADVICE, result.run)
    for name, words in (*shown.items(), *_facts(result)):
        if words and name != "Settings":  # already in the command's first line
            table.add_row(name, escape(words))
    console.print("", table)
    if folder is not None:
        print(f"Release: {folder}/model.keras. Log: tensorboard --logdir {folder}")


def one_line(result: Result) -> str:
    """Returns a one-line summary of a point of a sweep, with its verdict."""
    figures = (
        f"{g.kind} epsilon {format_epsilon(g.epsilon)}" for g in (result.proven, result.claimed)
    )
    accuracy = f"{100 * result.test_accuracy:.2f}% test accuracy"
    return f"{accuracy}; {'; '.join(figures)}. {result.statement.verdict}"


def _facts(result) -> list[tuple[str, str]]:
    """Returns pairs (heading, text) about the training and its accuracy."""
    experiment, run = result.experiment, result.run
    title = getattr(result.model.optimizer, "title", "no privacy")
    noise = f", noise multiplier {_noise(run)}" if experiment.private else ""
    facts = [
        ("Test accuracy", f"{100 * result.test_accuracy:.2f}% of the {_released(result)}"),
        (
            "Training",
            f"{title}: {run.steps:,} steps, {run.sampling.words}, {run.sampling.lot_size:,} of "
            f"{run.sampling.num_examples:,} examples of {experiment.dataset}{noise}; "
            f"{result.seconds:.1f} s",
        ),
        ("Settings", str(experiment)),
    ]
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
