"""Audits an experiment: trains it with canaries and compares with its guarantees."""

import importlib.util
import json
import os

from rich.console import Console

from tfdp._files import replaced_whole
from tfdp.auditing import Audit, DiracCanaries, audit, draw, print_table, verdict
from tfdp.experiments.experiment import run
from tfdp.experiments.result_files import AUDIT as FILES
from tfdp.experiments.settings import Experiment

__all__ = ["FILES", "audit_experiment", "report"]


def audit_experiment(
    experiment: Experiment,
    *,
    canaries: int = 500,
    runs: int = 1,
    guesses: int | None = None,
    observe: str = "every",
    confidence: float = 0.95,
    seed: int = 0,
    verbose: int | str = 0,
) -> Audit:
    """Trains an experiment with canaries and returns the audit.

    The canaries are records of the training, so the audited training has more examples than the
    experiment without them, and noise that is calibrated to an epsilon is calibrated anew.

    Args:
        experiment: the settings.
        canaries: number of canaries.
        runs, guesses, observe, confidence, seed: as in `tfdp.auditing.audit`.
        verbose: as in `keras.Model.fit`.

    Raises:
        ValueError: the experiment has no privacy to audit, has its noise from a seed, or an argument
            is not in its range.

    Example:
        >>> from tfdp.experiments import Experiment, audit_experiment
        >>> experiment = Experiment(
        ...     mechanism="dpsgd", model="linear", sampling="cyclic", batch_size=479,
        ...     steps=3, noise_multiplier=4.0)
        >>> found = audit_experiment(experiment, canaries=100)
        >>> found.refutes("proven")
        False
    """
    if not experiment.private:
        raise ValueError(
            "Expected an experiment with a private mechanism. Received mechanism='none', which states "
            "no epsilon that an audit could refute."
        )
    if experiment.insecure_seed is not None and runs > 1:
        raise ValueError(
            "Expected insecure_seed to be unset for an audit of several trainings: all would have the "
            "same noise. Received insecure_seed and runs > 1."
        )

    def train(world):
        return run(experiment, verbose=verbose, world=world).model

    return audit(
        train,
        DiracCanaries(canaries),
        delta=experiment.delta,
        adjacency=experiment.adjacency,
        runs=runs,
        guesses=guesses,
        observe=observe,
        confidence=confidence,
        seed=seed,
    )


def report(
    found: Audit,
    kind: str,
    console: Console | None = None,
    json_file: str | os.PathLike | None = None,
    plot_file: str | os.PathLike | None = None,
    command: str | None = None,
) -> int:
    """Prints an audit, writes it for programs and draws it.

    Args:
        found: the audit.
        kind: the guarantee that was asked for, "claimed" or "proven".
        console: the console to print to; by default the terminal.
        json_file, plot_file: files to write; None writes none. The picture is left out, which is said,
            if matplotlib is missing.
        command: the command that makes the training, for the JSON file.

    Returns:
        1 if the guarantee is refuted, 0 if it stands.
    """
    console = console or Console()
    print_table(found, console)
    console.print(verdict(found, kind), highlight=False)
    if json_file is not None:
        content = {"command": command, "guarantee": kind, **found.to_dict()}
        with replaced_whole(json_file) as path, open(path, "w") as file:
            json.dump(content, file, indent=2)
            file.write("\n")
    if plot_file is not None:
        if importlib.util.find_spec("matplotlib") is None:
            console.print("No picture: matplotlib is not installed (pip install 'tfdp\\[plot]').")
        else:
            draw(found, plot_file)
    return 1 if found.refutes(kind) else 0
