"""All non-public names of Keras and TensorFlow that tfdp uses ("borrows").

No other module of tfdp imports from `keras.src` or `tensorflow.python`, or reads an attribute of
Keras or TensorFlow that begins with an underscore. `tests/_compat` has one test for each borrowed
name. If a new version changes a borrowed name, the failing test says which one.

Every package of tfdp that needs TensorFlow imports from this package. On import, this package refuses
other Keras backends and versions that are too old.
"""

# Imported under other names, because this package has modules `keras` and `tensorflow` of its own.
import keras as the_keras

if the_keras.backend.backend() != "tensorflow":
    raise ImportError(
        "tfdp needs Keras on the TensorFlow backend. Expected keras.backend.backend() == "
        f"'tensorflow'. Found: {the_keras.backend.backend()!r}. Set the environment variable "
        "KERAS_BACKEND=tensorflow (or edit ~/.keras/keras.json) before Keras is imported."
    )

# TensorFlow is imported after the check: with another backend it need not be installed.
import tensorflow as the_tensorflow

from tfdp._compat import versions

versions.check("keras", the_keras.__version__)
versions.check("tensorflow", the_tensorflow.__version__)
