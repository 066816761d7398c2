"""Reports of an experiment: the final table, the model card and the record for run.json."""

import math

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdp.accounting import VACUOUS_ABOVE, Guarantee, Run, Statement
from tfdp.accounting.guarantee import format_epsilon
from tfdp.experiments.announcement import network, update_rule
from tfdp.experiments.console import command_line
from tfdp.experiments.experiment import Result
from tfdp.experiments.settings import SETTINGS


def record(result: Result) -> dict:
    """Returns the JSON-safe record of a result: the run, both guarantees and the settings.

    Example:
        >>> from tfdp.experiments import Experiment, record, run
        >>> experiment = Experiment(
        ...     mechanism="dpsgd", model="linear", sampling="cyclic", batch_size=479,
        ...     steps=3, noise_multiplier=4.0, seed=1)
        >>> content = record(run(experiment, verbose=0))
        >>> content["mechanism"], content["steps"], round(content["proven"]["epsilon"], 3)
        ('dpsgd', 3, 0.926)
    """
    experiment, run = result.experiment, result.run
    mechanism, sampling, contribution = run.mechanism, run.sampling, run.contribution
    strategy = getattr(mechanism, "strategy", None)
    return {
        "mechanism": experiment.mechanism,
        "dataset": experiment.dataset,
        "model": experiment.model,
        "normalization": experiment.normalization,
        # The seed of the initial weights is public. A seed of the noise is never written beside a
        # release.
        "seed_of_initial_weights": experiment.seed,
        "insecure_seed": experiment.insecure_seed is not None,
        "num_examples": sampling.num_examples,
        "lot_size": sampling.lot_size,
        "steps": run.steps,
        "sampling": sampling.name,
        "groups": sampling.groups,
        "strategy": strategy and strategy.name,
        "bands": strategy and strategy.bands,
        "microbatch_size": contribution.microbatch_size,
        "l2_norm_clip": contribution.l2_norm_clip,
        "clip_groups": contribution.clip_groups,
        "composition": getattr(mechanism, "composition", None),
        "noise_multiplier": getattr(mechanism, "noise_multiplier", 0.0),
        "learning_rate": experiment.learning_rate,
        "release": getattr(mechanism, "release", None),
        "test_accuracy": result.test_accuracy,
        "curve": [list(point) for point in result.curve],
        "claimed": result.claimed.to_dict(),
        "proven": result.proven.to_dict(),
        "seconds_per_step": _finite(result.seconds_per_step),
        "seconds": result.seconds,
        "advice": result.advice,
        "statement": result.statement.to_dict(),
        "runs": [run.to_dict() for run in result.runs],
        "notes": list(result.notes),
        # What `--initial_weights` of another training looks at.
        "trained_on": list(result.trained_on),
        "training": {"restarts": result.restarts, "lost_steps": result.lost_steps},
        "settings": experiment.recorded(),
    }


def card(result: Result, command: str | None = None) -> str:
    """Returns the model card in Markdown: the training, the accuracy and the privacy statement.

    Args:
        result: the result.
        command: the command that makes such a model; None leaves it out.

    Example:
        >>> from tfdp.experiments import Experiment, card, run
        >>> experiment = Experiment(
        ...     mechanism="dpsgd", model="linear", sampling="cyclic", batch_size=479,
        ...     steps=3, noise_multiplier=4.0, seed=1)
        >>> print(card(run(experiment, verbose=0)))
        # linear on digits
        ...
        | proven | 0.9264 | 1e-05 | zero_out |
        ...
    """
    experiment, run = result.experiment, result.run
    lines = [
        f"# {experiment.model} on {experiment.dataset}",
        "",
        f"- Data: {experiment.dataset}, {run.sampling.num_examples:,} training examples",
        f"- Model: {network(experiment)}, activation {experiment.activation}",
        f"- Mechanism: {_title(result)}",
        f"- Optimizer: {update_rule(experiment)}",
        f"- Training: {run.steps:,} steps; nominal lot {run.sampling.lot_size:,}; "
        f"{run.sampling.words}",
    ]
    if experiment.private:
        lines.append(f"- Noise multiplier: {_noise(run)}; {_clip_norm(run)}")
    lines += [f"- {note}" for note in result.notes]
    noisy = f" of the {_released(result)}" if experiment.weight_noise else ""
    lines.append(f"- Test accuracy: {100 * result.test_accuracy:.2f}%{noisy}")
    if result.restarts:
        lines.append(f"- Interrupted: {_interrupted(result)}")
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

    Example:
        >>> from tfdp.experiments import Experiment, print_table, run
        >>> experiment = Experiment(
        ...     mechanism="dpsgd", model="linear", sampling="cyclic", batch_size=479,
        ...     steps=3, noise_multiplier=4.0, seed=1)
        >>> print_table(run(experiment, verbose=0))
        Result
        ...Test accuracy ... of the released weights...
        ...Proven...0.926...
    """
    said, experiment = result.statement, result.experiment
    table = Table(title="Result", show_header=False, title_justify="left", pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("Test accuracy", f"[bold]{_accuracy(result)}[/bold] of the {_released(result)}")
    for sentence in said.warnings:
        table.add_row("[bold]Warning[/bold]", escape(sentence))
    table.add_section()
    table.add_row("Proven", _guarantee(result.proven))
    if math.isfinite(result.proven.epsilon):
        table.add_row("", escape(said.belief))
    table.add_row("Claimed", _guarantee(result.claimed))
    if said.comparison:
        table.add_row("", escape(said.comparison))
    table.add_row("Released", escape(said.released))
    table.add_section()
    rule = update_rule(experiment)
    table.add_row("Model", f"{network(experiment)}, trained with {_title(result)}, {rule}")
    table.add_row("Steps", _steps(result))
    for note in result.notes:
        table.add_row("Note", escape(note))
    if result.restarts:
        table.add_row("Interrupted", _interrupted(result))
    if experiment.private:
        table.add_row("Noise", f"multiplier z = {_noise(result.run)}, {_clip_norm(result.run)}")
    if result.advice:
        table.add_section()
        table.add_row("Compare", _comparison(result))
    console = console or Console()
    console.print(table)
    console.print(_rests_on(result.statement), markup=False, highlight=False)
    if folder is not None:
        # Commands and paths are not cut at the end of a line, so that they can be copied.
        for line in (
            f"In {folder}: model.keras (the release), model_card.md, run.json (all figures).",
            f"The log: tensorboard --logdir {folder}",
        ):
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def one_line(result: Result) -> str:
    """Returns the end of one point of a sweep in one line, and its warnings."""
    figures = [
        f"{g.kind} epsilon {format_epsilon(g.epsilon)}" for g in (result.proven, result.claimed)
    ]
    line = f"{_accuracy(result)} test accuracy; {'; '.join(figures)}."
    if result.proven.reason:
        line += f" Nothing is proven: {result.proven.reason}"
    return " ".join([line, *(f"Warning: {sentence}" for sentence in result.statement.warnings)])


def _rests_on(said: Statement) -> str:
    """Says that there is more to know about the guarantee, and where."""
    rests = f"rests on {len(said.assumptions)} assumptions and " if said.assumptions else ""
    return (
        f"The guarantee {rests}does not cover {len(said.not_covered)} things, such as the metrics of "
        "the training: read all of them in the model card."
    )


def _accuracy(result) -> str:
    return f"{100 * result.test_accuracy:.2f}%"


def _released(result) -> str:
    if result.experiment.weight_noise:
        draws = result.experiment.noise_draws
        return f"network with the weight noise (mean of {draws} draws; the release has none)"
    return (
        "un-noised means (mu)"
        if getattr(result.run.mechanism, "release", None) == "mu"
        else "released weights"
    )


def _steps(result) -> str:
    run = result.run
    words = (
        f"{run.steps:,} with nominal lots of {run.sampling.lot_size:,} out of "
        f"{run.sampling.num_examples:,} examples of {result.experiment.dataset}; "
        f"{run.sampling.words}; {result.seconds:.1f} s"
    )
    if math.isfinite(result.seconds_per_step):
        words += f", {1e3 * result.seconds_per_step:.1f} ms a step"
    return escape(words)


def _interrupted(result) -> str:
    """Says how often the training went on, and what that has cost."""
    times = "once" if result.restarts == 1 else f"{result.restarts} times"
    lost = result.lost_steps
    if not result.experiment.private:
        return f"{times}; what came after the last state was trained again"
    if not lost:
        return f"{times}; no step was lost"
    steps = "1 step that a crash lost is" if lost == 1 else f"{lost:,} steps that crashes lost are"
    return f"{times}; {steps} counted and not in the weights"


def _comparison(result) -> str:
    """Returns the advice; without its reason of an infinite epsilon, which stands above."""
    if math.isinf(result.proven.epsilon):
        return f"For a mechanism with a proven epsilon, try: {_alternative(result)}"
    return f"{escape(result.advice)}\nTry: {_alternative(result)}"


def _alternative(result) -> str:
    """Returns the command that trains with the default mechanism at the same proven epsilon.

    The command has epsilon 2 if the proven epsilon is zero, infinite or vacuous.
    """
    experiment, proven = result.experiment, result.proven.epsilon
    epsilon = f"{proven:.4g}" if 0 < proven <= VACUOUS_ABOVE else "2"
    if experiment.noise_multiplier is None and experiment.guarantee == result.proven.kind:
        epsilon = f"{experiment.epsilon:g}"
    dataset = experiment.dataset
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


def _clip_norm(run: Run) -> str:
    contribution = run.contribution
    text = f"clip norm C = {contribution.l2_norm_clip:g}"
    if contribution.clip_groups > 1:
        text += f" in each of {contribution.clip_groups} layers"
    return f"{text} at first, then adaptive" if contribution.adaptive_clipping else text


def _guarantee(guarantee: Guarantee) -> str:
    if math.isinf(guarantee.epsilon):
        return f"[bold]epsilon = infinite[/bold]: {escape(guarantee.reason)}"
    if guarantee.vacuous:
        value = f"[bold]vacuous[/bold] (epsilon = {math.ceil(guarantee.epsilon):,})"
    else:
        value = f"[bold]epsilon = {guarantee.epsilon:.4f}[/bold]"
    return f"{value}, delta = {guarantee.delta:g}, adjacency: {guarantee.adjacency}"


def _finite(value):
    return value if math.isfinite(value) else None
