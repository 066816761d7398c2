"""Trains what a command asks for: one experiment, or each point of a sweep in its own folder."""

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tfdp.accounting.guarantee import format_epsilon
from tfdp.experiments import console
from tfdp.experiments.command import Point
from tfdp.experiments.run_folder import read_record


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
        `console.interrupted` after an interruption of a sweep.
    """
    if not points[0].values:
        return _train(train, points[0], folder)
    endings, status = [], 0
    for number, point in enumerate(points, 1):
        print(f"\nPoint {number} of {len(points)}: {point.name}", flush=True)
        try:
            failed = _train_next(train, point, folder / point.name)
        except KeyboardInterrupt as interruption:
            status = console.interrupted(interruption)
            endings += ["interrupted"] + ["not begun"] * (len(points) - number)
            break
        endings.append("failed" if failed else None)
    print_summary(points, endings, folder)
    return status or (2 if any(endings) else 0)


def _train_next(train, point, folder) -> int:
    """Trains a point of a sweep; prints any error except a closed pipe; returns a status."""
    if "keras" in sys.modules:  # frees the graphs of the point before
        sys.modules["keras"].utils.clear_session()
    try:
        return _train(train, point, folder)
    except BrokenPipeError:
        raise
    except Exception:
        traceback.print_exc()
        return 2


def _train(train, point, folder) -> int:
    """Trains once; prints an error that the user can correct, and returns a status."""
    from tfdp.accounting import BudgetExhausted
    from tfdp.data import DataUnavailable

    expected = (ValueError, NotImplementedError, FloatingPointError)
    try:
        train(point, folder)
    except (*expected, DataUnavailable, BudgetExhausted) as error:
        return console.refuse(error)
    return 0


def print_summary(points: Sequence[Point], endings: Sequence[str | None], folder: Path) -> None:
    """Prints one table of all points: the swept values, test accuracy and both epsilons.

    Args:
        points: the points that were trained.
        endings: for each point how it ended otherwise, or None if it wrote its run.json.
        folder: the folder that holds the folders of the points.
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
            record = read_record(folder / point.name)
            ended = [f"{100 * record['test_accuracy']:.2f}%"]
            ended += [format_epsilon(float(record[k]["epsilon"])) for k in ("claimed", "proven")]
            private += [(point.experiment, record)] * point.experiment.private
        table.add_row(*point.values.values(), *ended)
    to = Console()
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
