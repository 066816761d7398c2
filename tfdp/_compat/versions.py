"""The versions of Keras and TensorFlow that tfdp is tested with, and the treatment of others.

The names that tfdp borrows are not public, so any version may change them. A version below the first
tested one is refused. A version beyond the last tested one causes a warning, since a borrowed name
may have changed its meaning. If a borrowed name is missing, an ImportError says so.
"""

import contextlib
import re
import sys
import warnings

# For each package: (its title, the first tested version, the first version after the tested ones).
# setup.cfg has the same bounds. BUILD_NOTES.md ("Pins") gives their reasons.
TESTED = {
    "keras": ("Keras", (3, 12), (3, 16)),
    "tensorflow": ("TensorFlow", (2, 18), (2, 22)),
}
_MISSING = object()


def supported() -> str:
    """The tested versions in words: "Keras 3.12 to 3.15 and TensorFlow 2.18 to 2.21"."""
    return " and ".join(
        f"{title} {first[0]}.{first[1]} to {beyond[0]}.{beyond[1] - 1}"
        for title, first, beyond in TESTED.values()
    )


def pins() -> str:
    """The tested versions as arguments of `pip install`."""
    return " ".join(
        f"'{package}>={first[0]}.{first[1]},<{beyond[0]}.{beyond[1]}'"
        for package, (_, first, beyond) in TESTED.items()
    )


def check(package: str, version: str) -> None:
    """Refuses a version that is too old, and warns of a version that is newer than the tested ones.

    Args:
        package: a key of `TESTED`.
        version: the `__version__` of the package.

    Raises:
        ImportError: the version is below the first tested one.
    """
    title, first, beyond = TESTED[package]
    found = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if not found >= first:
        raise ImportError(
            f"tfdp does not work with this {title}. Expected {supported()}. Found {title} {version}. "
            f"Install a tested version: pip install {pins()}"
        )
    if not found < beyond:
        warnings.warn(
            f"tfdp borrows parts of {title} that are not public, and was never tested with this "
            f"version of it. Expected {supported()}. Found {title} {version}. Install a tested "
            f"version: pip install {pins()}",
            stacklevel=2,
        )


@contextlib.contextmanager
def borrowing(what: str):
    """Context manager around imports and look-ups of non-public names.

    Args:
        what: words for what the block borrows, such as "a name of keras.src", for the message.

    Raises:
        ImportError: a name is missing; the message says which versions are supported.
    """
    try:
        yield
    except (ImportError, AttributeError, KeyError) as error:
        raise ImportError(_gone(f"{what} ({error})")) from error


def borrowed(owner, name: str):
    """Returns the non-public attribute `name` of `owner`.

    Raises:
        ImportError: the attribute is missing; the message says which versions are supported.
    """
    value = getattr(owner, name, _MISSING)
    if value is _MISSING:
        raise ImportError(_gone(f"the attribute {name} of {type(owner).__name__}"))
    return value


def _gone(what):
    found = " and ".join(
        f"{title} {getattr(sys.modules.get(package), '__version__', '(not imported)')}"
        for package, (title, *_) in TESTED.items()
    )
    return (
        f"tfdp borrows {what}, which is not public and not as expected in this version. Expected "
        f"{supported()}. Found {found}. Install a tested version: pip install {pins()}"
    )
