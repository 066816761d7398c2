"""Command line: `python -m benchmarks --models=mlp --lots=256 --json=FILE`."""

import argparse
import sys
import time
from pathlib import Path

from absl import flags as absl_flags
from absl import logging

from benchmarks import gpu, gpu_report, overhead, scale, summary, vocabulary
from benchmarks.environments import NoEnvironment, interpreter, make_cache
from benchmarks.measure import measure
from benchmarks.results import Results
from benchmarks.subjects import LOTS, MODELS, PEERS, REALISTIC, family_of, groups

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


def _names(allowed):
    def parse(text):
        names = [name for name in text.split(",") if name]
        unknown = [name for name in names if name not in allowed]
        if unknown or not names:
            raise argparse.ArgumentTypeError(
                f"expected some of {', '.join(allowed)}; received {', '.join(unknown) or 'none'}"
            )
        return list(dict.fromkeys(names))

    return parse


def _lots(text):
    try:
        lots = [int(part) for part in text.split(",") if part]
    except ValueError:
        lots = []
    if not lots or min(lots) < 1:
        raise argparse.ArgumentTypeError(f"expected positive integers; received {text!r}")
    return list(dict.fromkeys(lots))


def _positive(kind):
    def parse(text):
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"expected a positive number; received {text!r}")
        return value

    return parse


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the flags."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Times private training steps against steps without privacy, and measures the "
        "peak memory, for tfdp and for its peers. A run that was stopped goes on where it was.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = made.add_argument
    number = _positive(float)
    everything = (*MODELS, *REALISTIC)
    also = f"comma-separated; also {', '.join(REALISTIC)}"
    add("--models", type=_names(everything), default=",".join(MODELS), help=also)
    add("--lots", type=_lots, default=",".join(map(str, LOTS)), help="lot sizes, comma-separated")
    add("--peers", type=_names(PEERS), default=",".join(DEFAULT_PEERS), help="comma-separated")
    add("--json", type=Path, help="file of results, resumed; by default results.json in the cache")
    add("--minutes", type=number, default=None, help="starts nothing after so many minutes")
    add("--repeats", type=_positive(int), default=5, help="rounds, a process each")
    add("--steps", type=_positive(int), default=30, help="timed steps in a process")
    add("--warmup", type=_positive(int), default=5, help="steps before them")
    add("--seconds", type=number, default=5.0, help="after these, fewer steps are enough")
    add("--max_step_seconds", type=number, default=20.0, help="slower steps are skipped")
    add("--timeout", type=number, default=300.0, help="seconds for a process, compilation included")
    add("--memory_gib", type=number, default=12.0, help="memory at which a process is ended")
    add("--cache", type=Path, default=Path(".benchmarks"), help="folder of the environments")
    add("--scale", action="store_true", help="measures memory and time of large lots instead")
    add("--vocabulary", action="store_true", help="measures large embeddings instead")
    add("--overhead", action="store_true", help="measures what is not the step instead")
    add("--device", choices=("cpu", "gpu"), default="cpu", help="gpu: a sitting on one GPU")
    add("--note", default="", help="sentence that the report prints, such as on other load")
    return made


def plan(models, lots, peers, repeats):
    """Yields (round, model, lot, subject), one whole round after the other.

    Realistic models are measured with tfdp's own engine and without privacy only.

    The baseline and the peers of one family follow each other. Odd rounds reverse their order, so
    that the baseline is not always the first.
    """
    for number in range(repeats):
        for model in models:
            for lot in lots:
                for group in groups(["tfdp"] if model in REALISTIC else peers):
                    for subject in group if number % 2 == 0 else reversed(group):
                        yield number, model, lot, subject


def main(arguments=None) -> int:
    """Measures what the flags ask for and prints a table; returns the exit status."""
    made = parser()
    flags = made.parse_args(arguments)
    if flags.device == "gpu":
        made.set_defaults(models=",".join(gpu.MODELS), lots=",".join(map(str, gpu.LOTS)))
        flags = made.parse_args(arguments)
    absl_flags.FLAGS.mark_as_parsed()  # absl.logging reads absl's flags; argparse parses ours
    logging.set_verbosity(logging.INFO)
    make_cache(flags.cache)
    spec = {name: getattr(flags, name) for name in SETTINGS}
    try:
        name = "gpu.json" if flags.device == "gpu" else "results.json"
        results = Results(flags.json or flags.cache / name, spec, flags.note, flags.device)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if flags.device == "gpu":
        if "driver" not in results.content["machine"]["gpu"]:
            print("error: expected an NVIDIA GPU; nvidia-smi names none", file=sys.stderr)
            return 2
        gpu.sit(flags, spec, results)
        print("\n".join(gpu_report.lines(results.content)))
        return 0
    if flags.scale or flags.vocabulary or flags.overhead:
        if flags.scale:
            _points(flags, spec, results, "scale", scale, "lot")
        if flags.vocabulary:
            _points(flags, spec, results, "vocabulary", vocabulary, "vocabulary")
        if flags.overhead:
            _overhead(flags, spec, results)
        for section in (scale, vocabulary, overhead):
            print("\n".join(section.lines(results.content)))
        return 0
    deadline = None if flags.minutes is None else time.monotonic() + 60 * flags.minutes
    todo = list(plan(flags.models, flags.lots, flags.peers, flags.repeats))
    for position, (number, model, lot, subject) in enumerate(todo, start=1):
        if results.done(model, lot, subject, number):
            continue
        if deadline is not None and time.monotonic() > deadline:
            logging.info("Time is up at %d of %d; the same command goes on.", position, len(todo))
            break
        record = _one(flags, spec, model, lot, subject)
        results.add(model, lot, subject, number, record)
        seen = f"{record['step_ms']:.2f} ms" if "step_ms" in record else str(record)
        logging.info("%d/%d  %s  %d  %s: %s", position, len(todo), model, lot, subject, seen)
    summary.show(results.content)
    return 0


def _points(flags, spec, results, section, module, name):
    """Measures the points (round, subject, value of `name`) of a module with `plan` and `spec`."""
    records = results.section(section)
    known = {(r["round"], r["subject"], r[name]) for r in records}
    for number, subject, value in module.plan(flags.repeats):
        if (number, subject, value) in known:
            continue
        record = _measured(flags, family_of(subject), {**spec, **module.spec(subject, value)})
        record.pop("versions", None)
        records.append({"round": number, "subject": subject, name: value, **record})
        results.save()
        logging.info("%s  %d: %s", subject, value, record)


def _overhead(flags, spec, results):
    records = results.section("overhead")
    for number in range(len(records), flags.repeats):
        record = _measured(flags, overhead.FAMILY, {**spec, **overhead.SPEC})
        records.append({"round": number, **record})
        results.save()
        logging.info("overhead: %s", record)


def _measured(flags, family, spec):
    python = interpreter(family, flags.cache)
    return measure(python, family, spec, timeout=flags.timeout, memory_gib=flags.memory_gib)


def _one(flags, spec, model, lot, subject):
    family = family_of(subject)
    try:
        python = interpreter(family, flags.cache)
    except NoEnvironment as reason:
        return {"unsupported": str(reason)}
    return measure(
        python,
        family,
        {**spec, "model": model, "lot": lot, "subject": subject},
        timeout=flags.timeout,
        memory_gib=flags.memory_gib,
    )


if __name__ == "__main__":
    sys.exit(main())
