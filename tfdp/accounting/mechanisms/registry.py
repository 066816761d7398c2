"""Names of the mechanisms, and the classes that they stand for.

A class is loaded when it is first asked for, so that the command line starts at once.
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


def register_mechanism(kind: type[Mechanism]) -> type[Mechanism]:
    """Adds a mechanism under its `name`; may decorate the class.

    Args:
      kind: A frozen dataclass that derives from `mechanisms.base.Mechanism`.

    Returns:
      `kind`.

    Raises:
      ValueError: Where it has no name, or the name already stands for another class.
    """
    name = text("the name of a mechanism", getattr(kind, "name", ""), remedy="Give it one.")
    if name in _CLASSES and mechanism_class(name) is not kind:
        raise ValueError(f"Expected a new mechanism name. Received {name!r}, which is taken.")
    _CLASSES[name] = kind
    return kind


def mechanism_names() -> tuple[str, ...]:
    """Names of all registered mechanisms."""
    return tuple(sorted(_CLASSES))


def mechanism_class(name: str) -> type[Mechanism]:
    """Class that `name` stands for. Raises ValueError where there is none."""
    kind = _CLASSES[one_of("mechanism", name, mechanism_names())]
    if isinstance(kind, str):
        module, attribute = kind.split(":")
        kind = getattr(importlib.import_module(module), attribute)
        _CLASSES[name] = kind
    return kind


def mechanism_from_dict(fields: dict) -> Mechanism:
    """Inverse of `Mechanism.to_dict`. Raises ValueError where a field is unknown or missing."""
    return mechanism_class(fields.get("name")).from_dict(fields)
