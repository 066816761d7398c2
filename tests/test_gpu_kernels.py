"""Operations of a private step run on a GPU: TensorFlow has kernels for them, seen without a GPU.

An operation without one runs on the CPU, in silence, and what it reads and makes is copied.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels

import tfdp
from tests.helpers import take_gpu_paths
from tfdp.noise import NoiseSource

# Functions and their arguments, which need no kernel.
STRUCTURE = ("PartitionedCall", "StatefulPartitionedCall", "Placeholder", "_Arg")


def kernels_of(operation):
    found = kernels.get_registered_kernels_for_op(operation).kernel
    return [kernel for kernel in found if kernel.device_type in ("GPU", "DEFAULT")]


def has_kernel(operation):
    def holds(constraint):
        types = operation.get_attr(constraint.name)
        types = types if isinstance(types, list) else [types]
        allowed = {tf.as_dtype(number) for number in constraint.allowed_values.list.type}
        return allowed.issuperset(types)

    return operation.type in STRUCTURE or any(
        all(holds(constraint) for constraint in kernel.constraint)
        for kernel in kernels_of(operation.type)
    )


def graphs_of(graph):
    yield graph
    for name in graph._functions:
        yield from graphs_of(graph._get_function(name).graph)


def model_of_many_layers():
    image, words = keras.Input((8, 8, 1)), keras.Input((8,), dtype="int32")
    seen = keras.layers.Conv2D(4, 3)(image)
    seen = keras.layers.GroupNormalization(2)(seen)
    seen = keras.layers.MaxPooling2D()(seen)
    seen = keras.layers.Dropout(0.5)(keras.layers.Flatten()(seen))
    read = keras.layers.Embedding(20, 4, mask_zero=True)(words)
    read = keras.layers.Bidirectional(keras.layers.LSTM(4))(read)
    both = keras.layers.Concatenate()([seen, read])
    return keras.Model([image, words], keras.layers.Dense(3)(both))


@pytest.mark.skipif(
    not kernels_of("MatMul"), reason="TensorFlow was built without kernels for a GPU"
)
@pytest.mark.parametrize("engine", ["ghost", "vectorized"])
def test_each_operation_of_a_step_has_a_kernel_for_a_gpu(monkeypatch, engine):
    take_gpu_paths(monkeypatch)
    model = tfdp.make_private(model_of_many_layers(), engine=engine)
    optimizer = tfdp.DPKerasAdamOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    graphs = []
    gaussians = NoiseSource.gaussians

    def seen(*arguments):
        graphs.append(tf.compat.v1.get_default_graph())  # noise is added in the step's own graph
        return gaussians(*arguments)

    monkeypatch.setattr(NoiseSource, "gaussians", seen)
    x = [np.ones((4, *shape[1:]), "int32") for shape in model.input_shape]
    model.fit(x, np.arange(4) % 3, verbose=0)
    operations = [o for graph in graphs_of(graphs[0]) for o in graph.get_operations()]
    assert len(operations) > 500
    assert [operation for operation in operations if not has_kernel(operation)] == []
