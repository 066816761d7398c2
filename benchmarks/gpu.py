"""Measures steps on one GPU, in a sitting of some minutes: `python -m benchmarks --device=gpu`.

A GPU is often lent for minutes, most of which frameworks spend on the processor: they start, trace and
compile. So a process measures many points, several processes prepare theirs side by side, and each has
the machine for itself while it times (`peers/protocol.Turn`). What the minutes do not reach is measured
by the same command later. All frameworks must be installed in the Python that runs the command; those
that are not are reported as failed.
"""

import collections
import dataclasses
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from absl import logging

from benchmarks.measure import measure_all
from benchmarks.subjects import FAMILIES, HERE, family_of

SMALL = ("tutorial_cnn", "resnet18", "bilstm", "transformer")
BERT = ("bert_base", "bert_base_lora", "bert_base_head")
MODELS = (*SMALL, *BERT)
LOTS = (256, 4096)
# The process that works on one of these has most of the card's memory; there is one at a time.
_LARGE = ("resnet18", *BERT)
_BESIDE = 3  # processes for the others
# Examples of an epoch; large models have four lots in an epoch.
_EXAMPLES = {"tutorial_cnn": 65_536}
# Private rows that are in the network at a time, where whole lots do not fit into 80 GB.
_PHYSICAL = {"resnet18": 1024, "bert_base": 128, "bert_base_lora": 128}
_PHYSICAL_VECTORIZED = {"resnet18": 128, "bilstm": 512, "transformer": 512, "bert_base": 16}
# What is measured, what matters most first: (precision, subjects, models).
PASSES = (
    ("float32", ("keras_tf", "tfdp", "tfdp_vectorized"), SMALL),
    ("float32", ("keras_tf_xla", "tfdp_xla"), ("tutorial_cnn", "resnet18", "transformer")),
    ("mixed_bfloat16", ("keras_tf", "tfdp"), MODELS),
    ("float32", ("pytorch", "opacus_ghost"), SMALL),
    ("float32", ("keras_tf", "tfdp"), BERT),
    ("float32", ("keras_jax",), SMALL),
    ("float32", ("jax_privacy",), SMALL),
    ("float32", ("tfdp_vectorized_microbatches",), ("tutorial_cnn",)),
    ("tensor_float_32", ("keras_tf",), MODELS),
    ("mixed_bfloat16", ("keras_tf_xla", "tfdp_xla"), ("resnet18", "transformer", "bert_base")),
    ("float32", ("tfdp_vectorized",), BERT),
)


@dataclasses.dataclass(frozen=True)
class Task:
    """What one process measures: some points of one model, in one round."""

    round: int
    family: str
    points: tuple[dict, ...]

    @property
    def large(self) -> bool:
        """Whether it needs most of the card's memory."""
        return self.points[0]["model"] in _LARGE


def plan(repeats: int, models=MODELS, lots=LOTS):
    """Yields the tasks; a point has precision, model, lot and subject.

    Lots grow, because JAX cannot set its peak of memory back. Every other round reverses the order
    of the subjects. A lot of 4,096 is not asked of BERT, where it is a number of chunks.
    """
    for round in range(repeats):
        for precision, subjects, which in PASSES:
            order = subjects if round % 2 == 0 else subjects[::-1]
            for model in which:
                points = tuple(
                    {"precision": precision, "model": model, "lot": lot, "subject": subject}
                    for lot in sorted(lots)
                    for subject in order
                    if not (model in BERT and lot > LOTS[0])
                )
                if model in models and points:
                    yield Task(round, family_of(subjects[0]).name, points)


def sit(flags, spec: dict, results) -> None:
    """Measures what is missing in `results`, for at most `flags.minutes`.

    Args:
        flags: the flags of the command.
        spec: the settings that the measured programs get.
        results: `benchmarks.results.Results`, saved after each process.
    """
    sitting = _Sitting(flags, {**spec, "device": "gpu"}, results)
    queues = [collections.deque(), collections.deque()]
    for task in plan(flags.repeats, flags.models, flags.lots):
        queues[task.large].append(task)
    with tempfile.TemporaryDirectory() as folder:
        sitting.turns = str(Path(folder, "turn"))
        threads = [
            threading.Thread(target=sitting.work, args=(queue,))
            for queue, count in zip(queues, (_BESIDE, 1), strict=True)
            for _ in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class _Sitting:
    def __init__(self, flags, spec, results):
        self._flags, self._spec, self._results = flags, spec, results
        self._deadline = time.monotonic() + 60 * (flags.minutes or 1e9)
        self._records, self._lock = results.section("gpu"), threading.Lock()
        self.turns = ""

    def work(self, queue) -> None:
        """Measures the tasks of a queue until it is empty or time is up."""
        while True:
            try:
                task = queue.popleft()
            except IndexError:
                return
            if not self._measure(task):
                logging.info("Time is up; the same command goes on.")
                return

    def _measure(self, task):
        with self._lock:
            known = {_key(record) for record in self._records}
            refused = {_key(r)[1:] for r in self._records if "step_ms" not in r}
        missing = [
            point
            for point in task.points
            if _key({"round": task.round, **point}) not in known
            and _key({"round": 0, **point})[1:] not in refused
        ]
        while missing:
            left = self._deadline - time.monotonic()
            if left < 20:
                return False
            found = measure_all(
                Path(sys.executable),
                FAMILIES[task.family],
                self._spec,
                [{**point, **_size(point)} for point in missing],
                timeout=min(self._flags.timeout, left),
                memory_gib=self._flags.memory_gib,
                variables=_variables(self.turns),
            )
            for point, record in zip(missing, found, strict=False):
                if "not done" in record.get("skipped", "") and left < self._flags.timeout:
                    return False  # the sitting ended, not the patience with this point
                self._add(task.round, point, record)
            missing = missing[len(found) :]
        return True

    def _add(self, round, point, record):
        with self._lock:
            if versions := record.pop("versions", None):
                self._results.content["versions"][point["subject"]] = versions
            self._records.append({"round": round, **point, **record})
            self._results.save()
        shown = record.get("step_ms", record)
        logging.info("%s: %s", " ".join(str(v) for v in point.values()), shown)


def _key(record):
    return tuple(record[name] for name in ("round", "precision", "model", "lot", "subject"))


def _size(point):
    model, lot = point["model"], point["lot"]
    size = {"examples": max(_EXAMPLES[model], lot)} if model in _EXAMPLES else {}
    chunks = _PHYSICAL_VECTORIZED if "vectorized" in point["subject"] else _PHYSICAL
    physical = chunks.get(model, lot)
    return size | ({"physical": physical} if lot > physical else {})


def _variables(turns):
    """Returns this process's environment, with this repository to import from.

    Frameworks leave the memory to others until they need it; JAX's peak is otherwise what it has set
    aside.
    """
    variables = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    variables |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    variables |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "BENCHMARK_TURNS": turns}
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    return variables | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
