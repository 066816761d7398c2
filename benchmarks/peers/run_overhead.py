"""Measures tfdp's `fit`, with and without metrics, and its lots, alternately."""

import itertools
import statistics
import time

import protocol

_SKIPPED = 5  # untimed steps at the start of a fit, while the queue of lots fills
_TURNS = 24  # how often the parts alternate, since the speed of machines varies


def run(spec, start):
    del start
    import keras

    import tfdp

    x, y = protocol.data(spec)
    steps = spec["steps"] + _SKIPPED

    def private(metrics):
        keras.utils.set_random_seed(0)
        shape = protocol.SHAPES[spec["model"]]
        model = tfdp.make_private(tfdp.models.build(spec["model"], shape, protocol.CLASSES))
        model.compile(
            tfdp.DPKerasSGDOptimizer(
                learning_rate=protocol.LEARNING_RATE,
                l2_norm_clip=protocol.L2_NORM_CLIP,
                noise_multiplier=protocol.NOISE_MULTIPLIER,
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=metrics,
        )
        return model

    multiple = tfdp.data.row_multiple_for(spec["lot"])
    make = tfdp.data.make_lots
    poisson = make("poisson", x, y, lot_size=spec["lot"], row_multiple=multiple)
    cyclic = make("cyclic", x, y, lot_size=spec["lot"])

    def fit(metrics, lots):
        model = private(metrics)

        def once(clock):
            ticks = keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: clock.tick()
            )
            model.fit(lots.as_dataset(), steps_per_epoch=steps, verbose=0, callbacks=[ticks])

        return once

    def draw(clock):
        for _ in range(steps):
            next(drawn)
            clock.tick()

    drawn = iter(poisson.as_dataset())
    parts = {
        "fit": fit(["accuracy"], poisson),
        "fit_plain": fit(None, poisson),
        "fit_cyclic": fit(None, cyclic),
        "lots": draw,
    }
    found = {name: [] for name in parts}
    for turn in range(_TURNS):
        order = list(parts) if turn % 2 == 0 else list(reversed(parts))
        for name in order:
            clock = _Times()
            parts[name](clock)
            if turn:  # the first turn compiles
                found[name].append(clock.result())
    answer = {}
    for name, times in found.items():
        wall, cpu = zip(*times, strict=True)
        answer |= {name: statistics.median(wall), f"{name}_cpu": statistics.median(cpu)}
    return {"parts": answer}


class _Times:
    """Measures the time from the end of one step to the end of the next."""

    def __init__(self):
        self.ends, self.cpu = [], []

    def tick(self):
        self.ends.append(time.perf_counter())
        self.cpu.append(time.process_time())

    def result(self):
        """Returns the median time of a step and its mean processor time over all threads, in ms."""
        ends, cpu = self.ends[_SKIPPED:], self.cpu[_SKIPPED:]
        wall = statistics.median(b - a for a, b in itertools.pairwise(ends))
        return 1000 * wall, 1000 * (cpu[-1] - cpu[0]) / (len(cpu) - 1)


if __name__ == "__main__":
    protocol.main(run)
