"""Trains a Keras model with differential privacy and prints its claimed and its proven epsilon.

    python train.py --epsilon=2
    python train.py --mechanism=si_dpsgd --epsilon=2
    python train.py --mechanism=dpsgd --dataset=mnist --model=lenet5 --epsilon=3
    python train.py --flagfile=flags/tutorial/mnist_cnn_2_epsilon_1.19.cfg
    python train.py --mechanism=dpsgd --sweep=epsilon=0.5,1,2 --sweep=seed=1,2,3

Without a --flagfile, settings that are not on the command line come from the recipe
flags/defaults/<dataset>_<mechanism>.cfg, if there is one. --epsilon is the PROVEN
epsilon unless --guarantee=claimed is set. An installed tfdp has this command as tfdp-train.
"""

import contextlib
import functools
import os
import pathlib
import re
import shlex
import sys

from absl import app, flags, logging

from tfdp.experiments import command, console, help_text

FLAGS = flags.FLAGS

command.define()
flags.DEFINE_string(
    "model_dir",
    None,
    "Where run.json, model.keras and TensorBoard's log go; without it a new runs/<name>_<number>. Each "
    "point of a --sweep has a folder in it.",
)
flags.DEFINE_bool(
    "overwrite",
    False,
    "Replace an earlier result in --model_dir. An unfinished training there goes on all the same; of a "
    "sweep all points are trained again.",
)
flags.DEFINE_enum(
    "resume",
    "auto",
    ["auto", "never"],
    "What becomes of an unfinished training in --model_dir: auto, the same command goes on with it; "
    "never, it is discarded.",
)
flags.DEFINE_string(
    "checkpoint_every",
    "10s",
    "How often the state is written with which a training is resumed after a crash: a time, such as "
    "30s or 5m, or a number of steps; without privacy after each epoch. It is in "
    "<model_dir>.unfinished until the result is in place.",
)
flags.DEFINE_bool(
    "audit",
    False,
    "Attack the training afterwards: train again with canaries, and compare what they show with both "
    "epsilons. `python -m tfdp.auditing` has more settings.",
)


def run() -> None:
    """Runs the command and exits with its status."""
    console.guarded(functools.partial(app.run, main, flags_parser=parse))


def parse(argv):
    """Parses the flags, or prints --help, or refuses what cannot be parsed in one sentence."""
    try:
        words = [word for word in argv if word not in help_text.WORDS]
        arguments = command.parse(words)
        if len(arguments) > 1:
            raise ValueError(f"Expected flags only. Received {' '.join(arguments[1:])}.")
        if words != argv:
            (point, *_) = command.points(argv)
            print(help_text.text(sys.modules[__name__], point))
            sys.exit(0)
    except ValueError as error:
        sys.exit(_refuse(error))
    return arguments


def main(argv):
    del argv
    logging.set_verbosity(logging.WARNING)
    from tfdp.experiments.trainings import train_points

    try:
        points = command.points(sys.argv)
        checkpoint_every(FLAGS.checkpoint_every)
        if FLAGS.audit and points[0].values:
            raise ValueError("--audit cannot be combined with --sweep.")
        if FLAGS.audit and not points[0].experiment.private:
            raise ValueError("--audit needs a private mechanism. Received --mechanism=none.")
        folder, train = _place(points)
    except ValueError as error:
        return _refuse(error)
    try:
        console.prefer_onednn()
        with console.quiet_tensorflow():
            return train_points(points, folder, train)
    finally:
        if points[0].values and not FLAGS.model_dir:
            with contextlib.suppress(OSError):  # a folder that holds a result is not removed
                folder.rmdir()


def checkpoint_every(text: str) -> dict[str, int | float | None]:
    """Returns how often a state is written, as arguments of `run_into`.

    Args:
        text: a number of steps, or a time such as "30s", "5m" or "1h".

    Raises:
        ValueError: the text is neither.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)|([1-9]\d*)", text.strip())
    if not found:
        raise ValueError(
            "Expected --checkpoint_every to be a number of steps, such as 500, or a time, such as 30s, "
            f"5m or 1h. Received {text!r}."
        )
    number, unit, steps = found.groups()
    if steps is not None:
        return {"checkpoint_steps": int(steps), "checkpoint_seconds": 0.0}
    seconds = float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    return {"checkpoint_steps": None, "checkpoint_seconds": seconds}


def _refuse(error):
    print(f"{console.program()}: error: {error}", file=sys.stderr)
    return 2


def _place(points):
    """Returns the folder for the results, and the function that trains one point into a folder."""
    from tfdp.experiments.run_folder import new_folder

    if FLAGS.model_dir:
        return pathlib.Path(FLAGS.model_dir), train_one
    if FLAGS.overwrite:
        raise ValueError(
            "--overwrite needs a --model_dir: without it, every result has a new folder."
        )
    base = pathlib.Path("runs") / command.common_name(points)
    if points[0].values:  # a sweep has one new folder for all of its points
        return pathlib.Path(new_folder(base)), train_one
    return base, functools.partial(train_one, is_numbered=True)


def train_one(point, model_dir: str | os.PathLike, is_numbered: bool = False) -> None:
    """Trains one point, writes its result and prints it: a table, or one line of a sweep.

    Args:
        point: the settings, and where they come from.
        model_dir: the folder of the result.
        is_numbered: whether the result goes into a new folder `model_dir`_<number> instead.
    """
    from tfdp.experiments.finished import finished
    from tfdp.experiments.run_folder import RunFolder, discard_leftovers, numbered

    resume = FLAGS.resume == "auto"
    if point.values and resume and not FLAGS.overwrite:
        record = finished(model_dir, point.experiment)
        if record is not None:
            discard_leftovers(model_dir)
            words = ""
            if RunFolder(model_dir).resumable:
                words = " A training that was to replace it is unfinished: --overwrite resumes it."
            print(f"Trained already: {_shown(os.path.abspath(model_dir))}.{words}", flush=True)
            return
    path = numbered(model_dir) if is_numbered else model_dir
    folder = RunFolder(path, overwrite=FLAGS.overwrite)
    # Entered before TensorFlow is imported: a place that cannot be written is refused at once.
    with folder:
        if is_numbered:
            _say_what_is_unfinished(model_dir)
        try:
            result = _train_into(folder, point)
        except BaseException as ended:
            _say_how_to_go_on(ended, point, folder)
            raise
    from tfdp.experiments import report

    if point.values:
        print(f"{report.one_line(result)} In {_shown(folder.path)}.", flush=True)
        return
    print()
    report.print_table(result, console.console(), _shown(folder.path))
    if FLAGS.audit:
        _audit(point, folder.path)


def _train_into(folder, point):
    from tfdp.experiments.finished import settings_of

    if FLAGS.resume == "never" and folder.resumable:
        print(
            f"The unfinished training in {_shown(folder.unfinished)} is discarded: nothing of it may "
            "be released."
        )
        folder.discard()
    folder.check_settings(settings_of(point.experiment))  # before TensorFlow is imported
    # TensorBoard can read the log during the training; the commit moves it with the result.
    _announce(point, folder)
    if folder.resumable:
        print(f"Resumes the unfinished training in {_shown(folder.unfinished)}.", flush=True)
    from tfdp.experiments.saving import run_into

    every = checkpoint_every(FLAGS.checkpoint_every)
    verbose = 0 if point.values else console.verbosity()  # a point of a sweep is one line
    return run_into(folder, point.experiment, verbose, point.command, **every)


def _say_what_is_unfinished(base):
    """Tells of unfinished trainings that have a number: the same command begins a new one."""
    base = pathlib.Path(base)
    for result in sorted(base.parent.glob(f"{base.name}_*.unfinished/result")):
        path = str(result.parent).removesuffix(".unfinished")
        print(
            f"There is an unfinished training: --model_dir={_shown(path)}, with its settings, resumes "
            "it."
        )


def _say_how_to_go_on(ended, point, folder):
    """Tells of the state that an unfinished training has left, unless the error tells what to do."""
    if not folder.resumable or isinstance(ended, ValueError):
        return
    again = "the same command resumes it"
    if FLAGS.resume == "never":
        again = "the same command without --resume=never resumes it"
    elif not FLAGS.model_dir:
        of_all = os.path.dirname(folder.path) if point.values else folder.path
        again = f"add --model_dir={_shown(of_all)} to the command to resume it"
    said = f"The state of the training is kept in {_shown(folder.unfinished)}: {again}."
    if isinstance(ended, KeyboardInterrupt):
        ended.__notes__ = [*getattr(ended, "__notes__", ())[:1], said]
    else:
        print(f"{console.program()}: {said}", file=sys.stderr, flush=True)


def _audit(point, folder):
    """Audits the settings of a result and puts what was found beside it."""
    from tfdp.experiments import audited

    print(
        "\nAudit: trains again, with 500 canaries among the records. With more records, noise and "
        "epsilons\nare others: those below are the audited training's.",
        flush=True,
    )
    found = audited.audit_experiment(point.experiment)
    files = [os.path.join(folder, name) for name in audited.FILES]
    about = {"training": point.command, "guarantee": point.experiment.guarantee}
    print(found)
    audited.write(found, about, *files)


def _announce(point, folder):
    from tfdp.experiments.announcement import announcement

    if point.read:
        print(f"Settings: {', '.join(_shown(path) for path in point.read)}")
    print(announcement(point.experiment))
    if not point.values:
        print(f"While it trains: tensorboard --logdir {_shown(folder.log_dir)}")
    sys.stdout.flush()


def _shown(path: str) -> str:
    """Returns a path as a user would type it in a shell: relative to and quoted for that shell."""
    relative = os.path.relpath(path)
    return shlex.quote(path if relative.startswith("..") else relative)
