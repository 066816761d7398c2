"""Command line: every table and figure of the four papers.

    python -m tfdp.experiments list [NAME...]
    python -m tfdp.experiments run NAME... [--jobs=1] [--seeds=3] [--budget_minutes=60]
    python -m tfdp.experiments compare NAME...
    python -m tfdp.experiments report [--out=FOLDER]

NAME is a table, a row or a cell: si_dpsgd.T4, si_dpsgd.T4.dpsgd_lenet5 or si_dpsgd.T4.dpsgd_lenet5.3. A
training that is finished is not run again, and one that was interrupted goes on. The exit status of
`run` is 0 if all is done, 2 if something failed, and 75 if another process makes some of it or the
budget ended; the same command goes on.
"""

import argparse
import dataclasses
import importlib
import os
import sys
from pathlib import Path

from tfdp.experiments import console
from tfdp.experiments.result_folder import ResultError
from tfdp.experiments.run_folder import ResultBusy

_RESULTS = "runs/papers"
# Beside the package, wherever the command is given.
_PAGES = str(Path(__file__).resolve().parents[2] / "docs" / "papers")


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit status."""
    options = _parser().parse_args(arguments)
    for name in ("results", "out"):
        path = getattr(options, name, None)
        if path is not None and os.path.lexists(path) and not os.path.isdir(path):
            print(f"error: Expected --{name} to be a folder. Found {path}.", file=sys.stderr)
            return 2
    from tfdp.papers.catalogue import UnknownName

    console.prefer_onednn()
    try:
        return options.action(options)
    except BrokenPipeError:
        raise
    except (UnknownName, ResultError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m tfdp.experiments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(required=True, metavar="{list,run,compare,report}")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--results", default=Path(_RESULTS), type=_folder, help="the folder of all results"
    )
    listing = actions.add_parser("list", parents=[shared], help="what there is, and what it costs")
    listing.add_argument("names", nargs="*", metavar="NAME")
    listing.set_defaults(action=_list)
    running = actions.add_parser("run", parents=[shared], help="run what is missing")
    running.add_argument("names", nargs="+", metavar="NAME")
    running.add_argument("--jobs", type=_positive(int), default=1, help="trainings at a time")
    running.add_argument(
        "--budget_minutes",
        type=_positive(float),
        help="begin no cell after this time; one that has begun trains all of its seeds",
    )
    running.add_argument(
        "--skip_recorded",
        action="store_true",
        help="leave out the trainings that docs/papers/records.json holds",
    )
    running.add_argument(
        "--seeds",
        type=_positive(int),
        help="train this many of the seeds of each cell only, from 1 on",
    )
    running.add_argument("--data_dir", help="where tensorflow_datasets keeps its data")
    running.set_defaults(action=_run)
    comparing = actions.add_parser(
        "compare", parents=[shared], help="set what was trained here beside what is recorded"
    )
    comparing.add_argument("names", nargs="+", metavar="NAME")
    comparing.set_defaults(action=_compare)
    report = actions.add_parser(
        "report",
        parents=[shared],
        help="write the pages from the records and what was trained here",
    )
    report.add_argument(
        "--out",
        type=_folder,
        help="a folder for pages and records in which yours join the recorded ones, and take the place "
        "of those of the same cell and seed; by default the pages go to RESULTS/pages and show yours "
        "in lines of their own",
    )
    report.set_defaults(action=_report)
    training = actions.add_parser("train", parents=[shared])
    training.add_argument("name")
    training.add_argument("--seeds", required=True, type=_numbers)
    training.add_argument("--data_dir")
    training.set_defaults(action=_train)
    return parser


def _folder(text):
    # Shells leave the ~ of --results=~/r as it is, and initial weights are looked for at home.
    return Path(text).expanduser()


def _positive(kind):
    def parse(text):
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"expected a number above 0, found {text}")
        return value

    parse.__name__ = "number"
    return parse


def _numbers(text):
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected numbers as in 1,2; found {text}") from error


def _list(options):
    from tfdp.papers import records
    from tfdp.papers.listing import print_cells, print_tables

    known = records.read(Path(_PAGES) / records.COLLECTION)
    if options.names:
        print_cells(options.names, options.results, known, console.console())
    else:
        print_tables(options.results, known, console.console())
    return 0


def _run(options):
    from tfdp.papers import records, running
    from tfdp.papers.catalogue import cells

    chosen = cells(options.names)
    if options.seeds is not None:
        chosen = [dataclasses.replace(cell, seeds=cell.seeds[: options.seeds]) for cell in chosen]
    known = records.read(Path(_PAGES) / records.COLLECTION)
    try:
        ended = running.run(
            chosen,
            options.results,
            jobs=options.jobs,
            budget_minutes=options.budget_minutes,
            data_dir=options.data_dir,
            records=known if options.skip_recorded else None,
            times=known,
            console=console.console(),
        )
    except KeyboardInterrupt as interruption:
        interruption.add_note("The same command goes on from there.")
        raise
    counts = ", ".join(f"{len(names)} {how}" for how, names in ended.items() if names)
    if counts:
        recorded = f" (or recorded in {_PAGES})" if options.skip_recorded else ""
        print(f"Cells: {counts}. Results are in {options.results}{recorded}.")
    absent = [cell for cell in chosen if cell.absent or cell.quoted]
    if absent:
        print(f"Not run by design, or quoted: {len(absent)} cells (`list NAME` says why).")
    if ended["failed"]:
        return 2
    return running.BUSY if ended["busy"] or ended["left"] else 0


def _train(options):
    from tfdp.papers import records, running
    from tfdp.papers.catalogue import named

    cell = named(options.name)
    try:
        running.train(cell, options.seeds, options.results, options.data_dir)
    except ResultBusy as error:
        print(f"error: {error}", file=sys.stderr)
        return running.BUSY
    except records.LostSteps as error:
        print(f"{error} It is removed already; the same command trains it anew.", file=sys.stderr)
        return running.AGAIN
    return 0


def _compare(options):
    from tfdp.papers import records
    from tfdp.papers.listing import print_comparison

    known = records.read(Path(_PAGES) / records.COLLECTION)
    print_comparison(options.names, options.results, known, console.console())
    return 0


def _report(options):
    from tfdp.papers.pages import write_pages

    try:
        for name in ("matplotlib.pyplot", "PIL.Image"):  # which write the figures
            importlib.import_module(name)
    except ImportError as error:
        print(
            f"error: Expected matplotlib to be installed for the figures. Found: {error}. Install it "
            "with pip install 'tfdp[plot]'.",
            file=sys.stderr,
        )
        return 2
    # The recorded pages are not written over by whoever trains a cell again.
    out = options.out or options.results / "pages"
    for line in write_pages(options.results, out, Path(_PAGES), apart=options.out is None):
        print(line)
    return 0


if __name__ == "__main__":
    console.guarded(lambda: main(sys.argv[1:]), "python -m tfdp.experiments")
