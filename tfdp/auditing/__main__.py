"""Command line: `python -m tfdp.auditing` with the settings of train.py and of the audit.

    python -m tfdp.auditing --mechanism=dpsgd --epsilon=2
    python -m tfdp.auditing --flagfile=flags/audit/si_dpsgd_claimed.cfg --plot=audit.png
    python -m tfdp.auditing membership --mechanism=dpsgd --epsilon=2 --plot=membership.png

`membership` attacks with access to the released model only. The exit status is 1 if the guarantee
named by --guarantee is refuted, 0 if it is not, and 2 if the audit did not run.
"""

import dataclasses
import os
import sys
import traceback
from pathlib import Path

from absl import logging

from tfdp._settings import define, setting, settings_of, typed
from tfdp._validate import did_you_mean
from tfdp.accounting.command import plot
from tfdp.data.prepared import DataUnavailable
from tfdp.experiments import command, console


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Flags of this command that are not settings of the training."""

    canaries: int = setting("The number of canaries in each training.", 500, group="Audit")
    runs: int = setting("The number of trainings.", 1)
    guesses: int | None = setting(
        "The number of guesses in each training, for the clearest scores. Fix it before you see "
        "results. By default half of up to 50 canaries, a quarter of up to 200, a tenth above."
    )
    observe: str = setting(
        "The releases that the attacker sees: the weights after every step, as proven guarantees "
        "assume, or the weights after the last step.",
        "every",
        choices=("every", "last"),
    )
    confidence: float = setting("The confidence of the lower bound.", 0.95, interval="(0, 1)")
    models: int = setting(
        "The number of models to train and attack.", 16, group="Membership", interval="[4, inf)"
    )
    examples: int = setting("The number of examples that coins include or leave out.", 500)
    coins: int = setting(
        "The seed of the coins that include canaries.", 0, group="Output", interval="[0, inf)"
    )
    json: str | None = setting("A file for the whole result.")
    plot: str | None = setting("A file for the plot: .png, .pdf or .svg.")


OPTIONS = settings_of(Options)
# For each task, the group of flags that it does not use.
_UNUSED = {"audit": "Membership", "membership": "Audit"}
define(OPTIONS)
command.define(sweeps=False)


def _task(arguments: list[str]) -> str:
    """Returns "audit" or "membership"; raises ValueError for a flag that this task does not use."""
    task = arguments[1] if arguments[1:] else "audit"
    if arguments[2:] or task not in _UNUSED:
        meant = did_you_mean(task, _UNUSED)
        raise ValueError(
            f"Expected membership or flags only. Received {' '.join(arguments[1:])}.{meant}"
        )
    for name in typed(OPTIONS):
        if OPTIONS[name].group == _UNUSED[task]:
            raise ValueError(f"--{name} has no effect with the task {task}. Remove it.")
    return task


def main(argv: list[str]) -> int:
    logging.set_verbosity(logging.WARNING)
    console.prepare_tensorflow()
    try:
        task, options = _task(argv), Options(**typed(OPTIONS))
        (point,) = command.points(sys.argv)
        return _done(task, point, options)
    except (ValueError, OSError, DataUnavailable) as error:
        return console.refuse(error)
    except Exception:
        # Not Python's own status 1, which would mean that an epsilon was refuted.
        traceback.print_exc()
        return 2


def _done(task: str, point: command.Point, options: Options) -> int:
    """Performs the task and returns the exit status."""
    if options.plot is not None:
        plot.check(options.plot)
    for path in [Path(file) for file in (options.json, options.plot) if file]:
        if not os.access(path.parent, os.W_OK) or path.is_dir():
            raise ValueError(f"{path} cannot be written. Choose a file in a writable folder.")
    if point.read:
        print(f"Settings: {', '.join(point.read)}", flush=True)
    from tfdp.experiments.audited import attack_experiment, audit_experiment, write

    about = {"training": command.command_of(point.experiment)}
    if task == "membership":
        attacks = attack_experiment(
            point.experiment, examples=options.examples, models=options.models, seed=options.coins
        )
        print(attacks)
        write(attacks, about, options.json, options.plot)
        return 0
    audit = audit_experiment(
        point.experiment,
        canaries=options.canaries,
        runs=options.runs,
        guesses=options.guesses,
        observe=options.observe,
        confidence=options.confidence,
        seed=options.coins,
    )
    print(audit)
    kind = point.experiment.guarantee
    write(audit, about | {"guarantee": kind}, options.json, options.plot)
    return int(audit.refutes(kind))


def run() -> None:
    """Runs the command and exits with its status."""
    command.start(main, __doc__)


if __name__ == "__main__":
    run()
