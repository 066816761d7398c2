"""Refuses a Keras backend other than TensorFlow, before anything private is built on it."""

import keras

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        "tfdp needs Keras on the TensorFlow backend. Expected keras.backend.backend() == "
        f"'tensorflow'. Found: {keras.backend.backend()!r}. Set the environment variable "
        "KERAS_BACKEND=tensorflow (or edit ~/.keras/keras.json) before Keras is imported."
    )
