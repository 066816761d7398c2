"""Trains a Keras model with differential privacy and says what the privacy is worth.

    python train.py --mechanism=si_dpsgd --epsilon=2
    python train.py --mechanism=dpsgd --dataset=mnist --model=lenet5 --epsilon=3
    python train.py --flagfile=flags/papers/mnist_dpsgd.cfg --epsilon=3
    python train.py --mechanism=dpsgd --sweep=epsilon=0.5,1,2 --sweep=seed=1,2,3

What is not set on the command line or in a --flagfile comes from the recipe
flags/defaults/<dataset>_<mechanism>.cfg, where there is one. --epsilon is the
PROVEN epsilon unless --guarantee=claimed.
"""

import contextlib
import functools
import os
import pathlib
import shlex
import sys

from absl import app, flags, logging

from tfdp.experiments import command_line

FLAGS = flags.FLAGS
_ROOT = pathlib.Path(__file__).resolve().parent
RECIPES = _ROOT / "flags" / "defaults"

command_line.define()
flags.adopt_module_key_flags(command_line)  # for --helpshort and usage errors
flags.DEFINE_string(
    "model_dir",
    None,
    "Where run.json, model.keras and TensorBoard's log go; without it a new runs/<name>_<number>. Each "
    "point of a --sweep has a folder in it.",
)
flags.DEFINE_bool("overwrite", False, "Replace an earlier result in --model_dir.")


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Found: {' '.join(argv[1:])}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.set_verbosity(logging.WARNING)
    from tfdp.experiments.trainings import train_points

    try:
        points = command_line.points(sys.argv, RECIPES)
        folder, train = _place(points)
    except ValueError as error:
        print(f"train.py: error: {error}", file=sys.stderr)
        return 2
    try:
        return train_points(points, folder, train)
    finally:
        if points[0].values and not FLAGS.model_dir:
            with contextlib.suppress(OSError):  # it stays if there is a result in it
                folder.rmdir()


def _place(points):
    """Where results go, and what trains one of them."""
    from tfdp.experiments.result_folder import new_folder

    if FLAGS.model_dir:
        return pathlib.Path(FLAGS.model_dir), train_one
    base = _ROOT / "runs" / command_line.common_name(points)
    if points[0].values:  # a sweep has one new folder for all of its points
        return pathlib.Path(new_folder(base)), train_one
    return base, functools.partial(train_one, numbered=True)


def train_one(experiment, model_dir: str | os.PathLike, numbered: bool = False) -> None:
    """Trains, writes the result into `model_dir` (or a new model_dir_<number>) and prints it."""
    from tfdp.experiments import ResultFolder, print_table, run_into

    with ResultFolder(model_dir, overwrite=FLAGS.overwrite, numbered=numbered) as folder:
        # TensorBoard reads the log while it is written; at the end it moves with the result.
        print(f"While it trains: tensorboard --logdir {_shown(folder.log_dir)}", flush=True)
        result = run_into(folder, experiment)
    print()
    print_table(result)
    shown = _shown(folder.path)
    print(
        f"\nIn {shown}: run.json (this table), model.keras (the release), model_card.md, tensorboard/ "
        f"(the log: tensorboard --logdir {shown})."
    )


def _shown(path: str) -> str:
    """A path as one would type it in the current folder."""
    relative = os.path.relpath(path)
    return shlex.quote(path if relative.startswith("..") else relative)


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parse)
