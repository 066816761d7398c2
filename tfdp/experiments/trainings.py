"""Trains what a command asks for: one experiment, or each point of a sweep in its own folder."""

import json
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tfdp.accounting.guarantee import format_epsilon, rounded_up
from tfdp.experiments import console
from tfdp.experiments.command import Point


def train_points(
    points: Sequence[Point], folder: Path, train: Callable[[Point, Path], object]
) -> int:
    """Trains every point and reports how each training ended.

    If a point of a sweep fails, the error is printed, and the other points are trained nevertheless.
    An interruption ends the sweep, and the results of the finished points stay.

    Args:
        points: the points to train.
        folder: the folder of the result; each point of a sweep has its own folder inside it.
        train: a function that trains a point and writes its result, with a run.json, into a folder.

    Returns:
        The exit status: 0 if every training succeeded, 2 if one failed, and that of
        `console.interrupted` after an interruption.
    """
    if not points[0].values:
        (point,) = points
        try:
            return 0 if _train(train, point, folder) is None else 2
        except KeyboardInterrupt as interruption:
            return console.interrupted(interruption)
    endings, status = [], 0
    for number, point in enumerate(points, 1):
        print(f"\nPoint {number} of {len(points)}: {point.name}", flush=True)
        try:
            error = _train_next(train, point, folder / point.name)
        except KeyboardInterrupt as interruption:
            status = console.interrupted(interruption)
            endings += ["interrupted"] + ["not begun"] * (len(points) - number)
            break
        endings.append("failed" if error else None)
    print_summary(points, endings, folder, console.console())
    return status or (2 if any(endings) else 0)


def _train_next(train, point, folder) -> Exception | None:
    """Trains a point of a sweep; prints and returns any error but that of a closed pipe."""
    _forget_models()
    try:
        return _train(train, point, folder)
    except BrokenPipeError:
        raise
    except Exception as unexpected:
        traceback.print_exc()
        return unexpected


def _train(train, point, folder) -> Exception | None:
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
        train(point, folder)
    except expected as error:
        # A progress bar that was interrupted ends without a new line.
        line = "\n" if sys.stdout.isatty() else ""
        print(f"{line}{console.program()}: error: {error}", file=sys.stderr)
        return error
    return None


def _forget_models() -> None:
    """Frees the graphs of the previous point and resets the counters of Keras' layer names."""
    if "keras" in sys.modules:
        sys.modules["keras"].utils.clear_session()


def print_summary(
    points: Sequence[Point], endings: Sequence[str | None], folder: Path, to: Console
) -> None:
    """Prints one table of all points: the swept values, test accuracy and both epsilons.

    Args:
        points: the points that were trained.
        endings: for each point how it ended otherwise, or None if it wrote its run.json.
        folder: the folder that holds the folders of the points.
        to: the console to print to.
    """
    table = Table(title="Sweep", title_justify="left", pad_edge=False)
    for name in points[0].values:
        table.add_column(name)
    for name in ("test accuracy", "claimed epsilon", "proven epsilon"):
        table.add_column(name, justify="right")
    private = []  # (experiment, record) of the points that spent some privacy
    for point, ending in zip(points, endings, strict=True):
        ended = [ending, "", ""]
        if ending is None:
            record = json.loads((folder / point.name / "run.json").read_text())
            ended = [f"{100 * record['test_accuracy']:.2f}%"]
            ended += [_epsilon(float(record[kind]["epsilon"])) for kind in ("claimed", "proven")]
            private += [(point.experiment, record)] * point.experiment.private
        table.add_row(*point.values.values(), *ended)
    to.print("", table)
    if said := _together(private):
        to.print(said)


def _together(private) -> str:
    """The cost of all trainings of a sweep together: whoever chooses among them releases all."""
    from tfdp.accounting import Run, proven_composition

    kinds = {(of.dataset, of.delta, of.adjacency) for of, _ in private}
    runs = [Run.from_dict(run) for _, record in private for run in record["runs"]]
    if len(kinds) != 1 or len(runs) < 2:
        return ""
    (_, delta, adjacency) = kinds.pop()
    found = proven_composition(runs, delta, adjacency)
    return (
        f"All {len(runs)} trainings together: proven epsilon {format_epsilon(found.epsilon)} at delta "
        f"= {delta:g}. Their costs add up for whoever sees more than one of them, or the best one."
    )


def _epsilon(value: float) -> str:
    return "infinite" if math.isinf(value) else f"{float(rounded_up(value, 4)):,.4g}"
