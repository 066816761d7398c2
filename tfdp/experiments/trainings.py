"""The trainings of a command: one, or the points of a sweep, each in a folder of its own."""

import json
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tfdp.experiments.command_line import Point
from tfdp.experiments.settings import Experiment


def train_points(
    points: Sequence[Point], folder: Path, train: Callable[[Experiment, Path], object]
) -> int:
    """Trains every point and says how each ended.

    A point of a sweep that fails is reported, and the others are trained all the same.

    Args:
        points: what to train.
        folder: where the result goes; the points of a sweep have folders of their own in it.
        train: trains an experiment and writes its result, with a run.json, into a folder.

    Returns:
        The exit status: 0 where every training succeeded, and 2 otherwise.
    """
    if not points[0].values:
        (point,) = points
        error = _train(train, point.experiment, folder)
        return 0 if error is None else 2
    errors = []
    for number, point in enumerate(points, 1):
        print(f"\nPoint {number} of {len(points)}: {point.name}", flush=True)
        _forget_models()
        try:
            error = _train(train, point.experiment, folder / point.name)
        except Exception as unexpected:
            traceback.print_exc()
            error = unexpected
        errors.append(error)
    print_summary(points, errors, folder)
    return 0 if errors == [None] * len(points) else 2


def _train(train, experiment, folder) -> Exception | None:
    """Trains once. Returns the error that the user can do something about, having printed it."""
    from tfdp.accounting import BudgetExhausted
    from tfdp.data import DataUnavailable

    expected = (
        ValueError,
        NotImplementedError,
        DataUnavailable,
        BudgetExhausted,
        FloatingPointError,
    )
    try:
        train(experiment, folder)
    except expected as error:
        print(f"train.py: error: {error}", file=sys.stderr)
        return error
    return None


def _forget_models() -> None:
    """Frees the graphs of the point before, and starts Keras' names of layers again."""
    import keras

    keras.utils.clear_session()


def print_summary(
    points: Sequence[Point],
    errors: Sequence[Exception | None],
    folder: Path,
    console: Console | None = None,
) -> None:
    """Prints one table of all points: the swept values, test accuracy and both epsilons.

    Args:
        points: what was trained.
        errors: for each point its error, or None where its run.json lies in its folder.
        folder: where the folders of the points are.
        console: where it is printed.
    """
    table = Table(title="Sweep", title_justify="left", pad_edge=False)
    for name in points[0].values:
        table.add_column(name)
    for name in ("test accuracy", "claimed epsilon", "proven epsilon"):
        table.add_column(name, justify="right")
    for point, error in zip(points, errors, strict=True):
        if error is not None:
            ended = ["failed", "", ""]
        else:
            record = json.loads((folder / point.name / "run.json").read_text())
            ended = [f"{100 * record['test_accuracy']:.2f}%"]
            ended += [_epsilon(record[kind]["epsilon"]) for kind in ("claimed", "proven")]
        table.add_row(*point.values.values(), *ended)
    (console or Console()).print("", table)


def _epsilon(value: float | str) -> str:
    return "infinite" if math.isinf(float(value)) else f"{float(value):,.4g}"
