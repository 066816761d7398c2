"""Measures steps on one GPU, in a sitting of some minutes: `python -m benchmarks --device=gpu`.

A GPU is often lent for minutes, most of which frameworks spend on the processor: they start, trace and
compile. So a process measures many points, several processes prepare theirs side by side, and each has
the machine for itself while it times (`peers/protocol.Turn`). The same command measures the remaining
points later. All frameworks must be installed in the Python that runs the command. Missing ones are
reported as failed.
"""

import concurrent.futures
import dataclasses
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from absl import logging

from benchmarks.measure import measure
from benchmarks.subjects import FAMILIES, HERE, family_of

SMALL = ("tutorial_cnn", "resnet18", "bilstm", "transformer")
COMPILED = ("tutorial_cnn", "resnet18", "transformer")  # Keras does not compile an LSTM
BERT = ("bert_base", "bert_base_lora", "bert_base_head")
MODELS = (*SMALL, *BERT)
LOTS = (256, 4096)
# Examples of an epoch, whose beginning and end count as part of its steps.
_EXAMPLES = {"tutorial_cnn": 32_768, "resnet18": 16_384, "bilstm": 32_768, "transformer": 32_768}
_EXAMPLES_OF_BERT = 2048
# Private rows that are in the network at a time, where whole lots do not fit into 80 GB.
_PHYSICAL = {"resnet18": 1024, "bert_base": 128, "bert_base_lora": 128}
_PHYSICAL_VECTORIZED = {"resnet18": 128, "bilstm": 512, "transformer": 512, "bert_base": 16}
# The measurements, most important first: (precision, subjects, models).
_FASTER = "tensor_float_32"  # TensorFlow's default
PASSES = (
    (_FASTER, ("keras_tf_xla", "tfdp_xla"), COMPILED),
    (_FASTER, ("keras_tf", "tfdp", "tfdp_vectorized"), SMALL),
    ("mixed_bfloat16", ("keras_tf", "tfdp"), BERT),
    (_FASTER, ("pytorch", "opacus_ghost"), SMALL),
    (_FASTER, ("keras_jax",), SMALL),
    (_FASTER, ("jax_privacy",), SMALL),
    (_FASTER, ("tfdp_xla",), ("bilstm",)),
    (_FASTER, ("tfdp_vectorized_microbatches",), ("tutorial_cnn",)),
    (_FASTER, ("keras_tf", "tfdp"), BERT),
    ("mixed_bfloat16", ("keras_tf", "tfdp"), SMALL),
    ("float32", ("keras_tf", "tfdp"), SMALL),
    (_FASTER, ("keras_tf_xla", "tfdp_xla"), BERT),
    (_FASTER, ("tfdp_vectorized",), BERT),
)
# Number of processes side by side, and the memory of the card that they may take, in GB, if known.
_PROCESSES, _MEMORY = 7, 76
_TAKES = {"resnet18": 36, **dict.fromkeys(BERT, 50)}
_TAKES_OTHERWISE = 8


@dataclasses.dataclass(frozen=True)
class Task:
    """The measurements of one process: some points of one model, in one round."""

    family: str
    points: tuple[dict, ...]

    @property
    def memory(self) -> int:
        """The memory of the card that the process may take, in GB."""
        takes = _TAKES.get(self.points[0]["model"], _TAKES_OTHERWISE)
        return takes // 2 if self.points[0]["precision"] == "mixed_bfloat16" else takes


def plan(repeats: int, models=MODELS, lots=LOTS):
    """Yields the tasks, whose points have a round, precision, model, lot and subject.

    Lots grow, because JAX cannot reset its peak of memory. Every other round reverses the order of the
    subjects. BERT is not measured with lots of 4,096, which would be several chunks.
    """
    for round in range(repeats):
        for precision, subjects, which in PASSES:
            order = subjects if round % 2 == 0 else subjects[::-1]
            for model in which:
                common = {"round": round, "precision": precision, "model": model}
                points = tuple(
                    {**common, "lot": lot, "subject": subject}
                    for lot in sorted(lots)
                    for subject in order
                    if not (model in BERT and lot > LOTS[0])
                )
                if model in models and points:
                    yield Task(family_of(subjects[0]).name, points)


def sit(flags, spec: dict, results) -> None:
    """Measures the points that are missing in `results`, for at most `flags.minutes`.

    Args:
        flags: The flags of the command.
        spec: The settings for the measured programs.
        results: The `benchmarks.results.Results`, which are saved after each process.
    """
    sitting = _Sitting(flags, {**spec, "device": "gpu"}, results)
    with tempfile.TemporaryDirectory() as folder:
        sitting.turns = str(Path(folder, "turn"))
        with concurrent.futures.ThreadPoolExecutor(_PROCESSES) as pool:
            for done in [pool.submit(sitting.work) for _ in range(_PROCESSES)]:
                done.result()


class _Sitting:
    def __init__(self, flags, spec, results):
        self._flags, self._spec, self._results = flags, spec, results
        self._deadline = time.monotonic() + 60 * (flags.minutes or 1e9)
        self._tasks = [*plan(flags.repeats, flags.models, flags.lots)]
        self._free, self._changed = _MEMORY, threading.Condition()
        self.turns = ""

    def work(self) -> None:
        """Measures one task after the other, until none is left or time is up."""
        while (task := self._next()) is not None:
            try:
                on = self._measure(task)
            finally:
                with self._changed:
                    self._free += task.memory
                    self._changed.notify_all()
            if not on:
                logging.info("Time is up; the same command resumes it.")
                return

    def _next(self):
        """Takes the first task whose memory is free, and waits for one if needed."""
        with self._changed:
            while self._tasks:
                for task in self._tasks:
                    if task.memory <= self._free:
                        self._tasks.remove(task)
                        self._free -= task.memory
                        return task
                self._changed.wait()
            return None

    def _measure(self, task):
        with self._changed:
            missing = self._results.missing("gpu", task.points)
        while missing:
            left = self._deadline - time.monotonic()
            if left < 20:
                return False
            found = measure(
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
                    return False  # all of the time is used; the point met no limit of its own
                with self._changed:
                    self._results.add("gpu", point, record)
                shown = record.get("step_ms", record)
                logging.info("%s: %s", " ".join(str(v) for v in point.values()), shown)
            missing = missing[len(found) :]
        return True


def _size(point):
    model, lot = point["model"], point["lot"]
    size = {"examples": _EXAMPLES.get(model, _EXAMPLES_OF_BERT)}
    chunks = _PHYSICAL_VECTORIZED if "vectorized" in point["subject"] else _PHYSICAL
    physical = chunks.get(model, lot)
    return size | ({"physical": physical} if lot > physical else {})


def _variables(turns):
    """Returns this process's environment, with this repository to import from.

    Frameworks allocate memory only when they need it. Otherwise JAX's peak would be what it reserved.
    """
    variables = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    variables |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    variables |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "BENCHMARK_TURNS": turns}
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    return variables | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
