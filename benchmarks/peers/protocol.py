"""The code that all measured programs share: JSON input and output, the data and the clock.

A measured program reads one JSON object, the spec, from its command line and prints one JSON object.
This module uses only the standard library and NumPy, since each program runs in the environment of
its framework.
"""

import contextlib
import json
import resource
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
}
# Hyperparameters do not change the time of a step. These values keep the weights finite.
LEARNING_RATE = 0.01
L2_NORM_CLIP = 1.0
NOISE_MULTIPLIER = 1.1
LOTS_OF_DATA = 16
_FEWEST_STEPS = 3


class Enough(Exception):
    """Raised by the clock when it has timed enough steps."""


class TooSlow(Exception):
    """Raised by the clock when the second step takes longer than the limit."""


class Unsupported(Exception):
    """The framework cannot train this model in the requested way."""


class Clock:
    """Measures the time from the end of one step to the end of the next, data included.

    Args:
        spec: a dict with "steps", the number of steps to time; "warmup", the number of steps before
            them; "seconds", the time after which fewer steps of either kind are enough; and
            "max_step_seconds", the limit on the time of the second step.
    """

    def __init__(self, spec):
        self.spec = spec
        self.durations = []
        self.first = None
        self.count = 0
        self.warm = 0.0
        self.start_mib = memory_mib("VmRSS")
        self.last = time.perf_counter()

    def pause(self):
        """Excludes the next step from the times, because it includes work done once per epoch."""
        if self.count:
            self.last = None

    def tick(self):
        """Marks the end of a step."""
        now = time.perf_counter()
        elapsed = None if self.last is None else now - self.last
        self.last = now
        self.count += 1
        if self.count == 1:
            self.first = elapsed
            return
        if elapsed is None:
            return
        if elapsed > self.spec["max_step_seconds"] and self.count == 2:
            raise TooSlow(f"a step takes {elapsed:.0f} s")
        if self.count <= self.spec["warmup"] and self.warm <= self.spec["seconds"]:
            self.warm += elapsed
            return
        self.durations.append(elapsed)
        done = len(self.durations)
        if done >= self.spec["steps"]:
            raise Enough
        if done >= _FEWEST_STEPS and sum(self.durations) > self.spec["seconds"]:
            raise Enough


def memory_mib(field):
    """Returns the memory of this process in MiB: "VmRSS" (current) or "VmHWM" (highest).

    On Linux, the peak of `resource.getrusage` starts at the peak of the parent process. Therefore it
    is used only where /proc is missing.
    """
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith(f"{field}:"):
                    return int(line.split()[1]) / 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def examples(spec):
    """Returns the number of examples: `spec["examples"]`, or `LOTS_OF_DATA` lots by default."""
    return spec["examples"] if "examples" in spec else LOTS_OF_DATA * spec["lot"]


def data(spec):
    """Returns random inputs and labels. No token is 0, because 0 is the padding."""
    import numpy as np

    generator = np.random.default_rng(0)
    count, shape = examples(spec), SHAPES[spec["model"]]
    if len(shape) == 1:
        x = generator.integers(1, TOKENS, (count, *shape)).astype("int32")
    else:
        x = generator.standard_normal((count, *shape), dtype="float32")
    return x, generator.integers(0, CLASSES, count).astype("int32")


def epochs(spec):
    """Returns a number of epochs that is large enough for the clock to stop the training."""
    whole = spec["warmup"] + spec["steps"]
    steps = spec["examples"] // spec["lot"] if "examples" in spec else LOTS_OF_DATA
    return 2 + whole // max(steps - 1, 1)  # the first step of an epoch does not count


def fit(keras, model, clock, x, y):
    """Trains a compiled model of Keras 2 or 3 until the clock stops it."""
    with contextlib.suppress(Enough):
        model.fit(
            x,
            y,
            batch_size=clock.spec["lot"],
            epochs=epochs(clock.spec),
            verbose=0,
            callbacks=[_ticks(keras, clock)],
        )


def _ticks(keras, clock):

    class Ticks(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            clock.pause()

        def on_train_batch_end(self, batch, logs=None):
            for value in (logs or {}).values():
                float(value)  # waits until the framework has computed the step
            clock.tick()

    return Ticks()


def main(run):
    """Reads a spec from the command line, runs it and prints the answer as JSON.

    Args:
        run: a function of the spec and of a function that starts a `Clock`. It trains until the clock
            stops it and returns a dict that is added to the answer, such as the versions.
    """
    spec = json.loads(sys.argv[1])
    clocks = []

    def start():
        clocks.append(Clock(spec))
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
        answer["failed"] = f"{type(error).__name__}: {error}"
    clock = clocks[-1] if clocks else None
    if clock is not None and clock.durations and not answer.keys() & {"failed", "skipped"}:
        answer |= {
            "durations": clock.durations,
            "first_step_seconds": clock.first,
            "start_mib": clock.start_mib,
            "peak_mib": memory_mib("VmHWM"),
        }
    print("\n" + json.dumps(answer), flush=True)
