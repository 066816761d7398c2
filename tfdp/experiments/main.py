"""Trains a Keras model with differential privacy and prints its claimed and its proven epsilon.

    python train.py --epsilon=2
    python train.py --mechanism=si_dpsgd --epsilon=2
    python train.py --mechanism=dpsgd --dataset=mnist --model=lenet5 --epsilon=3
    python train.py --flagfile=flags/tutorial/mnist_cnn_2_epsilon_1.19.cfg
    python train.py --mechanism=dpsgd --sweep=epsilon=0.5,1,2 --sweep=seed=1,2,3

Without a --flagfile, settings that are not on the command line come from the recipe
flags/defaults/<dataset>_<mechanism>.cfg, if there is one. --epsilon is the PROVEN
epsilon unless --guarantee=claimed is set. Installing tfdp adds this command as tfdp-train.
"""

import dataclasses
import functools
import os
import pathlib
import re
import shlex
import sys
import time

from absl import logging

from tfdp._settings import define, setting, settings_of, typed
from tfdp.accounting import BudgetExhausted
from tfdp.data.prepared import DataUnavailable
from tfdp.experiments import command, console, run_folder
from tfdp.experiments.command import Point
from tfdp.experiments.run_folder import FollowedFolder, ResultError, ResultExists, RunFolder
from tfdp.experiments.settings import MULTI_WORKER, Experiment

# Errors that the user can correct.
_EXPECTED = (ValueError, NotImplementedError, FloatingPointError, DataUnavailable, BudgetExhausted)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Flags of this command that are not settings of the training."""

    model_dir: str | None = setting(
        "The folder for run.json, model.keras and TensorBoard's log; by default a new "
        "runs/<name>_<time>. A --sweep has a subfolder for each point.",
        group="Result",
    )
    overwrite: bool = setting(
        "Replaces an earlier result in --model_dir. An unfinished training there is still resumed.",
        False,
    )
    checkpoint_every: int | None = setting(
        "The number of steps between checkpoints, from which a training is resumed after a crash; by "
        "default every ten seconds, and after each epoch without privacy. They are in "
        "<model_dir>.unfinished until the result is complete."
    )
    audit: bool = setting(
        "Audits the training afterwards: trains again with canaries, and tests both epsilons by what "
        "they reveal. `python -m tfdp.auditing` has more settings.",
        False,
    )


OPTIONS = settings_of(Options)
define(OPTIONS)
command.define()


def run() -> None:
    """Runs the command and exits with its status."""
    command.start(main, __doc__)


def main(argv: list[str]) -> int:
    logging.set_verbosity(logging.WARNING)
    try:
        if argv[1:]:
            raise ValueError(f"Expected flags only. Received {' '.join(argv[1:])}.")
        options = Options(**typed(OPTIONS))
        points = command.points(sys.argv)
        _check(points, options)
        folder = _place(points, options)
        if points[0].values:
            run_folder.check_sweep_folder(folder)
    except ValueError as error:
        return console.refuse(error)
    console.prepare_tensorflow()
    if not points[0].values:
        return _train(options, points[0], folder)
    from tfdp.experiments.sweep import train_points

    return train_points(points, folder, functools.partial(_train, options))


def _check(points: list[Point], options: Options) -> None:
    """Raises ValueError if flags of this command conflict with the settings of the trainings."""
    if options.audit and points[0].values:
        raise ValueError("--audit cannot be combined with --sweep.")
    if options.overwrite and points[0].values:  # when resumed, it would train finished points again
        raise ValueError("--overwrite cannot be combined with --sweep. Choose another --model_dir.")
    if options.audit and not points[0].experiment.private:
        raise ValueError("--audit needs a private mechanism. Received --mechanism=none.")
    if points[0].experiment.distribute == MULTI_WORKER:
        if points[0].values or options.audit:
            raise ValueError(
                f"--distribute={MULTI_WORKER} cannot be combined with --sweep or --audit."
            )
        if not (options.model_dir and os.environ.get("TF_CONFIG")):
            raise ValueError(
                f"--distribute={MULTI_WORKER} needs a --model_dir that all machines can read, and the "
                "environment variable TF_CONFIG on each of them (docs/devices.md)."
            )
    if options.overwrite and not options.model_dir:
        raise ValueError(
            "--overwrite needs a --model_dir: without it, every result has a new folder."
        )


def _place(points: list[Point], options: Options) -> pathlib.Path:
    """Returns the folder of the result, or, for a sweep, of the results."""
    if options.model_dir:
        return pathlib.Path(options.model_dir)
    of = points[0].experiment
    name = "sweep" if points[0].values else f"{of.dataset}_{of.mechanism}"
    name = re.sub(r"[^\w.-]+", "-", name)  # a path of the user's data becomes one name
    path = first = pathlib.Path("runs", f"{name}_{time.strftime('%Y%m%d-%H%M%S')}")
    number = 1
    while path.exists() or os.path.exists(f"{path}{run_folder.UNFINISHED}"):  # of the same second
        number += 1
        path = first.with_name(f"{first.name}_{number}")
    return path


def _train(options: Options, point: Point, path: pathlib.Path) -> int:
    """Trains and reports one point, or prints a correctable error. Returns the exit status."""
    # Entered before importing TensorFlow, so that an error about the folder comes at once.
    several = point.experiment.distribute == MULTI_WORKER
    kind = FollowedFolder if several and not run_folder.is_chief() else RunFolder
    folder = kind(path, point.experiment, overwrite=options.overwrite)
    try:
        with folder:
            if isinstance(folder, FollowedFolder):
                return _follow(options, folder)
            result = _train_into(options, folder, point)
    except ResultExists as error:
        if not point.values:
            return console.refuse(error)
        print(f"Already trained: {_shown(folder.path)}.", flush=True)
        return 0
    except _EXPECTED as error:
        return console.refuse(error)
    from tfdp.experiments import report

    if point.values:
        print(f"{report.one_line(result)} In {_shown(folder.path)}.", flush=True)
        return 0
    report.print_table(result, folder=_shown(folder.path))
    if options.audit:
        _audit(point, folder.path)
    return 0


def _follow(options: Options, folder: RunFolder) -> int:
    from tfdp.experiments.experiment import run

    run(folder.experiment, 0, folder=folder, checkpoint_every=options.checkpoint_every)
    print(f"Trained together with the chief, which writes {_shown(folder.path)}.", flush=True)
    return 0


def _train_into(options: Options, folder: RunFolder, point: Point):
    if point.read:
        print(f"Settings: {', '.join(_shown(path) for path in point.read)}")
    print(_announcement(point.experiment))
    if not point.values:  # TensorBoard finds the log during training, and then with the result
        print(f"Progress: tensorboard --logdir {_shown(folder.log_dir)}")
    if folder.resumable:
        print(f"Resuming the unfinished training in {_shown(folder.unfinished)}.")
    sys.stdout.flush()
    verbose = 1 if sys.stdout.isatty() else 2  # a progress bar, or a line for each epoch
    try:
        from tfdp.experiments.saving import run_into

        return run_into(folder, 0 if point.values else verbose, options.checkpoint_every)
    except BaseException as ended:
        if folder.resumable and not isinstance(ended, ResultError):
            ended.add_note(_how_to_resume(options, folder, point))
        raise


def _announcement(of: Experiment) -> str:
    """Returns one line about a training that begins: mechanism, budget and settings."""
    if not of.private:
        privacy = "no privacy"
    elif of.noise_multiplier is not None:
        privacy = f"noise multiplier {of.noise_multiplier:g}"
    else:
        privacy = f"{of.guarantee} epsilon {of.epsilon:g} at delta {of.delta:g}"
    return f"{of.mechanism} on {of.dataset}, {privacy}: {of}"


def _how_to_resume(options: Options, folder: RunFolder, point: Point) -> str:
    place = os.path.dirname(folder.path) if point.values else folder.path
    how = "" if options.model_dir else f" with --model_dir={_shown(place)}"
    return f"The unfinished training is saved: the same command{how} resumes it."


def _audit(point, folder):
    """Audits the settings of a result and writes the audit into its folder."""
    from tfdp.experiments import audited

    print(
        "\nAudit: training again with 500 canaries among the records. This changes the noise, so the "
        "epsilons\nbelow are of the audited training.",
        flush=True,
    )
    found = audited.audit_experiment(point.experiment)
    files = [os.path.join(folder, name) for name in run_folder.AUDIT_FILES]
    about = {
        "training": command.command_of(point.experiment),
        "guarantee": point.experiment.guarantee,
    }
    print(found)
    audited.write(found, about, *files)


def _shown(path: str) -> str:
    """Returns a path relative to the working directory, quoted for the shell."""
    relative = os.path.relpath(path)
    return shlex.quote(path if relative.startswith("..") else relative)
