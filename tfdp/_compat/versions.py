"""Which versions of Keras and TensorFlow tfdp is tested with, and what it says about others.

What tfdp borrows of them is not public, so any version may change it. A version below the first that
was tested is refused. One beyond the last gets a warning, since nothing says that what is borrowed is
still what it was; where a borrowed name is gone, an ImportError says so.
"""

import contextlib
import re
import sys
import warnings

# Package: (what people call it, the first version that was tested, the first beyond the last).
# setup.cfg has the same bounds, and BUILD_NOTES.md ("Pins") their reasons.
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
    """The tested versions as `pip install` takes them."""
    return " ".join(
        f"'{package}>={first[0]}.{first[1]},<{beyond[0]}.{beyond[1]}'"
        for package, (_, first, beyond) in TESTED.items()
    )


def check(package: str, version: str) -> None:
    """Refuses a version that is too old, and warns of one that nobody has tested.

    Args:
        package: a key of `TESTED`.
        version: its `__version__`.

    Raises:
        ImportError: the version is below the first that was tested.
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
    """Around imports and look-ups of what is not public: says what is wrong where it is gone.

    Args:
        what: where it is looked for, such as "keras.src".

    Raises:
        ImportError: it is not there; the message says which versions have it.
    """
    try:
        yield
    except (ImportError, AttributeError, KeyError) as error:
        raise ImportError(_gone(f"{what} ({error})")) from error


def borrowed(owner, name: str):
    """Returns the attribute `name` of `owner`, which is not public.

    Raises:
        ImportError: there is none; the message says which versions have it.
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
