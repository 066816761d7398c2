"""Command line: `python -m tfdp.auditing` with the settings of train.py, and those of the audit.

    python -m tfdp.auditing --mechanism=dpsgd --epsilon=2
    python -m tfdp.auditing --flagfile=flags/audit/si_dpsgd_claimed.cfg --plot=audit.png
    python -m tfdp.auditing membership --mechanism=dpsgd --epsilon=2 --plot=membership.png

`membership` shows what an attacker gets who sees the released model only. The exit status is 1 if the
guarantee that --guarantee asks for is refuted, 0 if it stands, and 2 if there was no audit.
"""

import functools
import os
import sys
import traceback
from pathlib import Path

from absl import app, flags, logging

from tfdp.accounting.command import plot
from tfdp.data.prepared import DataUnavailable
from tfdp.experiments import command, console

FLAGS = flags.FLAGS
_PROGRAM = "python -m tfdp.auditing"

command.define(sweeps=False)
for _name, _default, _least, _help in (
    ("canaries", 500, 1, "How many canaries there are in each training."),
    ("runs", 1, 1, "How many trainings are made."),
    ("models", 16, 4, "With `membership`, how many models are trained and attacked."),
    ("examples", 500, 1, "With `membership`, how many examples coins include or leave out."),
    ("guesses", None, 1, "How many canaries are guessed in each training, the surest ones. It has to "
     "be chosen before results are seen; without it a half of up to 50 canaries, a quarter of up to "
     "200, a tenth above."),
    ("coins", 0, 0, "The seed of the coins that include canaries."),
):  # fmt: skip
    flags.DEFINE_integer(_name, _default, _help, lower_bound=_least)
flags.DEFINE_enum(
    "observe",
    "every",
    ["every", "last"],
    "What the attacker sees: the weights after every step, which is what proven guarantees are "
    "about, or those of the last step.",
)
flags.DEFINE_float("confidence", 0.95, "The confidence of the lower bound.", 0.0, 1.0)
flags.DEFINE_string("json", None, "A file for the whole result.")
flags.DEFINE_string("plot", None, "A file for the picture: .png, .pdf or .svg.")

# Flags of one task only.
_OF_AUDIT = ("canaries", "confidence", "guesses", "observe", "runs")
_OF_MEMBERSHIP = ("examples", "models")


def parse(argv):
    """Parses the flags, or prints --help, or refuses what cannot be parsed in one sentence."""
    try:
        arguments = command.parse(argv, sys.modules[__name__])
        task = _task(arguments)
        for name in _OF_MEMBERSHIP if task == "audit" else _OF_AUDIT:
            if FLAGS[name].present:
                raise ValueError(f"Expected flags that {task} uses. Found --{name}.")
    except ValueError as error:
        sys.exit(console.refuse(error, _PROGRAM))
    return arguments


def _task(arguments) -> str:
    """What is to be done: "audit" or "membership"."""
    if arguments[1:] not in ([], ["membership"]):
        found = " ".join(arguments[1:])
        raise ValueError(f"Expected flags only, or membership before them. Found {found}.")
    return arguments[1] if arguments[1:] else "audit"


def main(argv):
    logging.set_verbosity(logging.WARNING)
    console.prepare_tensorflow()
    try:
        (point,) = command.points(sys.argv)
        return _done(_task(argv), point)
    except (ValueError, OSError, DataUnavailable) as error:
        return console.refuse(error, _PROGRAM)
    except Exception:
        # Not Python's own status 1, which would say that something was refuted.
        traceback.print_exc()
        return 2


def _done(task: str, point) -> int:
    """Does what is asked for, and returns the exit status."""
    if FLAGS.plot is not None:
        plot.check(FLAGS.plot)
    for path in [Path(file) for file in (FLAGS.json, FLAGS.plot) if file]:
        if not os.access(path.parent, os.W_OK) or path.is_dir():
            raise ValueError(f"Expected a file in a folder that can be written. Received {path}.")
    if point.read:
        print(f"Settings: {', '.join(point.read)}", flush=True)
    from tfdp.experiments.audited import attack_experiment, audit_experiment, write

    done, kind = {"training": command.command_of(point.experiment)}, point.experiment.guarantee
    if task == "membership":
        found = attack_experiment(
            point.experiment, examples=FLAGS.examples, models=FLAGS.models, seed=FLAGS.coins
        )
    else:
        done["guarantee"] = kind
        found = audit_experiment(
            point.experiment,
            canaries=FLAGS.canaries,
            runs=FLAGS.runs,
            guesses=FLAGS.guesses,
            observe=FLAGS.observe,
            confidence=FLAGS.confidence,
            seed=FLAGS.coins,
        )
    print(found)
    write(found, done, FLAGS.json, FLAGS.plot)
    return int(task == "audit" and found.refutes(kind))


def run() -> None:
    """Runs the command and exits with its status."""
    console.guarded(functools.partial(app.run, main, flags_parser=parse), _PROGRAM)


if __name__ == "__main__":
    run()
