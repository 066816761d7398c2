"""Every operation of a private step has a kernel for GPUs, which shows without one.

TensorFlow computes an operation without such a kernel on the CPU, and copies what it needs there and
back in every step.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import kernels

import tfdp


def on_gpus(node):
    """Whether a node of a function has a kernel for its types on GPUs, or needs none."""
    found = kernels.get_registered_kernels_for_op(node.op).kernel
    if not found or any(kernel.device_type == "DEFAULT" for kernel in found):
        return True
    return any(kernel.device_type == "GPU" and _fits(kernel, node) for kernel in found)


def _fits(kernel, node):
    return all(
        node.attr[limit.name].type in limit.allowed_values.list.type
        for limit in kernel.constraint
        if limit.name in node.attr and limit.allowed_values.list.type
    )


pytestmark = pytest.mark.skipif(
    not any(k.device_type == "GPU" for k in kernels.get_registered_kernels_for_op("MatMul").kernel),
    reason="this TensorFlow was built without kernels for GPUs",
)
SHAPES = {
    "mlp": (8, 8, 1),
    "tutorial_cnn": (28, 28, 1),
    "resnet18": (16, 16, 3),
    "bilstm": (6,),
    "transformer": (6,),
}


def functions():
    known = context.context()
    return {name: known.get_function_def(name) for name in known.list_function_names()}


def without_kernels(before):
    """Returns (operation, types) of the nodes of steps that were traced since `before`.

    What TensorFlow makes for one operation, and what a data set computes, is left out.
    """
    missing = set()
    for name, function in functions().items():
        if name in before or function is None or name.startswith("__wrapped__"):
            continue
        if "Dataset" in name or any("Dataset" in node.op for node in function.node_def):
            continue
        missing |= missing_among(function.node_def)
    return missing


def missing_among(nodes):
    """Returns (operation, types) of the nodes that have no kernel for GPUs."""
    found = set()
    for node in nodes:
        if not on_gpus(node):
            types = [tf.dtypes.as_dtype(a.type).name for a in node.attr.values() if a.type]
            found.add((node.op, *types))
    return found


@pytest.mark.parametrize("engine", ["ghost", "vectorized"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_step_of_a_model(name, engine):
    shape = SHAPES[name]
    model = tfdp.make_private(tfdp.models.build(name, shape, 10), engine=engine)
    optimizer = tfdp.DPKerasAdamOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    before = functions()
    x = np.ones((8, *shape), "int32" if len(shape) == 1 else "float32")
    model.train_on_batch(x, np.zeros(8, "int32"))
    assert sum(len(functions()[name].node_def) for name in functions().keys() - before.keys()) > 200
    assert not without_kernels(before)


def test_an_operation_without_kernel_is_found():
    with tf.Graph().as_default() as graph:
        tf.strings.length(tf.strings.as_string(tf.constant([1.0])))
        tf.constant([1.0]) + 1.0
    assert missing_among(graph.as_graph_def().node) >= {("AsString", "float32")}
