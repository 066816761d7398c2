"""Measures `fit` of jax-privacy's Keras API, with Keras 3 on JAX.

Lots are fixed-size batches, which is the default of jax-privacy. The shape of its Poisson lots
changes from step to step, and XLA compiles again for every new shape.
"""

import math
import os

import keras_models
import protocol

os.environ["KERAS_BACKEND"] = "jax"


def run(spec, start):
    import importlib.metadata

    import jax
    import keras

    _choose(spec, jax, keras)
    x, y = protocol.data(spec)
    model = keras_models.build(keras, spec["model"], keras.Model, _positions)
    if spec["subject"] == "jax_privacy":
        _make_private(model, spec["lot"], len(x), protocol.epochs(spec))
    model.compile(
        optimizer=keras.optimizers.SGD(protocol.LEARNING_RATE),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    protocol.fit(keras, model, start(), x, y)
    names = ("jax", "keras", "jax-privacy")
    answer = {"versions": {name: importlib.metadata.version(name) for name in names}}
    if protocol.on_gpu(spec):
        # The peak of the whole process, which JAX cannot reset.
        answer["peak_mib"] = jax.local_devices()[0].memory_stats()["peak_bytes_in_use"] / 2**20
    return answer


def _choose(spec, jax, keras):
    """Chooses the device and the precision."""
    if not protocol.on_gpu(spec):
        jax.config.update("jax_platforms", "cpu")
        return
    if jax.default_backend() != "gpu":
        raise RuntimeError("JAX sees no GPU")
    mixed = protocol.precision(spec) == "mixed_bfloat16"
    keras.config.set_dtype_policy("mixed_bfloat16" if mixed else "float32")
    faster = protocol.precision(spec) == "tensor_float_32"
    name = "tensorfloat32" if faster else "float32"
    jax.config.update("jax_default_matmul_precision", None if mixed else name)


def _positions(tokens):
    from keras import ops

    return ops.cumsum(ops.ones_like(tokens), axis=1) - 1


def _make_private(model, lot, count, epochs):
    from jax_privacy import keras_api

    keras_api.make_private(
        model,
        keras_api.DPKerasConfig(
            epsilon=math.inf,  # the noise multiplier is given, so the budget does not matter
            delta=1e-5,
            clipping_norm=protocol.L2_NORM_CLIP,
            batch_size=lot,
            gradient_accumulation_steps=1,
            train_steps=1 + epochs * count // lot,
            train_size=count,
            noise_multiplier=protocol.NOISE_MULTIPLIER,
        ),
    )


if __name__ == "__main__":
    protocol.main(run)
