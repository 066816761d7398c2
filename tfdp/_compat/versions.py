"""The versions of Keras and TensorFlow that tfdp is tested with, and the treatment of others.

The names that tfdp borrows are not public, so any version may change them. A version below the first
tested one is refused. A version beyond the last tested one causes one warning, since a borrowed name
may have changed its meaning.
"""

import contextlib
import re
import warnings

# For each package: (its title, the first tested version, the first version after the tested ones).
# setup.cfg has the same bounds. BUILD_NOTES.md ("Pins") gives their reasons.
TESTED = {
    "keras": ("Keras", (3, 12), (3, 16)),
    "tensorflow": ("TensorFlow", (2, 18), (2, 22)),
}


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


def check(found: dict[str, str]) -> None:
    """Refuses versions that are too old, and warns once of those that are newer than the tested ones.

    Args:
        found: the `__version__` of each package in `TESTED`.

    Raises:
        ImportError: a version is below the first tested one.
    """
    older, newer = [], []
    for package, version in found.items():
        title, first, beyond = TESTED[package]
        number = tuple(map(int, re.findall(r"\d+", version)[:2]))
        if not number >= first:
            older.append(f"{title} {version}")
        elif not number < beyond:
            newer.append(f"{title} {version}")
    if older:
        raise ImportError(
            f"tfdp does not work with {' and '.join(older)}. Expected {supported()}. Install tested "
            f"versions: pip install {pins()}"
        )
    if newer:
        warnings.warn(
            f"tfdp uses parts of Keras and TensorFlow that are not public, and was not tested with "
            f"{' and '.join(newer)}, but with {supported()}.",
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
        raise ImportError(
            f"tfdp borrows {what} ({error}), which is not as expected in this version. Install a "
            f"tested version: pip install {pins()}"
        ) from error
