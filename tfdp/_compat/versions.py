"""The versions of Keras and TensorFlow that tfdp is tested with, and the treatment of others.

The names that tfdp borrows are not public, so any version may change them. A version below the first
tested one is refused. A version beyond the last tested one causes a warning, since a borrowed name may
have changed its meaning.
"""

import contextlib
import re
import warnings

# For each package: the first tested version, and the first version after the tested ones. setup.cfg has
# the same bounds. BUILD_NOTES.md ("Pins") gives their reasons.
TESTED = {"keras": ((3, 13), (3, 16)), "tensorflow": ((2, 20), (2, 22))}
_INSTALL = "Install tested versions: pip install " + " ".join(
    f"'{package}>={first[0]}.{first[1]},<{beyond[0]}.{beyond[1]}'"
    for package, (first, beyond) in TESTED.items()
)


def check(package: str, version: str) -> None:
    """Refuses a version that is too old, and warns of one that is newer than the tested ones.

    Raises:
        ImportError: the version is below the first tested one.
    """
    first, beyond = TESTED[package]
    number = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if number < first:
        raise ImportError(f"tfdp does not work with {package} {version}. {_INSTALL}")
    if number >= beyond:
        warnings.warn(f"tfdp was not tested with {package} {version}. {_INSTALL}", stacklevel=2)


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
            f"tfdp borrows {what} ({error}), which is not as expected in this version. {_INSTALL}"
        ) from error
