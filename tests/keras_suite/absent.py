"""Stand-ins for what Keras' test files import and Keras' wheel, or this environment, does not have.

The wheel has the test files, but neither their `conftest.py` nor the packages that some of them import
at the top. With stand-ins such a file is collected, and only the cases that use an absent package are
skipped.
"""

import contextlib
import importlib.util
import re
import sys
import types
import unittest

import pytest

# Packages that are no dependency of Keras on TensorFlow, and their modules that test files import.
OPTIONAL = {
    "grain": (),
    "jax": ("jax.experimental", "jax.experimental.sparse", "jax.numpy"),
    "orbax": ("orbax.checkpoint",),
    "pandas": (),
    "torch": (),
}


def missing() -> set[str]:
    """Names of the optional packages that are not installed."""
    return {name for name in OPTIONAL if importlib.util.find_spec(name) is None}


def is_why(error: BaseException) -> bool:
    """Whether an error says that an optional package is not installed."""
    named = re.findall(r"\w+", str(error))
    return isinstance(error, ImportError) and not missing().isdisjoint(named)


class _Name:
    """A name of an absent package: whoever uses it skips."""

    def __init__(self, path):
        self.__dict__["_path"] = path

    def __getattr__(self, name):
        raise unittest.SkipTest(f"{self._path}.{name} is not installed")

    def __call__(self, *args, **kwargs):
        raise unittest.SkipTest(f"{self._path} is not installed")


class _Module(types.ModuleType):
    """An absent module: its names can be imported, and not used."""

    __path__: list = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}") or _Name(f"{self.__name__}.{name}")


@contextlib.contextmanager
def stand_ins(backend_name: str):
    """Context manager around the import of a test file; Keras itself must not find these modules.

    Args:
        backend_name: the backend of Keras, for the marker that Keras' `conftest.py` defines.
    """
    conftest = types.ModuleType("conftest")
    conftest.skip_if_backend = lambda name, reason: pytest.mark.skipif(
        backend_name == name, reason=reason
    )
    paths = [path for name in missing() for path in (name, *OPTIONAL[name])]
    modules = {path: _Module(path) for path in paths} | {"conftest": conftest}
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
