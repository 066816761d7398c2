"""Times steps on one and two devices, and on two machines, beside training without privacy.

    python -m benchmarks.devices                # one and two parts of the CPU, or GPUs
    python -m benchmarks.devices --machines     # two processes that stand for two machines

On devices, plain Keras trains by `fit` under the same strategy. On machines, plain Keras 3.15 cannot,
so the private `fit` is compared with a plain loop by `strategy.run`. Each configuration has its own
process. The output is a table of milliseconds. Where devices share cores, the second device adds no
speed, and the noise is drawn once more.
"""

import argparse
import contextlib
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import time

MODELS = {"mlp": 256, "tutorial_cnn": 256}
_STEPS, _WARMUP = 60, 10


def _data(model):
    import numpy as np

    draw = np.random.default_rng(0)
    return draw.normal(size=(4096, 28, 28, 1)).astype("float32"), draw.integers(0, 10, 4096)


def _strategy(devices):
    import tensorflow as tf

    if "TF_CONFIG" in os.environ:
        return tf.distribute.MultiWorkerMirroredStrategy()
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    if kind == "CPU":
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration()] * devices
        tf.config.set_logical_device_configuration(cpu, parts)
    if devices == 1:
        return None
    return tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(devices)])


def measured(model: str, subject: str, devices: int) -> float:
    """Returns the median milliseconds of a step in this process.

    Args:
        model: A name in `MODELS`.
        subject: "tfdp", "plain" (Keras' fit) or "loop" (a plain loop by `strategy.run`).
        devices: Number of devices of this process.
    """
    strategy = _strategy(devices)
    import keras

    import tfdp

    x, y = _data(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        keras.utils.set_random_seed(0)
        network = tfdp.models.build(model, (28, 28, 1), 10)
        if subject == "tfdp":
            network = tfdp.make_private(network)
            rule = tfdp.DPKerasSGDOptimizer(
                l2_norm_clip=1.0, noise_multiplier=1.0, learning_rate=0.1
            )
        else:
            rule = keras.optimizers.SGD(0.1)
        network.compile(rule, loss, jit_compile=False)
    if subject == "loop":
        return _loop(strategy, network, loss, x, y, MODELS[model])
    times = _Times()
    size = MODELS[model]
    data = (x, y)
    if subject == "tfdp":
        data = (tfdp.data.make_lots("cyclic", x, y, lot_size=size),)
    options = {} if subject == "tfdp" else {"batch_size": size}
    epochs = -(-(_STEPS + _WARMUP) * size // len(x))
    network.fit(*data, epochs=epochs, verbose=0, callbacks=[times.callback()], **options)
    return times.median()


def _loop(strategy, network, loss, x, y, size) -> float:
    """Times a plain loop on several machines, whose gradients Keras' optimizer adds."""
    import tensorflow as tf

    parts = strategy.num_replicas_in_sync
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(size // parts)
    batches = iter(strategy.distribute_datasets_from_function(lambda _: dataset.prefetch(2)))

    def step(batch):
        inputs, targets = batch
        with tf.GradientTape() as tape:
            value = loss(targets, network(inputs, training=True)) / parts
        found = tape.gradient(value, network.trainable_weights)
        network.optimizer.apply_gradients(zip(found, network.trainable_weights, strict=True))

    @tf.function
    def take(batches):
        strategy.run(step, args=(next(batches),))

    times = _Times()
    for _ in range(_STEPS + _WARMUP):
        take(batches)
        times.note()
    return times.median()


class _Times:
    """Records the times at which steps end."""

    def __init__(self):
        self._ends: list[float] = []

    def note(self, *_, **logs):
        self._ends.append(time.perf_counter())

    def callback(self):
        import keras

        return keras.callbacks.LambdaCallback(on_train_batch_end=self.note)

    def median(self) -> float:
        ends = self._ends[_WARMUP:]
        return 1000 * statistics.median(b - a for a, b in itertools.pairwise(ends))


def _of_processes(model, subject, devices, machines) -> float:
    """Returns the measurement of the first of several processes."""
    command = [sys.executable, "-m", "benchmarks.devices", "--one", model, subject, str(devices)]
    processes = []
    places = [f"127.0.0.1:{port}" for port in _free_ports(machines)]
    for index in range(machines):
        variables = dict(os.environ)
        if machines > 1:
            task = {"type": "worker", "index": index}
            variables["TF_CONFIG"] = json.dumps({"cluster": {"worker": places}, "task": task})
        processes.append(
            subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
        )
    outputs = [process.communicate()[0] for process in processes]
    return float(outputs[0].splitlines()[-1])


def _free_ports(number):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--machines", action="store_true", help="two machines in place of devices")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each number")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        print(measured(given.one[0], given.one[1], int(given.one[2])))
        return
    plain = "loop" if given.machines else "plain"
    kinds = [(1, 2)] if given.machines else [(1, 1), (2, 1)]
    print("| model | lot | devices | machines | plain, ms | tfdp, ms | over |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for model, lot in MODELS.items():
        for devices, machines in kinds:
            rounds = [
                [_of_processes(model, subject, devices, machines) for subject in (plain, "tfdp")]
                for _ in range(given.rounds)
            ]
            beside, ours = (statistics.median(each) for each in zip(*rounds, strict=True))
            row = (model, lot, devices, machines, f"{beside:.2f}", f"{ours:.2f}")
            print(f"| {' | '.join(map(str, row))} | {ours / beside:.2f} |", flush=True)


if __name__ == "__main__":
    main()
