"""Measures steps on one GPU, in a sitting of some minutes: `python -m benchmarks --device=gpu`.

A GPU is often lent for minutes, so a process measures many points: all lots and both subjects of a
model. What the minutes do not reach is measured by the same command later. All frameworks must be
installed in the Python that runs the command; those that are not are reported as failed.
"""

import os
import sys
import time
from pathlib import Path

from absl import logging

from benchmarks.measure import measure_all
from benchmarks.subjects import FAMILIES, HERE, Family, family_of

MODELS = (
    "tutorial_cnn",
    "lenet5",
    "mlp",
    "resnet18",
    "bilstm",
    "transformer",
    "encoder",
    "bert_base",
)
LOTS = (256, 1024, 4096)
# Examples of an epoch; large models have four lots in an epoch.
_EXAMPLES = {name: 65_536 for name in ("tutorial_cnn", "lenet5", "mlp")}
# Rows that are in the network at a time: what 80 GB hold.
_PHYSICAL = {"resnet18": 1024, "encoder": 1024, "bert_base": 64}
_FLOOR = Family("floor", "floor", "run_floor.py", own_environment=False)
# Passes over the models, what matters most first: (precision, subjects).
_PASSES = (
    ("float32", ("keras_tf", "tfdp")),
    ("mixed_bfloat16", ("keras_tf", "tfdp")),
    ("float32", ("pytorch", "opacus_hooks", "opacus_ghost")),
    ("tensor_float_32", ("keras_tf",)),
    ("float32", ("keras_tf_xla", "tfdp_xla")),
    ("float32", ("keras_jax", "jax_privacy")),
    ("mixed_bfloat16", ("keras_tf_xla", "tfdp_xla")),
    ("mixed_bfloat16", ("pytorch", "opacus_hooks", "opacus_ghost")),
)
_PEERS_LACK = ("encoder", "bert_base")
# The largest lot of this model that fits is looked for.
LARGEST, LARGEST_LOTS = "resnet18", (512, 2048, 8192, 16_384, 32_768)


def plan(repeats: int, models=MODELS):
    """Yields (round, family name, [points]); a point has precision, model, lot and subject.

    Every other round reverses the order of the subjects.
    """
    for round in range(repeats):
        for precision, subjects in _PASSES:
            family = family_of(subjects[0]).name
            for model in models:
                if model in _PEERS_LACK and not family.startswith("tfdp"):
                    continue
                order = subjects if round % 2 == 0 else subjects[::-1]
                points = [
                    {"precision": precision, "model": model, "lot": lot, "subject": subject}
                    for lot in LOTS
                    for subject in order
                ]
                # JAX cannot set its peak of memory back.
                for part in [[p] for p in points] if family == "jax_privacy" else [points]:
                    yield round, family, part
    for subject in ("opacus_hooks", "tfdp") if LARGEST in models else ():
        point = {"precision": "float32", "model": LARGEST, "subject": subject}
        yield 0, family_of(subject).name, [{**point, "lot": lot} for lot in LARGEST_LOTS]


def floors(models=MODELS):
    """Returns the points of the floor: what the device does, then what a lot of each model needs."""
    kinds = ("float32", "tensor_float_32", "mixed_bfloat16")
    points = [{"subject": "device", "precision": kind, "model": "", "lot": 0} for kind in kinds]
    for model in models:
        for kind in ("float32", "mixed_bfloat16"):
            points.append({"subject": "step", "precision": kind, "model": model, "lot": LOTS[1]})
    return points


def sit(flags, spec: dict, results) -> None:
    """Measures what is missing in `results`, for at most `flags.minutes`.

    Args:
        flags: the flags of the command.
        spec: the settings that the measured programs get.
        results: `benchmarks.results.Results`, saved after each process.
    """
    deadline = time.monotonic() + 60 * (flags.minutes or 1e9)
    spec = {**spec, "device": "gpu"}
    models = [name for name in flags.models if name in MODELS]
    _floor(flags, spec, results, models, deadline)
    records = results.section("gpu")
    for round, family, points in plan(flags.repeats, models):
        known = {_key(record) for record in records}
        refused = {_key(r)[1:] for r in records if "step_ms" not in r}
        missing = [
            point
            for point in points
            if _key({"round": round, **point}) not in known
            and _key({"round": 0, **point})[1:] not in refused
            and (point["lot"] in flags.lots or point["lot"] in LARGEST_LOTS)
        ]
        while missing:
            left = deadline - time.monotonic()
            if left < 20:
                logging.info("Time is up; the same command goes on.")
                return
            found = _process(flags, FAMILIES[family], spec, missing, left)
            for point, record in zip(missing, found, strict=False):
                if "skipped" in record and left < flags.timeout and "not done" in record["skipped"]:
                    return  # the sitting ended, not the patience with this point
                if versions := record.pop("versions", None):
                    results.content["versions"][point["subject"]] = versions
                records.append({"round": round, **point, **record})
                shown = record.get("step_ms", record)
                logging.info("%s: %s", " ".join(str(v) for v in point.values()), shown)
            results.save()
            missing = missing[len(found) :]


def _floor(flags, spec, results, models, deadline):
    records = results.section("gpu_floor")
    known = {_key({"round": 0, **record}) for record in records}
    missing = [point for point in floors(models) if _key({"round": 0, **point}) not in known]
    left = deadline - time.monotonic()
    if missing and left > 20:
        found = _process(flags, _FLOOR, spec, missing, left)
        records += [{**p, **r} for p, r in zip(missing, found, strict=False) if "parts" in r]
        results.save()


def _key(record):
    return tuple(record[name] for name in ("round", "precision", "model", "lot", "subject"))


def _process(flags, family, spec, points, left):
    full = [{**point, **_size(point["model"], point["lot"])} for point in points]
    return measure_all(
        Path(sys.executable),
        family,
        spec,
        full,
        timeout=min(flags.timeout, left),
        memory_gib=flags.memory_gib,
        variables=_variables(),
    )


def _size(model, lot):
    size = {"examples": max(_EXAMPLES[model], lot)} if model in _EXAMPLES else {}
    physical = _PHYSICAL.get(model, lot)
    return size | ({"physical": physical} if lot > physical else {})


def _variables():
    """Returns this process's environment, with this repository to import from.

    JAX leaves the memory to others until it needs it; otherwise its peak is what it has set aside.
    """
    variables = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    variables |= {"TF_CPP_MIN_LOG_LEVEL": "3", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    return variables | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
