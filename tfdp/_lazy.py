"""Names of a package that are imported when they are first used (PEP 562)."""

import importlib
import sys
from collections.abc import Callable, Mapping


def importing(package: str, modules: Mapping[str, str]) -> tuple[Callable, Callable]:
    """Returns the functions `__getattr__` and `__dir__` of a package.

    Args:
        package: the package's `__name__`.
        modules: for each public name, the module of the package that defines it.
    """

    def get(name):
        if name not in modules:
            from tfdp._validate import did_you_mean  # which imports NumPy

            meant = did_you_mean(name, modules)
            raise AttributeError(f"module {package!r} has no attribute {name!r}.{meant}")
        value = getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names():
        return sorted([*vars(sys.modules[package]), *modules])

    return get, names
