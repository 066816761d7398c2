"""Trains the points of a sweep, each in its own folder, and compares them."""

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tfdp._interruptions import Interruptions
from tfdp.accounting import Run, proven
from tfdp.accounting.guarantee import format_epsilon
from tfdp.experiments.command import Point
from tfdp.experiments.run_folder import read_record


def train_points(points: Sequence[Point], folder: Path, train: Callable[[Point, Path], int]) -> int:
    """Trains every point, and prints a table of the results and the cost of the whole search.

    If a point fails, its error is printed, and the other points are still trained. The same command
    resumes an interrupted sweep: finished points are not trained again.

    Args:
        points: The points to train.
        folder: The folder that contains the folders of the points.
        train: A function that trains a point into a folder, and returns 0, or the exit status of an
            error that it has printed.

    Returns:
        The exit status: 0, or 2 if a point failed.
    """
    finished = []
    for number, point in enumerate(points, 1):
        print(f"\nPoint {number} of {len(points)}: {point.name}", flush=True)
        if "keras" in sys.modules:  # frees the graphs of the previous point
            with (
                Interruptions()
            ):  # Ctrl-C would be lost in a callback of Python's garbage collector
                sys.modules["keras"].utils.clear_session()
        try:
            finished.append(train(point, folder / point.name) == 0)
        except Exception:
            traceback.print_exc()
            finished.append(False)
    _print_summary(points, finished, folder)
    return 0 if all(finished) else 2


def _print_summary(points, finished, folder):
    """Prints a table of all points: the swept values, test accuracy and both epsilons."""
    table = Table(title="Sweep", title_justify="left", pad_edge=False)
    for name in points[0].values:
        table.add_column(name)
    for name in ("test accuracy", "claimed epsilon", "proven epsilon"):
        table.add_column(name, justify="right")
    private = []  # (experiment, record) of the points with a privacy cost
    for point, done in zip(points, finished, strict=True):
        cells = ["failed", "", ""]
        if done:
            record = read_record(folder / point.name)
            epsilons = (float(record[kind]["epsilon"]) for kind in ("claimed", "proven"))
            cells = [f"{100 * record['test_accuracy']:.2f}%", *map(format_epsilon, epsilons)]
            private += [(point.experiment, record)] * point.experiment.private
        table.add_row(*point.values.values(), *cells)
    console = Console()
    console.print("", table)
    if said := _together(private):
        console.print(said)
    if not all(finished):
        console.print("The same command trains the missing points and keeps the others.")


def _together(private) -> str:
    """Returns a sentence with the total cost, since choosing among trainings releases all of them."""
    kinds = {(of.dataset, of.delta, of.adjacency) for of, _ in private}
    runs = [Run.from_dict(run) for _, record in private for run in record["runs"]]
    if len(kinds) != 1 or len(runs) < 2:
        return ""
    (_, delta, adjacency) = kinds.pop()
    found = proven(runs, delta, adjacency)
    return (
        f"All {len(runs)} trainings together: proven epsilon {format_epsilon(found.epsilon)} at delta "
        f"= {delta:g}. This is the cost of releasing several of them, or the best one."
    )
