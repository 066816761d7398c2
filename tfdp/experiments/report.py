"""Reports of an experiment: the final table, the model card and the record for run.json."""

import math

from rich.console import Console
from rich.table import Table

from tfdp.accounting import VACUOUS_ABOVE, Guarantee, Run
from tfdp.experiments.experiment import Result


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
    strategy = getattr(run, "strategy", None)
    return {
        "mechanism": experiment.mechanism,
        "dataset": experiment.dataset,
        "model": experiment.model,
        "normalization": experiment.normalization,
        # The seed of the initial weights is public. A seed of the noise is never written beside a
        # release.
        "seed_of_initial_weights": experiment.seed,
        "insecure_seed": experiment.insecure_seed is not None,
        "num_examples": run.num_examples,
        "lot_size": run.lot_size,
        "steps": run.steps,
        "sampling": run.sampling_name,
        "groups": run.groups,
        "strategy": strategy and strategy.name,
        "bands": strategy and strategy.bands,
        "microbatch_size": run.microbatch_size,
        "l2_norm_clip": run.l2_norm_clip,
        "clip_groups": run.clip_groups,
        "composition": getattr(run, "composition", None),
        "noise_multiplier": getattr(run, "noise_multiplier", 0.0),
        "learning_rate": experiment.learning_rate,
        "release": getattr(run, "release", None),
        "test_accuracy": result.test_accuracy,
        "claimed": result.claimed.to_dict(),
        "proven": result.proven.to_dict(),
        "seconds_per_step": _finite(result.seconds_per_step),
        "seconds": result.seconds,
        "advice": result.advice,
        "statement": result.statement.to_dict(),
        "settings": experiment.recorded(),
    }


def card(result: Result) -> str:
    """Returns the model card in Markdown: the training, the accuracy and the privacy statement.

    Example:
        >>> from tfdp.experiments import Experiment, card, run
        >>> experiment = Experiment(
        ...     mechanism="dpsgd", model="linear", sampling="cyclic", batch_size=479,
        ...     steps=3, noise_multiplier=4.0, seed=1)
        >>> print(card(run(experiment, verbose=0)))
        # linear on digits
        ...
        | proven | 0.9263 | 1e-05 | zero_out |
        ...
    """
    experiment, run = result.experiment, result.run
    lines = [
        f"# {experiment.model} on {experiment.dataset}",
        "",
        f"- Mechanism: {_mechanism(result)}",
        f"- Training: {run.steps:,} steps; nominal lot {run.lot_size:,}; {run.sampling.words}",
        f"- Test accuracy: {100 * result.test_accuracy:.2f}%",
        "",
        result.statement.markdown(),
    ]
    return "\n".join(lines)


def print_table(result: Result, console: Console | None = None) -> None:
    """Prints one table: the training, the accuracy and both guarantees.

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
    console = console or Console()
    experiment, run = result.experiment, result.run
    table = Table(title="Result", show_header=False, title_justify="left", pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("Data", f"{experiment.dataset}, N = {run.num_examples:,} training examples")
    table.add_row("Model", f"{experiment.model}, normalization: {experiment.normalization}")
    table.add_row("Mechanism", _mechanism(result))
    table.add_row(
        "Training",
        f"{run.steps:,} steps, nominal lot {run.lot_size:,}; sampling: {run.sampling.words}",
    )
    if experiment.private:
        table.add_row("Noise", f"multiplier z = {run.noise_multiplier:.4g}, {_clip_norm(run)}")
    if math.isfinite(result.seconds_per_step):
        table.add_row(
            "Time", f"{result.seconds:.1f} s, {1e3 * result.seconds_per_step:.1f} ms a step"
        )
    released = (
        "un-noised means (mu)" if getattr(run, "release", None) == "mu" else "released weights"
    )
    table.add_section()
    table.add_row(
        "Test accuracy", f"[bold]{100 * result.test_accuracy:.2f}%[/bold] of the {released}"
    )
    table.add_section()
    for guarantee in (result.claimed, result.proven):
        table.add_row(guarantee.kind.capitalize(), _guarantee(guarantee))
    said = result.statement
    for title, sentences in (
        ("Warning", said.warnings),
        ("What it means", said.meaning),
        ("Proven if", said.assumptions),
        ("Not covered", said.not_covered),
    ):
        if sentences:
            table.add_row(title, "\n".join(f"- {sentence}" for sentence in sentences))
    if result.advice:
        table.add_section()
        table.add_row("Better still", f"{result.advice}\nTry: {_alternative(result)}")
    console.print(table)


def _alternative(result) -> str:
    """Returns the command that trains with DP-SGD at the same proven epsilon.

    The command has epsilon 2 if the proven epsilon is zero, infinite or vacuous.
    """
    dataset = result.experiment.dataset
    where = "" if dataset == "digits" else f" --dataset={dataset}"
    proven = result.proven.epsilon
    epsilon = f"{proven:.4g}" if 0 < proven <= VACUOUS_ABOVE else "2"
    return f"python train.py --mechanism=dpsgd{where} --epsilon={epsilon}"


def _mechanism(result):
    experiment = result.experiment
    title = getattr(result.model.optimizer, "title", "none (no privacy)")
    rule = experiment.optimizer
    if experiment.optimizer == "sgd" and experiment.momentum:
        rule = f"sgd, {'Nesterov ' if experiment.nesterov else ''}momentum {experiment.momentum:g}"
    strategy = getattr(result.run, "strategy", None)
    if strategy is not None:
        title += f": {strategy.name}"
        title += "" if strategy.bands is None else f" of {strategy.bands} bands"
    return f"{title}, update rule: {rule}"


def _clip_norm(run: Run) -> str:
    text = f"clip norm C = {run.l2_norm_clip:g}"
    if run.clip_groups > 1:
        text += f" in each of {run.clip_groups} layers"
    return f"{text} at first, then adaptive" if run.adaptive_clipping else text


def _guarantee(guarantee: Guarantee) -> str:
    if math.isinf(guarantee.epsilon):
        value = f"epsilon = infinite: {guarantee.reason}"
    elif guarantee.vacuous:
        value = f"[bold]vacuous[/bold] (epsilon = {guarantee.epsilon:,.0f}"
        value += f"), delta = {guarantee.delta:g}"
    else:
        value = f"epsilon = [bold]{guarantee.epsilon:.4f}[/bold], delta = {guarantee.delta:g}"
    return f"{value}\nadjacency: {guarantee.adjacency}; released: {guarantee.released}"


def _finite(value):
    return value if math.isfinite(value) else None
