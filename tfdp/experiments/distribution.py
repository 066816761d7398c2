"""The strategy under which an experiment trains: several devices, or several machines."""

import contextlib
import functools

import tensorflow as tf

from tfdp.experiments.settings import MULTI_WORKER, Experiment


def scope(experiment: Experiment) -> contextlib.AbstractContextManager:
    """Returns the context in which the model of an experiment is built and compiled."""
    if experiment.distribute is None:
        return contextlib.nullcontext()
    return _strategy(experiment.distribute, experiment.devices).scope()


@functools.cache  # TensorFlow remembers the devices of the first strategy of a process
def _strategy(kind: str, devices: int | None) -> tf.distribute.Strategy:
    if kind == MULTI_WORKER:
        return tf.distribute.MultiWorkerMirroredStrategy()
    names = _devices(devices)
    if len(names) < 2:
        raise ValueError(
            f"--distribute={kind} found a single device. Remove the flag; or pass --devices=2, which "
            "divides the CPU, to try it without GPUs."
        )
    return tf.distribute.MirroredStrategy(names)


def _devices(number: int | None) -> list[str]:
    """Returns the names of the GPUs, or without any, of `number` parts of the CPU."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if number is not None and number > len(gpus):
            raise ValueError(f"--devices={number}, but there are {len(gpus)} GPUs. Pass fewer.")
        return [f"GPU:{i}" for i in range(number or len(gpus))]
    (cpu,) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration()] * (number or 1)
    with contextlib.suppress(RuntimeError):  # an earlier training of this process divided it
        tf.config.set_logical_device_configuration(cpu, parts)
    found = len(tf.config.list_logical_devices("CPU"))
    if found < (number or 1):
        raise ValueError(
            f"--devices={number}, but TensorFlow has started with {found}. Start a new process."
        )
    return [f"CPU:{i}" for i in range(number or 1)]
