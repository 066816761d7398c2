"""Trains a Keras model with differential privacy and says what the privacy is worth.

    python train.py --mechanism=si_dpsgd --epsilon=2
    python train.py --mechanism=dpsgd --dataset=mnist --model=lenet5 --epsilon=3
    python train.py --flagfile=flags/papers/mnist_dpsgd.cfg --epsilon=3
    python train.py --mechanism=dpsgd --sweep=epsilon=0.5,1,2 --sweep=seed=1,2,3

What is not set on the command line or in a --flagfile comes from the recipe
flags/defaults/<dataset>_<mechanism>.cfg, where there is one. --epsilon is the
PROVEN epsilon unless --guarantee=claimed.
"""

import os
import pathlib
import shutil
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
    "Where run.json, model.keras and TensorBoard's log go; without it runs/<name>. Each point of a "
    "--sweep has a folder in it.",
)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Found: {' '.join(argv[1:])}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.set_verbosity(logging.WARNING)
    from tfdp.experiments.trainings import train_points

    try:
        points = command_line.points(sys.argv, RECIPES)
    except ValueError as error:
        print(f"train.py: error: {error}", file=sys.stderr)
        return 2
    name = command_line.common_name(points)
    return train_points(points, pathlib.Path(FLAGS.model_dir or _ROOT / "runs" / name), train_one)


def train_one(experiment, model_dir: pathlib.Path) -> None:
    """Trains, writes the result into `model_dir` and prints it."""
    from tfdp.experiments import print_table, run, write_card, write_record
    from tfdp.training.export import export

    # Everything is written beside the final place and moved there at the end, so that a run that
    # fails leaves nothing half-written, and an earlier result as it was.
    partial = model_dir.with_name(f"{model_dir.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        result = run(experiment, log_dir=str(partial / "tensorboard"))
        partial.mkdir(parents=True, exist_ok=True)
        export(result.model, partial / "model.keras")
        write_record(result, partial / "run.json")
        write_card(result, partial / "model_card.md")
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    model_dir.mkdir(parents=True, exist_ok=True)
    for path in sorted(partial.iterdir()):
        target = model_dir / path.name
        if target.is_dir():
            shutil.rmtree(target)
        path.replace(target)
    partial.rmdir()
    print()
    print_table(result)
    shown = os.path.relpath(model_dir)
    shown = model_dir if shown.startswith("..") else shown
    print(
        f"\nIn {shown}: run.json (this table), model.keras (the release), model_card.md, tensorboard/ "
        f"(the log: tensorboard --logdir {shown})."
    )


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parse)
