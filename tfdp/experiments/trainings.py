"""Trains what a command asks for: one experiment, or each point of a sweep in its own folder."""

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
    """Trains every point and reports how each training ended.

    If a point of a sweep fails, the error is printed, and the other points are trained nevertheless.

    Args:
        points: the points to train.
        folder: the folder of the result; each point of a sweep has its own folder inside it.
        train: a function that trains an experiment and writes its result, with a run.json, into a
            folder.

    Returns:
        The exit status: 0 if every training succeeded, and 2 otherwise.
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
    """Trains once; prints and returns an error that the user can correct. Other errors propagate."""
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
    """Frees the graphs of the previous point and resets the counters of Keras' layer names."""
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
        points: the points that were trained.
        errors: for each point its error, or None if it succeeded and wrote its run.json.
        folder: the folder that holds the folders of the points.
        console: the console to print to; by default the terminal.
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
