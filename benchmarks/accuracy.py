"""Measures the accuracy of every mechanism: `python -m benchmarks.accuracy --data_dir=DIR`.

The command runs `train.py` on MNIST for each point of the flag files in `ROWS`, seed by seed, and
saves docs/mnist.json after every run. It can be stopped and called again: a point that was trained
with the same flags is not trained again. docs/mnist.md and docs/mnist.png are made from that file;
with `--report`, the command only makes these two.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.accuracy_report import write_plot, write_text
from tfdp.experiments.sweep import points_of, read_flag_file

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "mnist.json"


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table: the points of a flag file, one for each epsilon.

    Attributes:
        title: the name of the row in the table.
        flag_file: the path of the flag file in flags/, without ".cfg".
        chosen: the name and the value of the setting that selects the points of this row, if the flag
            file sweeps over a setting besides epsilon; otherwise None.
        paper: for an epsilon the accuracy that a paper reports, with its place in the paper.
        note: sentences about the row, printed below the table.
    """

    title: str
    flag_file: str
    chosen: tuple[str, str] | None = None
    paper: dict = dataclasses.field(default_factory=dict)
    note: str = ""

    @property
    def name(self) -> str:
        """The flag file and the choice, as on a command line; identifies the row in the results."""
        return " --".join([self.flag_file, *(["=".join(self.chosen)] if self.chosen else [])])

    @functools.cached_property
    def points(self) -> dict[float | None, list[str]]:
        """The flags of each training, by epsilon. The key None stands for a file without epsilon."""
        found = {}
        for values, flags in points_of(read_flag_file(ROOT / "flags" / f"{self.flag_file}.cfg")):
            if self.chosen and values[self.chosen[0]] != self.chosen[1]:
                continue
            texts = [f.removeprefix("--epsilon=") for f in flags if f.startswith("--epsilon=")]
            epsilon = float(texts[0]) if texts else None
            if epsilon in found:
                raise ValueError(f"Expected one point for each epsilon of {self.name}. Found two.")
            found[epsilon] = flags
        return found

    @property
    def epsilons(self) -> tuple[float | None, ...]:
        """The epsilons of the row's trainings."""
        return tuple(self.points)

    def flags(self, epsilon: float | None) -> list[str]:
        """Returns the flags of the training at one epsilon."""
        return self.points[epsilon]

    @property
    def claimed(self) -> bool:
        """Whether --epsilon means the claimed epsilon."""
        return "--guarantee=claimed" in next(iter(self.points.values()))


ROWS = (
    Row("No privacy", "frontier/mnist_none"),
    Row("DP-SGD", "frontier/mnist_dpsgd"),
    Row("DP-SGD, batch normalization by public examples", "frontier/mnist_dpsgd_bn"),
    Row("Correlated noise", "frontier/mnist_matrix"),
    Row(
        "SI-DPSGD",
        "frontier/mnist_si_dpsgd",
        note="Its proof prefers a fixed order and few steps, here 50 of 6,000 examples.",
    ),
    Row("SI-DPSGD, batch normalization by public examples", "frontier/mnist_si_dpsgd_bn"),
    Row(
        "Gradient encoding and denoising",
        "frontier/mnist_discrete_sgd",
        note="One epoch instead of three. It does not depend on epsilon, so it is not the noise that "
        "limits it; on another network it was the rate (`encoding.limits` in the papers' tables).",
    ),
    Row("DP dropout", "frontier/mnist_langevin", ("mechanism", "dp_dropout")),
    Row(
        "SGLD without dropout",
        "frontier/mnist_langevin",
        ("mechanism", "sgld"),
        note="The noise of Langevin dynamics is larger than the private noise at every one of these "
        "epsilons, so that the runs of one seed are the same but for rounding.",
    ),
    Row(
        "SI-DPSGD",
        "papers/mnist_si_dpsgd_claimed",
        ("normalization", "layer"),
        paper={0.5: "98.56% (SI-DPSGD, Table 4, LN-LeNet-5)"},
    ),
    Row(
        "SI-DPSGD, batch normalization by public examples",
        "papers/mnist_si_dpsgd_claimed",
        ("normalization", "batch"),
        paper={0.5: "99.18% (SI-DPSGD, Table 4, BN-LeNet-5)"},
    ),
    Row(
        "DP-SGD, batch normalization over the lot, 300 steps of 32",
        "papers/mnist_dpsgd_bn_claimed",
        paper={3.0: "98.18% (batch normalization, Table 5, BN-LeNet-5)"},
    ),
)


class Table:
    """The file of results: one record for each row, epsilon and seed."""

    def __init__(self, path: Path = RESULTS):
        self.path = path
        self.records = json.loads(path.read_text())["runs"] if path.exists() else []
        self._lock = threading.Lock()

    def find(self, row: Row, epsilon, seed: int) -> dict | None:
        """Returns the record of a run with the row's current flags, or None if there is none."""
        for record in self.records:
            key = record["row"], record["epsilon"], record["seed"], record["flags"]
            if key == (row.name, epsilon, seed, row.flags(epsilon)):
                return record
        return None

    def add(self, record: dict) -> None:
        """Adds a record, in place of an earlier one of the same run, and saves the file."""
        names = ("row", "epsilon", "seed")
        with self._lock:
            key = [record[name] for name in names]
            self.records = [r for r in self.records if [r[name] for name in names] != key]
            self.records.append(record)
            self.records.sort(key=lambda r: (r["row"], r["epsilon"] or 0.0, r["seed"]))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_suffix(".partial")
            lines = ",\n".join(f"  {json.dumps(record)}" for record in self.records)
            partial.write_text(f'{{"runs": [\n{lines}\n]}}\n')
            partial.replace(self.path)


def train(row: Row, epsilon, seed: int, data_dir: str | None, threads: int) -> dict:
    """Trains once and returns the record.

    Raises:
        RuntimeError: train.py failed; the message is the end of its error output.
    """
    environment = os.environ | {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
    }
    with tempfile.TemporaryDirectory() as folder:
        # The flags are passed in a flag file, so that no recipe sets the flags that are left out.
        path = Path(folder, "point.cfg")
        path.write_text("\n".join(row.flags(epsilon)))
        command = [sys.executable, str(ROOT / "train.py"), f"--flagfile={path}", f"--seed={seed}"]
        command.append(f"--model_dir={folder}/run")
        if data_dir is not None:
            command.append(f"--data_dir={data_dir}")
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-2000:])
        run = json.loads(Path(folder, "run", "run.json").read_text())
    kept = ("test_accuracy", "steps", "lot_size", "sampling", "noise_multiplier", "seconds")
    return {
        "row": row.name,
        "epsilon": epsilon,
        "seed": seed,
        **{name: run[name] for name in kept},
        "claimed": run["claimed"]["epsilon"],
        "proven": run["proven"]["epsilon"],
        "reason": run["proven"]["reason"],
        "flags": row.flags(epsilon),
    }


def _arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    parser.add_argument("--rows", default="", help="names, comma-separated (default: all)")
    parser.add_argument("--epsilons", default="", help="only these (default: all)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 1 to this (default: 3)")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time (default: 1)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start none after that")
    parser.add_argument("--report", action="store_true", help="train nothing")
    arguments = parser.parse_args(argv)
    known = {row.name for row in ROWS}
    arguments.rows = [name for name in arguments.rows.split(",") if name] or sorted(known)
    if unknown := sorted(set(arguments.rows) - known):
        parser.error(f"expected some of {', '.join(sorted(known))}; received {', '.join(unknown)}")
    arguments.epsilons = [float(e) for e in arguments.epsilons.split(",") if e]
    if arguments.jobs < 1 or arguments.seeds < 1:
        parser.error("expected --jobs and --seeds to be at least 1")
    return arguments


def main(argv=None) -> int:
    """Trains the missing points and writes the report; returns 1 if a training failed, and else 0."""
    arguments = _arguments(argv)
    table, failed = Table(), []
    stop = time.monotonic() + 60 * arguments.minutes
    threads = max(1, (os.cpu_count() or 1) // arguments.jobs)

    def one(row, epsilon, seed):
        if time.monotonic() > stop:
            return
        name = f"{row.name} epsilon={epsilon} seed={seed}"
        try:
            record = train(row, epsilon, seed, arguments.data_dir, threads)
        except RuntimeError as error:
            failed.append(name)
            print(f"{name}: FAILED\n{error}", file=sys.stderr, flush=True)
            return
        table.add(record)
        print(
            f"{name}: {100 * record['test_accuracy']:.2f}% (proven {record['proven']}, "
            f"{record['seconds']:.0f} s)",
            flush=True,
        )

    missing = [
        (row, epsilon, seed)
        for seed in range(1, arguments.seeds + 1)
        for row in ROWS
        for epsilon in row.epsilons
        if row.name in arguments.rows
        and (not arguments.epsilons or epsilon in arguments.epsilons)
        and table.find(row, epsilon, seed) is None
        and not arguments.report
    ]
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(lambda job: one(*job), missing))
    current = [
        (row, epsilon, record)
        for row in ROWS
        for epsilon in row.epsilons
        for seed in range(1, 100)
        if (record := table.find(row, epsilon, seed)) is not None
    ]
    table.path.parent.mkdir(parents=True, exist_ok=True)
    write_text(ROWS, current, table.path.with_suffix(".md"))
    write_plot(ROWS, current, table.path.with_suffix(".png"))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
