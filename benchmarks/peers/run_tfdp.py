"""Keras 3 on TensorFlow: plain, and with tfdp, from lot to metrics, as users run it."""

import protocol

ENGINES = {"tfdp": "auto", "tfdp_vectorized": "vectorized"}


def run(spec, start):
    import keras
    import tensorflow as tf

    import tfdp

    x, y = protocol.data(spec)
    model = tfdp.models.build(spec["model"], protocol.SHAPES[spec["model"]], protocol.CLASSES)
    if spec["subject"] in ENGINES:
        tfdp.make_private(model, engine=ENGINES[spec["subject"]])
        optimizer = tfdp.DPKerasSGDOptimizer(
            learning_rate=protocol.LEARNING_RATE,
            l2_norm_clip=protocol.L2_NORM_CLIP,
            noise_multiplier=protocol.NOISE_MULTIPLIER,
        )
    else:
        optimizer = keras.optimizers.SGD(protocol.LEARNING_RATE)
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    clock = start()
    try:
        model.fit(
            x,
            y,
            batch_size=spec["lot"],
            epochs=1 + clock.steps() // protocol.LOTS_OF_DATA,
            verbose=0,
            callbacks=[protocol.keras_callback(keras, clock)],
        )
    except protocol.Enough:
        pass
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    return {"versions": versions | {"tfdp": tfdp.__version__}}


if __name__ == "__main__":
    protocol.main(run)
