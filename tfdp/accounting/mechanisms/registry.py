"""Registry of the mechanisms: their names and classes.

The module of a class is imported on first use, so that the command line starts quickly.
"""

import importlib

from tfdp._validate import one_of, text
from tfdp.accounting.mechanisms.base import Mechanism

_HERE = "tfdp.accounting.mechanisms"
_CLASSES: dict[str, type[Mechanism] | str] = {
    "none": f"{_HERE}.none:NoMechanism",
    "dpsgd": f"{_HERE}.dpsgd:DPSGD",
    "si_dpsgd": f"{_HERE}.si_dpsgd:SIDPSGD",
    "discrete_sgd": f"{_HERE}.discrete_sgd:DiscreteSGD",
    "dp_dropout": f"{_HERE}.dp_dropout:DPDropout",
    "sgld": f"{_HERE}.sgld:SGLD",
    "matrix": f"{_HERE}.matrix:Matrix",
}

# The mechanism where none is chosen.
USUAL_MECHANISM = "dpsgd"


def register_mechanism(kind: type[Mechanism]) -> type[Mechanism]:
    """Registers a frozen dataclass that derives from `Mechanism` under its `name`; a decorator.

    Raises:
      ValueError: If the class has no name, or another class is registered under the name.

    Example:
      >>> import dataclasses
      >>> from typing import ClassVar
      >>> from tfdp.accounting import mechanism_names, register_mechanism
      >>> from tfdp.accounting.mechanisms.dpsgd import DPSGD
      >>> @register_mechanism
      ... @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class RoundedDPSGD(DPSGD):
      ...     name: ClassVar[str] = "rounded_dpsgd_of_the_example"
      >>> "rounded_dpsgd_of_the_example" in mechanism_names()
      True
    """
    name = text("the name of a mechanism", getattr(kind, "name", ""), remedy="Give it one.")
    if name in _CLASSES and mechanism_class(name) is not kind:
        raise ValueError(f"Expected a new mechanism name. Received {name!r}, which is taken.")
    _CLASSES[name] = kind
    return kind


def mechanism_names() -> tuple[str, ...]:
    """Names of all registered mechanisms.

    Example:
      >>> from tfdp.accounting import mechanism_names
      >>> {"dpsgd", "matrix", "si_dpsgd"} <= set(mechanism_names())
      True
    """
    return tuple(sorted(_CLASSES))


def mechanism_class(name: str) -> type[Mechanism]:
    """Returns the class registered under `name`. Raises ValueError if there is none."""
    kind = _CLASSES[one_of("mechanism", name, mechanism_names())]
    if isinstance(kind, str):
        module, attribute = kind.split(":")
        kind = _CLASSES[name] = getattr(importlib.import_module(module), attribute)
    return kind
