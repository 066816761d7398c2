"""Command line: every table and figure of the papers, and the tables of our own.

    python -m papers list [NAME...]
    python -m papers run NAME... [--jobs=1] [--seeds=3] [--budget_minutes=60] [--skip_recorded]
    python -m papers report [--out=FOLDER]

NAME is a table, a row or a cell: si_dpsgd.T4, si_dpsgd.T4.dpsgd_lenet5 or si_dpsgd.T4.dpsgd_lenet5.3. A
training that is finished is not run again, and one that was interrupted is resumed. The exit status of
`run` is 0 if all is done, 2 if something failed, and 75 if another process makes some of it or the
budget ended; the same command resumes it.
"""

import argparse
import dataclasses
import importlib.util
import math
import os
import signal
import sys
from pathlib import Path

from papers import records
from papers.catalogue import UnknownName, cells

_LATER = 75  # EX_TEMPFAIL of sysexits.h


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        return options.action(options, records.read())
    except (UnknownName, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m papers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(required=True, metavar="{list,run,report}")

    def command(name, action, help, names=None):
        made = actions.add_parser(name, help=help)
        made.set_defaults(action=action)
        if names:
            made.add_argument("names", nargs=names, metavar="NAME")
        made.add_argument(
            "--results", type=_folder, default="runs/papers", help="the folder of all results"
        )
        return made

    command("list", _list, "what there is, and what it costs", "*")
    run = command("run", _run, "run what is missing", "+")
    run.add_argument("--jobs", type=_positive(int), default=1, help="cells at a time")
    run.add_argument(
        "--budget_minutes",
        type=_positive(float),
        default=math.inf,
        help="begin no cell after this time; one that has begun runs all of its seeds",
    )
    run.add_argument(
        "--skip_recorded", action="store_true", help="leave out what papers/records holds"
    )
    run.add_argument("--seeds", type=_positive(int), help="run this many seeds of each cell only")
    run.add_argument("--data_dir", help="where tensorflow_datasets keeps its data")
    report = command("report", _report, "write the pages from the records and what was run here")
    report.add_argument(
        "--out",
        type=_folder,
        help="a folder for pages and records, laid out like the repository, in which yours join the "
        "recorded ones, and take the place of those of the same cell and seed (--out=. updates the "
        "repository); by default the pages go to RESULTS/pages and show yours in lines of their own",
    )
    return parser


def _folder(text):
    return Path(text).expanduser()  # shells leave the ~ of --results=~/r as it is


def _positive(kind):
    def number(text):
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"expected a number above 0, found {text}")
        return value

    return number


def _list(options, recorded):
    from papers.listing import print_cells, print_tables

    if options.names:
        print_cells(options.names, options.results, recorded)
    else:
        print_tables(options.results, recorded)
    return 0


def _run(options, recorded):
    from papers import running

    if options.data_dir is not None:
        os.environ["TFDS_DATA_DIR"] = options.data_dir
    chosen = [
        dataclasses.replace(cell, seeds=cell.seeds[: options.seeds])
        for cell in cells(options.names)
    ]
    ended = running.run(
        chosen,
        options.results,
        recorded,
        skip=options.skip_recorded,
        jobs=options.jobs,
        budget_minutes=options.budget_minutes,
    )
    counts = ", ".join(f"{len(names)} {how}" for how, names in ended.items() if names)
    if counts:
        where = " (or recorded in papers/records)" if options.skip_recorded else ""
        print(f"Cells: {counts}. Results are in {options.results}{where}.")
    if absent := sum(bool(cell.absent or cell.quoted) for cell in chosen):
        print(f"Not run by design, or quoted: {absent} cells (`list NAME` says why).")
    if ended["failed"]:
        return 2
    return _LATER if ended["busy"] or ended["left"] else 0


def _report(options, recorded):
    from papers.pages import write_pages

    if importlib.util.find_spec("matplotlib") is None:
        print("error: The figures need matplotlib: pip install 'tfdp[plot]'.", file=sys.stderr)
        return 2
    # The recorded pages are not written over by whoever trains a cell again.
    out = options.out or options.results / "pages"
    joined = options.out is not None
    for line in write_pages(options.results, out, recorded, joined):
        print(line)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nInterrupted. The same command resumes it.", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except (
        BrokenPipeError
    ):  # of a pager; Python flushes stdout once more, which must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
