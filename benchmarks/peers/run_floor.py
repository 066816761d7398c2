"""Reads what a training step without privacy has to do, and measures what the device can do, with JAX.

Floating-point operations and bytes are those of one forward and one backward pass as XLA compiles
them for this device (`cost_analysis`): the bytes are what its fused kernels read and write.
"""

import os
import time

import keras_models
import protocol

os.environ["KERAS_BACKEND"] = "jax"
SIDE = 8192  # of the square matrices whose product is timed
COPIED = 2**30  # bytes
PART = 8  # tokens of a recurrent model that are analysed, since XLA compiles them one by one
TIMES = 10


def run(spec, start):
    import jax

    if not protocol.on_gpu(spec):
        jax.config.update("jax_platforms", "cpu")
    elif jax.default_backend() != "gpu":
        raise RuntimeError("JAX sees no GPU")
    names = {"tensor_float_32": "tensorfloat32"}
    chosen = names.get(protocol.precision(spec), "float32")
    mixed = protocol.precision(spec) == "mixed_bfloat16"
    with jax.default_matmul_precision("default" if mixed else chosen):
        parts = _device(spec, mixed) if spec["subject"] == "device" else _step(spec, mixed)
    return {"parts": parts, "versions": {"jax": jax.__version__}}


def _device(spec, mixed):
    """Returns the rate of a large matrix product and of a copy on the device."""
    import jax
    import jax.numpy as jnp

    side = spec.get("side", SIDE)
    dtype = jnp.bfloat16 if mixed else jnp.float32
    a, b = (jax.random.normal(jax.random.key(k), (side, side), dtype) for k in (0, 1))
    product = _seconds(jax.jit(jnp.matmul), a, b)
    x = jnp.zeros(spec.get("copied", COPIED) // 4, jnp.float32)
    copy = _seconds(jax.jit(lambda x: x + 1), x)
    return {"tflop_per_s": 2 * side**3 / product / 1e12, "gb_per_s": 2 * x.nbytes / copy / 1e9}


def _seconds(function, *arguments):
    """Returns the shortest time of a call, in seconds, compilation left out."""
    import jax

    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(TIMES):
        begin = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - begin)
    return min(times)


def _step(spec, mixed):
    """Returns the operations and bytes of one forward and one backward pass on a lot."""
    import jax
    import keras

    keras.config.set_dtype_policy("mixed_bfloat16" if mixed else "float32")
    shape, times = protocol.SHAPES[spec["model"]], 1
    model = _build(keras, spec["model"])
    recurrent = [layer for layer in model._flatten_layers() if hasattr(layer, "unroll")]
    if recurrent:
        shape, times = (PART,), shape[0] / PART
    for layer in recurrent:
        layer.unroll = True  # XLA counts the body of a loop once

    def loss(trainable, rest, x, y):
        logits, _ = model.stateless_call(trainable, rest, x, training=True)
        return keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True).mean()

    x = jax.ShapeDtypeStruct((spec["lot"], *shape), "int32" if len(shape) == 1 else "float32")
    y = jax.ShapeDtypeStruct((spec["lot"],), "int32")
    weights = [
        [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    ]
    lowered = jax.jit(jax.grad(loss)).lower(*weights, x, y)
    moved = lowered.compile().cost_analysis()["bytes accessed"]
    operations = lowered.cost_analysis()["flops"]
    return {"gflop": times * operations / 1e9, "gbyte": times * moved / 1e9}


def _build(keras, name):
    if name in keras_models.NAMES:
        return keras_models.build(keras, name, keras.Model, _positions)
    import realistic

    return realistic.build(name)


def _positions(tokens):
    from keras import ops

    return ops.cumsum(ops.ones_like(tokens), axis=1) - 1


if __name__ == "__main__":
    protocol.main(run)
