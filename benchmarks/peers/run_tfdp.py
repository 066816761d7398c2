"""Measures `fit` of Keras 3 on TensorFlow, plain and with tfdp, including lots and metrics."""

import gc
import tempfile

import protocol

ENGINES = {
    "tfdp": "auto",
    "tfdp_vectorized": "vectorized",
    "tfdp_microbatches": "auto",
    "tfdp_vectorized_microbatches": "vectorized",
    "tfdp_xla": "auto",
    "tfdp_backup": "auto",
}
MICROBATCH_SIZE = 4
COMPILED = ("tfdp_xla", "keras_tf_xla")


def run(spec, start):
    import keras
    import tensorflow as tf

    import tfdp

    _choose(spec, keras, tf)
    x, y = protocol.data(spec)
    with tempfile.TemporaryDirectory() as folder:
        backup = spec["subject"] == "tfdp_backup"
        callbacks = [tfdp.callbacks.BackupAndRestore(f"{folder}/backup")] if backup else []
        protocol.fit(keras, compiled(spec), start(), x, y, callbacks)
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    answer = {"versions": versions | {"tfdp": tfdp.__version__}}
    if protocol.on_gpu(spec):
        answer["peak_mib"] = tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20
    return answer


def compiled(spec):
    """Returns the compiled model of a spec."""
    import keras

    import tfdp

    gpu = protocol.on_gpu(spec)
    model = _build(spec)
    if spec["subject"] in ENGINES:
        tfdp.make_private(
            model,
            engine=ENGINES[spec["subject"]],
            physical_batch_size=spec.get("physical"),
        )
        optimizer = tfdp.DPKerasSGDOptimizer(
            learning_rate=protocol.LEARNING_RATE,
            l2_norm_clip=protocol.L2_NORM_CLIP,
            noise_multiplier=protocol.NOISE_MULTIPLIER,
            num_microbatches=_microbatches(spec),
        )
    else:
        optimizer = keras.optimizers.SGD(protocol.LEARNING_RATE)
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        # "auto" compiles on a GPU.
        jit_compile=True if spec["subject"] in COMPILED else False if gpu else "auto",
    )
    return model


def _choose(spec, keras, tf):
    """Chooses the device and the precision, and forgets the previous point."""
    keras.utils.clear_session()
    gc.collect()
    if not protocol.on_gpu(spec):
        tf.config.set_visible_devices([], "GPU")
        return
    if not tf.config.list_physical_devices("GPU"):
        raise RuntimeError("TensorFlow sees no GPU")
    mixed = protocol.precision(spec) == "mixed_bfloat16"
    keras.config.set_dtype_policy("mixed_bfloat16" if mixed else "float32")
    faster = protocol.precision(spec) == "tensor_float_32"
    tf.config.experimental.enable_tensor_float_32_execution(faster)
    tf.config.experimental.reset_memory_stats("GPU:0")


def _microbatches(spec):
    return spec["lot"] // MICROBATCH_SIZE if "microbatches" in spec["subject"] else None


def _build(spec):
    import realistic

    import tfdp

    if spec["model"] in realistic.BUILDERS:
        options = {name: spec[name] for name in ("vocabulary",) if name in spec}
        return realistic.build(spec["model"], **options)
    return tfdp.models.build(spec["model"], protocol.SHAPES[spec["model"]], protocol.CLASSES)


if __name__ == "__main__":
    protocol.main(run)
