"""Command line: `python -m benchmarks --models=mlp --lots=256 --json=FILE`."""

import argparse
import functools
import math
import sys
import time
from pathlib import Path

from absl import flags as absl_flags
from absl import logging

from benchmarks import gpu, gpu_report, report, suites, summary
from benchmarks.environments import NoEnvironment, interpreter
from benchmarks.measure import measure, steadily
from benchmarks.results import Results
from benchmarks.subjects import LOTS, MODELS, PEERS, REALISTIC, family_of

DEFAULT_PEERS = (
    "tfdp",
    "tfdp_vectorized",
    "tf_privacy",
    "tf_privacy_fast",
    "opacus_hooks",
    "opacus_ghost",
    "jax_privacy",
)
# Flags that are passed to the measured programs and printed in the report.
SETTINGS = ("steps", "warmup", "seconds", "max_step_seconds", "timeout", "memory_gib")


def _one_of(allowed):
    def parse(name):
        if name not in allowed:
            raise argparse.ArgumentTypeError(f"expected {', '.join(allowed)}; received {name!r}")
        return name

    return parse


def _positive(kind):
    def number(text):
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not value > 0:
            raise argparse.ArgumentTypeError(f"expected a positive number; received {text!r}")
        return value

    return number


def _several(kind):
    return lambda text: list(dict.fromkeys(map(kind, text.split(","))))


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the flags."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Times private training steps against steps without privacy, and measures the "
        "peak memory, for tfdp and for its peers. A run that was stopped is resumed.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = made.add_argument
    number = _positive(float)
    everything = (*MODELS, *REALISTIC)
    also = f"comma-separated; also {', '.join(REALISTIC)}"
    add("--models", type=_several(_one_of(everything)), default=",".join(MODELS), help=also)
    add(
        "--lots",
        type=_several(_positive(int)),
        default=",".join(map(str, LOTS)),
        help="lot sizes, comma-separated",
    )
    add(
        "--peers",
        type=_several(_one_of(PEERS)),
        default=",".join(DEFAULT_PEERS),
        help="comma-separated",
    )
    add("--json", type=Path, help="file of results, resumed; by default results.json in the cache")
    add("--minutes", type=number, default=None, help="starts nothing after so many minutes")
    add("--repeats", type=_positive(int), default=5, help="rounds, a process each")
    add("--steps", type=_positive(int), default=1000, help="timed steps in a process")
    add("--warmup", type=_positive(int), default=40, help="steps before them")
    add("--seconds", type=number, default=5.0, help="after these, fewer steps are enough")
    add("--max_step_seconds", type=number, default=20.0, help="slower steps are skipped")
    add("--timeout", type=number, default=300.0, help="seconds for a process, compilation included")
    add("--memory_gib", type=number, default=12.0, help="memory at which a process is ended")
    add("--cache", type=Path, default=Path(".benchmarks"), help="folder of the environments")
    add("--scale", action="store_true", help="measures memory and time of large lots instead")
    add("--vocabulary", action="store_true", help="measures large embeddings instead")
    add("--device", choices=("cpu", "gpu"), default="cpu", help="gpu: a sitting on one GPU")
    add("--note", default="", help="sentence that the report prints, such as on other load")
    return made


def main(arguments=None) -> int:
    """Measures as the flags say and prints tables. Returns the exit status."""
    made = parser()
    flags = made.parse_args(arguments)
    if flags.device == "gpu":
        made.set_defaults(models=",".join(gpu.MODELS), lots=",".join(map(str, gpu.LOTS)))
        made.set_defaults(steps=30, warmup=5)  # a sitting has minutes, and a GPU is quiet
        flags = made.parse_args(arguments)
    absl_flags.FLAGS.mark_as_parsed()  # absl.logging reads absl's flags; argparse parses ours
    logging.set_verbosity(logging.INFO)
    flags.cache.mkdir(parents=True, exist_ok=True)
    spec = {name: getattr(flags, name) for name in SETTINGS}
    try:
        name = "gpu.json" if flags.device == "gpu" else "results.json"
        results = Results(flags.json or flags.cache / name, spec, flags.note, flags.device)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if flags.device == "gpu":
        if "driver" not in results.content["machine"]["gpu"]:
            print("error: nvidia-smi names no NVIDIA GPU", file=sys.stderr)
            return 2
        gpu.sit(flags, spec, results)
        lines = gpu_report.lines(results.content)
    elif chosen := [suite for name, suite in suites.SUITES.items() if getattr(flags, name)]:
        for suite in chosen:
            _measure(flags, spec, results, suite)
        lines = suites.lines(results.content)
    else:
        _measure(flags, spec, results, suites.steps(flags.models, flags.lots, flags.peers))
        lines = report.tables(summary.rows(results.content))
    print("\n".join(lines))
    return 0


def _measure(flags, spec, results, suite):
    """Measures the points of a suite that the results lack, until the time is up."""
    deadline = time.monotonic() + 60 * (flags.minutes or math.inf)
    todo = results.missing(suite.section, [*suite.points(flags.repeats)])
    for position, point in enumerate(todo, start=1):
        if point not in results.missing(suite.section, [point]):
            continue  # another round has found that it is impossible
        if time.monotonic() > deadline:
            logging.info("Time is up at %d of %d; the same command resumes.", position, len(todo))
            break
        family = family_of(point["subject"])
        try:
            python = interpreter(family, flags.cache)
        except NoEnvironment as reason:
            record = {"unsupported": str(reason)}
        else:
            limits = {"timeout": flags.timeout, "memory_gib": flags.memory_gib}
            given = (python, family, spec, [{**point, **suite.rest(point)}])
            run = functools.partial(measure, *given, **limits)
            record = steadily(lambda run=run: run()[0], summary.least_fixed_ms(results.content))
        results.add(suite.section, point, record)
        seen = f"{record['step_ms']:.2f} ms" if "step_ms" in record else str(record)
        named = " ".join(str(value) for name, value in point.items() if name != "round")
        logging.info("%d/%d  %s: %s", position, len(todo), named, seen)


if __name__ == "__main__":
    sys.exit(main())
