"""Everything of Keras and TensorFlow that is borrowed although it is not public.

Nothing else in tfdp imports from `keras.src` or `tensorflow.python`, or reads an attribute of theirs
that begins with an underscore. `tests/_compat` has one test for each borrowed name, so that a version
of either that changes one is noticed by name.

Every room of tfdp that needs TensorFlow imports something from here, so that another backend or an
old version is refused before anything is built on it.
"""

# Under other names than those of the modules in here.
import keras as the_keras

if the_keras.backend.backend() != "tensorflow":
    raise ImportError(
        "tfdp needs Keras on the TensorFlow backend. Expected keras.backend.backend() == "
        f"'tensorflow'. Found: {the_keras.backend.backend()!r}. Set the environment variable "
        "KERAS_BACKEND=tensorflow (or edit ~/.keras/keras.json) before Keras is imported."
    )

# After the backend, which decides whether there has to be a TensorFlow at all.
import tensorflow as the_tensorflow

from tfdp._compat import versions

versions.check("keras", the_keras.__version__)
versions.check("tensorflow", the_tensorflow.__version__)
