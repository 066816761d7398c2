"""Measures `fit` of Keras 3 on TensorFlow, plain and with tfdp, including lots and metrics."""

import protocol

ENGINES = {
    "tfdp": "auto",
    "tfdp_vectorized": "vectorized",
    "tfdp_microbatches": "auto",
    "tfdp_vectorized_microbatches": "vectorized",
    "tfdp_xla": "auto",
}
MICROBATCH_SIZE = 4
COMPILED = ("tfdp_xla", "keras_tf_xla")


def run(spec, start):
    import keras
    import tensorflow as tf

    import tfdp

    x, y = protocol.data(spec)
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
        jit_compile=True if spec["subject"] in COMPILED else "auto",
    )
    protocol.fit(keras, model, start(), x, y)
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    return {"versions": versions | {"tfdp": tfdp.__version__}}


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
