"""All non-public names of Keras and TensorFlow that tfdp uses ("borrows").

No other module of tfdp imports from `keras.src` or `tensorflow.python`, or reads an attribute of
Keras or TensorFlow that begins with an underscore. `tests/_compat` has one test for each borrowed
name. If a new version changes a borrowed name, the failing test says which one.

Every package of tfdp that needs TensorFlow imports from this package. Its import raises an error on
Windows, with another Keras backend, and with versions below the first tested one. A version beyond the
last tested one causes a warning, since a borrowed name may be missing or have changed its meaning.
"""

import re
import sys
import warnings

if sys.platform == "win32":  # tfdp needs POSIX file locks and permissions
    raise ImportError("tfdp runs on Linux and macOS. On Windows, use it in WSL 2.")

# Imported under other names, because this package has modules `keras` and `tensorflow` of its own.
import keras as the_keras

if the_keras.backend.backend() != "tensorflow":
    raise ImportError(
        "tfdp needs Keras on the TensorFlow backend, but the backend is "
        f"{the_keras.backend.backend()!r}. Set the environment variable KERAS_BACKEND=tensorflow "
        "(or edit ~/.keras/keras.json) before Keras is imported."
    )

# TensorFlow is imported after the check: with another backend it need not be installed.
import tensorflow as the_tensorflow

# For each package: the first tested version, and the first version after the tested ones. setup.cfg has
# the same bounds. BUILD_NOTES.md ("Pins") gives their reasons.
TESTED = {"keras": ((3, 13), (3, 16)), "tensorflow": ((2, 20), (2, 22))}
_INSTALL = "Install tested versions: pip install " + " ".join(
    f"'{package}>={first[0]}.{first[1]},<{beyond[0]}.{beyond[1]}'"
    for package, (first, beyond) in TESTED.items()
)


def check(package: str, version: str) -> None:
    """Raises an error for a version that is too old, and warns of one that was not tested yet.

    Raises:
        ImportError: If the version is below the first tested one.
    """
    first, beyond = TESTED[package]
    number = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if number < first:
        raise ImportError(f"tfdp does not work with {package} {version}. {_INSTALL}")
    if number >= beyond:
        warnings.warn(f"tfdp was not tested with {package} {version}. {_INSTALL}", stacklevel=2)


check("keras", the_keras.__version__)
check("tensorflow", the_tensorflow.__version__)
