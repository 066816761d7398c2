"""What the measured programs share: one JSON object in, one out, and a clock in between.

Standard library and NumPy only, since each program runs in the environment of its framework.
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
# Hyperparameters do not change how long a step takes; these keep the weights finite.
LEARNING_RATE = 0.01
L2_NORM_CLIP = 1.0
NOISE_MULTIPLIER = 1.1
LOTS_OF_DATA = 16
_FEWEST_STEPS = 3


class Enough(Exception):
    """Raised by the clock when it has seen all steps it wants."""


class TooSlow(Exception):
    """Raised by the clock when a step takes longer than the bound."""


class Unsupported(Exception):
    """The framework has no way to train this model like this."""


class Clock:
    """Measures the time from the end of one step to the end of the next, data included.

    Args:
        spec: "steps", how many are wanted; "warmup", how many come before them; "seconds", after
            which fewer of either are enough; "max_step_seconds".
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
        """The next step is not counted: work that comes once per epoch fell into it."""
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
    """Memory of this process, "VmRSS" (now) or "VmHWM" (at its highest), in MiB.

    `resource.getrusage` would do for the peak, but on Linux it begins with the peak of the parent.
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
    """How many examples the data have."""
    return spec["examples"] if "examples" in spec else LOTS_OF_DATA * spec["lot"]


def data(spec):
    """Random inputs and labels: "examples", or `LOTS_OF_DATA` lots. No token is 0, the padding."""
    import numpy as np

    generator = np.random.default_rng(0)
    count, shape = examples(spec), SHAPES[spec["model"]]
    if len(shape) == 1:
        x = generator.integers(1, TOKENS, (count, *shape)).astype("int32")
    else:
        x = generator.standard_normal((count, *shape), dtype="float32")
    return x, generator.integers(0, CLASSES, count).astype("int32")


def epochs(spec):
    """Enough epochs for the clock to stop the training, not the training itself."""
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
                float(value)  # waits for what a framework computes in the background
            clock.tick()

    return Ticks()


def main(run):
    """Reads a spec from the command line, runs it and prints what was found.

    Args:
        run: (spec, clock factory) -> dict of versions; trains until the clock stops it.
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
    except Exception as error:  # whatever a framework raises is its answer
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
