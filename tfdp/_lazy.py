"""Imports names of a package on first use (PEP 562)."""

import ast
import importlib
import sys
from collections.abc import Callable


def importing(package: str) -> tuple[Callable, Callable, list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a package.

    The names are those that the package's `__init__.py` imports for type checkers, so that editors and
    this function read the same lines:

        if TYPE_CHECKING:
            from tfdp.data.lots import Lots as Lots
        else:
            __getattr__, __dir__, __all__ = importing(__name__)

    Args:
        package: The package's `__name__`.
    """
    places = _places(package)

    def get(name):
        if name not in places:
            from tfdp._validate import did_you_mean  # which imports NumPy

            meant = did_you_mean(name, places)
            raise AttributeError(f"module {package!r} has no attribute {name!r}.{meant}")
        module, original = places[name]
        if module == package:  # a subpackage
            value = importlib.import_module(f"{package}.{original}")
        else:
            value = getattr(importlib.import_module(module), original)
        setattr(sys.modules[package], name, value)
        return value

    def names():
        special = [name for name in vars(sys.modules[package]) if name.startswith("__")]
        return sorted([*special, *places])

    return get, names, [*places]


def _places(package: str) -> dict[str, tuple[str, str]]:
    """For each name imported or assigned under `if TYPE_CHECKING:`, its module and its name there."""
    source = sys.modules[package].__spec__.loader.get_source(package)  # type: ignore[union-attr]
    found = {}
    for block in ast.parse(source).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for line in block.body:
                if isinstance(line, ast.ImportFrom):
                    for each in line.names:
                        found[each.name] = str(line.module), each.name
                elif isinstance(line, ast.Assign):  # another name
                    found[ast.unparse(line.targets[0])] = found[ast.unparse(line.value)]
    return found
