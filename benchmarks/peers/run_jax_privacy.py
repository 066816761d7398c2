"""jax-privacy's Keras API: Keras 3 on JAX, by `fit`.

Lots are fixed-size batches, its default; its Poisson lots change their shape, and XLA compiles for
every new one.
"""

import math
import os

import keras_models
import protocol

os.environ["KERAS_BACKEND"] = "jax"


def run(spec, start):
    import importlib.metadata

    import keras

    x, y = protocol.data(spec)
    model = keras_models.build(keras, spec["model"], keras.Model, _positions)
    clock = start()
    epochs = 1 + clock.steps() // protocol.LOTS_OF_DATA
    if spec["subject"] == "jax_privacy":
        _make_private(model, spec["lot"], len(x), epochs)
    model.compile(
        optimizer=keras.optimizers.SGD(protocol.LEARNING_RATE),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    clock = start()
    try:
        model.fit(
            x,
            y,
            batch_size=spec["lot"],
            epochs=epochs,
            verbose=0,
            callbacks=[protocol.keras_callback(keras, clock)],
        )
    except protocol.Enough:
        pass
    names = ("jax", "keras", "jax-privacy")
    return {"versions": {name: importlib.metadata.version(name) for name in names}}


def _positions(tokens):
    from keras import ops

    return ops.cumsum(ops.ones_like(tokens), axis=1) - 1


def _make_private(model, lot, count, epochs):
    from jax_privacy import keras_api

    keras_api.make_private(
        model,
        keras_api.DPKerasConfig(
            epsilon=math.inf,  # what the noise is worth does not matter here
            delta=1e-5,
            clipping_norm=protocol.L2_NORM_CLIP,
            batch_size=lot,
            gradient_accumulation_steps=1,
            train_steps=epochs * count // lot,
            train_size=count,
            noise_multiplier=protocol.NOISE_MULTIPLIER,
        ),
    )


if __name__ == "__main__":
    protocol.main(run)
