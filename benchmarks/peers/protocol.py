"""The code that all measured programs share: JSON input and output, the data and the clock.

A measured program reads one JSON object, the spec, from its command line and prints one JSON object;
or, if the spec has a list of "points", one for each of them. This module uses only the standard library
and NumPy, since each program runs in the environment of its framework.
"""

import contextlib
import fcntl
import json
import os
import sys
import time
import traceback

CLASSES = 10
TOKENS = 10_000
SHAPES = {
    "mlp": (28, 28, 1),
    "tutorial_cnn": (28, 28, 1),
    "lenet5": (28, 28, 1),
    "cifar_tutorial": (32, 32, 3),
    "resnet18": (32, 32, 3),
    "bilstm": (64,),
    "transformer": (64,),
    "mobilenet_v2": (96, 96, 3),
    "efficientnet_b0": (64, 64, 3),
    "u_net": (64, 64, 3),
    "lstm": (64,),
    "encoder": (128,),
    "encoder_lora": (128,),
    "bert_base": (128,),
    "bert_base_lora": (128,),
    "bert_base_head": (128,),
}
# Models with a label for each pixel.
SEGMENTATION = ("u_net",)
# Rows of an epoch, and lots of models that are not listed: enough that the cost of an epoch besides its
# steps is small, as in real trainings. (Keras took 30 ms for each epoch of an MLP of 0.65 ms a step.)
_ROWS = {"mlp": 32_000, "tutorial_cnn": 19_200, "lenet5": 19_200, "cifar_tutorial": 3_200}
_ROWS |= dict.fromkeys(("bilstm", "transformer", "lstm"), 6_400)
_LOTS_OF_LARGE_MODELS = 8
# Hyperparameters do not change the time of a step. These values keep the weights finite.
LEARNING_RATE = 0.01
L2_NORM_CLIP = 1.0
NOISE_MULTIPLIER = 1.1
_FEWEST_TIMES = 3
# Errors of TensorFlow, JAX and PyTorch if a GPU's memory is full.
_OUT_OF_MEMORY = ("ResourceExhausted", "RESOURCE_EXHAUSTED", "OutOfMemoryError", "out of memory")
# The precision of float32 products, or another type between layers. CPUs have only the first.
PRECISIONS = ("float32", "tensor_float_32", "mixed_bfloat16")


class Enough(Exception):
    """Raised by the clock when it has timed enough steps."""


class TooSlow(Exception):
    """Raised by the clock when the second step takes longer than the limit."""


class Unsupported(Exception):
    """Error for a framework that cannot train the model in the requested way."""


class Turn:
    """A place among processes that share a machine: they prepare side by side and time one by one.

    Processes that wait to time go first. Otherwise one that prepares its next point would keep the
    others waiting each time.

    Args:
        path: A file that the processes share. None for a process that has the machine for itself.
    """

    def __init__(self, path=None):
        names = (path, f"{path}.wishes") if path else ()
        self._files = [open(name, "w") for name in names]  # noqa: SIM115

    def prepare(self):
        """Waits until no process times or waits to time. Others may prepare as well."""
        if self._files:
            machine, wishes = self._files
            fcntl.flock(machine, fcntl.LOCK_UN)
            fcntl.flock(wishes, fcntl.LOCK_UN)
            fcntl.flock(wishes, fcntl.LOCK_EX)
            fcntl.flock(machine, fcntl.LOCK_SH)
            fcntl.flock(wishes, fcntl.LOCK_UN)

    def time(self):
        """Waits until no process prepares or times. Others wait until this one prepares again."""
        if self._files:
            machine, wishes = self._files
            # Otherwise two processes that wait to time would wait for each other.
            fcntl.flock(machine, fcntl.LOCK_UN)
            fcntl.flock(wishes, fcntl.LOCK_SH)
            fcntl.flock(machine, fcntl.LOCK_EX)


class Clock:
    """Measures the time of a step with its data, as the mean over the steps between two ticks.

    Args:
        spec: A dict with "steps", the number of steps to time; "warmup", the number of steps before
            them; "seconds", the time after which fewer steps of either kind are enough; and
            "max_step_seconds", the limit on the time of a step.
        turn: The `Turn` of this process, which begins to time with the first timed step.
    """

    def __init__(self, spec, turn=None):
        self.spec = spec
        self.turn = turn or Turn()
        self.durations = []
        self.timed = 0
        self.count = 0
        self.warm = 0.0
        self.start_mib = memory_mib("VmRSS")
        self.last = time.perf_counter()

    def tick(self, steps=1):
        """Marks the end of some steps, all of those since the last tick."""
        now = time.perf_counter()
        elapsed = now - self.last
        self.last = now
        before, self.count = self.count, self.count + steps
        if not before:
            self.first = elapsed / steps
            self._begin_to_time()
            return
        if elapsed / steps > self.spec["max_step_seconds"]:
            raise TooSlow(f"a step takes {elapsed / steps:.0f} s")
        if self._warming(before):
            self.warm += elapsed
            self._begin_to_time()
            return
        self.durations.append(elapsed / steps)
        self.timed += elapsed
        enough = len(self.durations) >= _FEWEST_TIMES
        slow = self.timed > self.spec["seconds"]
        if slow and (enough or steps >= _FEWEST_TIMES):
            raise Enough
        if enough and self.count >= self.spec["warmup"] + self.spec["steps"]:
            raise Enough

    def _warming(self, count):
        return count < self.spec["warmup"] and self.warm <= self.spec["seconds"]

    def _begin_to_time(self):
        if not self._warming(self.count):
            self.turn.time()
            self.last = time.perf_counter()


def memory_mib(field):
    """Returns the memory of this process in MiB: "VmRSS" (current) or "VmHWM" (highest).

    The peak of `resource.getrusage` starts at the peak of the parent process.
    """
    with open("/proc/self/status") as status:
        (kib,) = (line.split()[1] for line in status if line.startswith(f"{field}:"))
    return int(kib) / 1024


def lots(spec):
    """Returns the number of lots in an epoch."""
    if "examples" in spec:
        return spec["examples"] // spec["lot"]
    if spec["model"] in _ROWS:
        return max(1, _ROWS[spec["model"]] // spec["lot"])
    return _LOTS_OF_LARGE_MODELS


def examples(spec):
    """Returns the number of examples: `spec["examples"]`, or whole lots by default."""
    return spec["examples"] if "examples" in spec else lots(spec) * spec["lot"]


def data(spec):
    """Returns random inputs and labels. No token is 0, because 0 is the padding."""
    import numpy as np

    generator = np.random.default_rng(0)
    count, shape = examples(spec), SHAPES[spec["model"]]
    if len(shape) == 1:
        tokens = min(spec.get("vocabulary", TOKENS), TOKENS)
        x = generator.integers(1, tokens, (count, *shape)).astype("int32")
    else:
        x = generator.standard_normal((count, *shape), dtype="float32")
    labels = shape[:2] if spec["model"] in SEGMENTATION else ()
    return x, generator.integers(0, CLASSES, (count, *labels)).astype("int32")


def epochs(spec):
    """Returns a number of epochs that is large enough for the clock to stop the training."""
    return 2 + _FEWEST_TIMES + (spec["warmup"] + spec["steps"]) // lots(spec)


def fit(keras, model, clock, x, y, callbacks=()):
    """Trains a compiled model of Keras 2 or 3 until the clock stops it: one step, then epochs.

    Args:
        callbacks: Callbacks of the epochs.
    """
    rest = {"batch_size": clock.spec["lot"], "verbose": 0}
    model.fit(x, y, steps_per_epoch=1, callbacks=[_ticks(keras, clock, 1)], **rest)
    with contextlib.suppress(Enough):
        ticks = _ticks(keras, clock, lots(clock.spec))
        model.fit(x, y, epochs=epochs(clock.spec), callbacks=[ticks, *callbacks], **rest)


def _ticks(keras, clock, steps):

    class Ticks(keras.callbacks.Callback):
        # The loss is not read in each step, because that waits for the step, and few trainings do it.
        def on_epoch_end(self, epoch, logs=None):
            for value in (logs or {}).values():
                float(value)  # waits until the framework has computed the steps
            clock.tick(steps)

    return Ticks()


def on_gpu(spec):
    """Returns whether the spec asks for a GPU."""
    return spec.get("device", "cpu") == "gpu"


def precision(spec):
    """Returns the spec's member of `PRECISIONS`."""
    return spec.get("precision", PRECISIONS[0])


def main(run):
    """Reads a spec from the command line, runs it and prints the answers as JSON.

    Args:
        run: A function of the spec and of a function that starts a `Clock`. It trains until the clock
            stops it and returns a dict that is added to the answer, such as the versions.
    """
    spec = json.loads(sys.argv[1])
    turn = Turn(os.environ.get("BENCHMARK_TURNS"))
    for point in spec.pop("points", [{}]):
        turn.prepare()
        print("\n" + json.dumps(_answer(run, {**spec, **point}, turn)), flush=True)


def _answer(run, spec, turn):
    clocks = []

    def start():
        clocks.append(Clock(spec, turn))
        return clocks[-1]

    answer = {}
    try:
        answer.update(run(spec, start))
    except Unsupported as reason:
        answer["unsupported"] = str(reason)
    except TooSlow as reason:
        answer["skipped"] = str(reason)
    except Exception as error:  # an error of the framework is part of the answer
        traceback.print_exc()
        words = f"{type(error).__name__}: {error}"
        memory = any(sign in words for sign in _OUT_OF_MEMORY)
        answer |= {"skipped": "out of memory"} if memory else {"failed": words}
    clock = clocks[-1] if clocks else None
    if clock is not None and clock.durations and not answer.keys() & {"failed", "skipped"}:
        answer |= {
            "durations": clock.durations,
            "first_step_seconds": clock.first,
            "start_mib": clock.start_mib,
        }
        answer.setdefault("peak_mib", memory_mib("VmHWM"))
    return answer
