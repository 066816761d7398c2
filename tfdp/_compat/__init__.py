"""Everything of Keras and TensorFlow that is borrowed although it is not public.

Nothing else in tfdp imports from `keras.src` or `tensorflow.python`, or reads an attribute of theirs
that begins with an underscore. `tests/_compat` has one test for each borrowed name, so that a version
of either that changes one is noticed by name.
"""

import keras

# Refused here, before anything private is built on it.
if keras.backend.backend() != "tensorflow":
    raise ImportError(
        "tfdp needs Keras on the TensorFlow backend. Expected keras.backend.backend() == "
        f"'tensorflow'. Found: {keras.backend.backend()!r}. Set the environment variable "
        "KERAS_BACKEND=tensorflow (or edit ~/.keras/keras.json) before Keras is imported."
    )
