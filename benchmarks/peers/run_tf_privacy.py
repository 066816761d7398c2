"""Measures `fit` of TensorFlow Privacy 0.9.0 on TensorFlow 2.15, used as in its tutorials.

* "tf_privacy": `DPModel` (`DPSequential` is the same class with another base), compiled by XLA, which
  is the default.
* "tf_privacy_fast": `DPModel` with fast gradient clipping, for models that its registry covers.
* "tf_privacy_vectorized": a plain model with the vectorized Keras optimizer.
"""

import keras_models
import protocol


def run(spec, start):
    import importlib.metadata

    import tensorflow as tf
    import tensorflow_privacy

    keras = tf.keras
    subject = spec["subject"]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(protocol.LEARNING_RATE)
    make = keras.Model
    if subject in ("tf_privacy", "tf_privacy_fast"):
        make = _dp_model(subject == "tf_privacy_fast")
    elif subject == "tf_privacy_vectorized":
        optimizer = tensorflow_privacy.VectorizedDPKerasSGDOptimizer(
            l2_norm_clip=protocol.L2_NORM_CLIP,
            noise_multiplier=protocol.NOISE_MULTIPLIER,
            learning_rate=protocol.LEARNING_RATE,
        )
        loss.reduction = "none"

    def positions(tokens):
        return tf.cumsum(tf.ones_like(tokens), axis=1) - 1

    x, y = protocol.data(spec)
    model = keras_models.build(keras, spec["model"], make, positions)
    if subject == "tf_privacy_fast" and not model._enable_fast_peg_computation:
        raise protocol.Unsupported("its registry lacks a layer of this model")
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    protocol.fit(keras, model, start(), x, y)
    names = ("tensorflow", "keras", "tensorflow-privacy")
    return {"versions": {name: importlib.metadata.version(name) for name in names}}


def _dp_model(fast):
    import tensorflow as tf
    from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry
    from tensorflow_privacy.privacy.fast_gradient_clipping.registry_functions import (
        layer_normalization,
        multi_head_attention,
    )
    from tensorflow_privacy.privacy.keras_models import dp_keras_model

    registry = None
    if fast:
        registry = layer_registry.make_default_layer_registry()
        registry.insert(
            tf.keras.layers.LayerNormalization,
            layer_normalization.layer_normalization_computation,
        )
        registry.insert(
            tf.keras.layers.MultiHeadAttention,
            multi_head_attention.multi_head_attention_layer_computation,
        )

    def make(inputs, outputs):
        return dp_keras_model.DPModel(
            l2_norm_clip=protocol.L2_NORM_CLIP,
            noise_multiplier=protocol.NOISE_MULTIPLIER,
            layer_registry=registry,
            inputs=inputs,
            outputs=outputs,
        )

    return make


if __name__ == "__main__":
    protocol.main(run)
