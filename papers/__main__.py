"""Runs and reports the tables and figures of the papers, and tables of our own.

    python -m papers list [NAME...]
    python -m papers run NAME... [--seeds=1] [--skip_recorded]
    python -m papers report [--out=FOLDER]

NAME is a table, a row or a cell: si_dpsgd.T4, si_dpsgd.T4.dpsgd_lenet5 or si_dpsgd.T4.dpsgd_lenet5.3. A
finished training is not run again, and an interrupted one is resumed. The exit status of `run` is 0 if
everything is done, and 2 if something failed. The same command resumes it.
"""

import argparse
import dataclasses
import shlex
import statistics
import sys
from pathlib import Path

from papers import records
from papers.catalogue import cells, tables
from tfdp.experiments import console


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        return options.action(options, records.read())
    except (ImportError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interruption:
        interruption.add_note("The same command resumes it.")
        raise


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
            "--results", type=_folder, default="runs/papers", help="folder of results"
        )
        return made

    command("list", _list, "list tables, what was run of them, and the commands that run them", "*")
    run = command("run", _run, "run missing trainings and computations", "+")
    run.add_argument("--seeds", type=int, help="run only this many seeds of each cell")
    run.add_argument(
        "--skip_recorded", action="store_true", help="skip cells that papers/records contains"
    )
    report = command("report", _report, "write the pages of all records; needs tfdp[plot]")
    report.add_argument(
        "--out",
        type=_folder,
        help="folder with the layout of the repository; by default RESULTS/pages (. is the repository)",
    )
    return parser


def _folder(text):
    return Path(text).expanduser()  # shells leave the ~ of --results=~/r as it is


def _list(options, recorded):
    if options.names:
        for cell in cells(options.names):
            print(_described(cell, options.results, recorded))
        return 0
    own = records.collect(options.results, cells())
    print(f"{'name':<26}{'runs':>7}{'recorded':>10}{'here':>7}  title")
    for table in tables():
        run = {cell.source: cell for cell in table.cells}.values()
        seeds = sum(len(cell.seeds) for cell in run)
        kept, here = (sum(len(records.runs_of(c, some)) for c in run) for some in (recorded, own))
        print(f"{table.name:<26}{seeds:>7}{kept:>10}{here:>7}  {table.title}")
    return 0


def _described(cell, results, recorded) -> str:
    """Returns the paper's figure, what was run, and the command that runs it."""
    from papers.computed import shown
    from papers.running import command

    printed = "nothing" if cell.printed is None else cell.printed
    said = f"{cell.name}: the paper prints {printed}"
    if not cell.seeds:
        return f"{said}; not run: {cell.absent or 'the paper quotes it from others.'}"
    for whose, some in (("recorded", recorded), ("here", records.collect(results, [cell]))):
        if runs := records.runs_of(cell, some):
            found = f"{len(runs)} seeds" if cell.computed else shown(cell, some)
            minutes = statistics.fmean(run["seconds"] for run in runs.values()) / 60
            said += f"; {whose} {found}, {minutes:.1f} min each"
    first = f"    first: python -m papers run {cell.start}\n" if cell.start else ""
    return f"{said}\n{first}    {shlex.join(command(cell, cell.seeds, results))}"


def _run(options, recorded):
    from papers import running
    from papers.computed import shown

    status = 0
    for cell in cells(options.names):
        cell = dataclasses.replace(cell, seeds=cell.seeds[: options.seeds])
        if options.skip_recorded and {*cell.seeds} <= {*records.runs_of(cell, recorded)}:
            continue
        try:
            found = shown(cell, {cell.source: running.run(cell, options.results)})
            said = "done" if cell.computed else found
        except (RuntimeError, ValueError) as error:
            status, said = 2, f"failed: {error}"
        print(f"{cell.name}: {said}", flush=True)
    return status


def _report(options, recorded):
    from papers.pages import write_pages

    # By default, training a cell again does not overwrite the recorded pages.
    for path in write_pages(options.results, options.out or options.results / "pages", recorded):
        print(f"Written: {path}")
    return 0


if __name__ == "__main__":
    console.guarded(main)
