"""Stand-ins for what Keras' test files import and Keras' wheel, or this environment, does not have.

The wheel has the test files, but neither their `conftest.py` nor the packages that some of them import
at the top (JAX, PyTorch, Grain and others). With stand-ins such a file is collected, and only the cases
that really use an absent package are skipped.
"""

import contextlib
import importlib.util
import re
import sys
import types
import unittest

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

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(f"{self.__name__}.{name}")


@contextlib.contextmanager
def stand_ins(backend_name: str):
    """Context manager around the import of a test file; afterwards nothing is left in `sys.modules`.

    Keras asks itself which packages are there, and must not find these.

    Args:
        backend_name: the backend of Keras, for the markers that Keras' `conftest.py` defines.
    """
    modules = {"conftest": _conftest(backend_name)}
    for name in missing():
        modules |= {path: _package(path) for path in (name, *OPTIONAL[name])}
        for path in OPTIONAL[name]:
            parent, _, child = path.rpartition(".")
            setattr(modules[parent], child, modules[path])
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


def _package(path):
    module = _Module(path)
    module.__path__ = []
    return module


def _conftest(backend_name):
    """The one name that Keras' test files import from their `conftest.py`."""
    import pytest

    module = types.ModuleType("conftest")
    module.skip_if_backend = lambda name, reason: pytest.mark.skipif(
        backend_name == name, reason=reason
    )
    return module
