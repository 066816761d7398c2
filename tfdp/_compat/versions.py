"""A message for names of Keras and TensorFlow that are not public and have changed.

setup.cfg has the versions that tfdp is tested with. BUILD_NOTES.md ("Pins") gives their reasons.
"""

import contextlib


@contextlib.contextmanager
def borrowing(what: str):
    """Context manager around imports and look-ups of non-public names.

    Args:
        what: words for what the block borrows, such as "a name of keras.src", for the message.

    Raises:
        ImportError: a name is missing.
    """
    try:
        yield
    except (ImportError, AttributeError, KeyError) as error:
        raise ImportError(
            f"tfdp borrows {what} ({error}), which is not as expected in this version. Install the "
            "versions of Keras and TensorFlow that tfdp asks for: pip install tfdp"
        ) from error
