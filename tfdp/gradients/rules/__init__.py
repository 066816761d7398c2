"""Rules of the ghost engine, one module per layer family, and the registry that finds them.

`base` states the contract for rules of your own; `gradients.testing.check_rule` compares a rule with
the exact engine.
"""

import functools
import importlib

from tfdp.gradients.rules.base import Recorded, Rule, UnsupportedModelError
from tfdp.gradients.rules.per_example_gradient import (
    Instantiated,
    Lookups,
    OuterProducts,
    PerExampleGradient,
)

__all__ = [
    "Instantiated",
    "Lookups",
    "OuterProducts",
    "PerExampleGradient",
    "Recorded",
    "Rule",
    "UnsupportedModelError",
    "register",
    "rule_for",
]

_MODULES = ("dense", "conv", "depthwise", "normalization", "embedding", "recurrent", "noisy")
_REGISTRY: dict = {}


def register(*layer_classes):
    """Class decorator that makes a `Rule` the rule of the given layer classes.

    A subclass of a registered class is *not* covered, because its `call` may do anything; register
    the subclass itself if the rule holds for it. A later registration replaces an earlier one.

    Args:
        *layer_classes: exact classes of the layers.
    """

    def decorate(rule_class):
        for layer_class in layer_classes:
            _REGISTRY[layer_class] = rule_class
        return rule_class

    return decorate


@functools.cache
def _load() -> None:
    for module in _MODULES:
        importlib.import_module(f"{__name__}.{module}")


def rule_for(layer) -> Rule | None:
    """Returns the rule of a built layer, or None where its exact class has none."""
    _load()
    rule_class = _REGISTRY.get(type(layer))
    if rule_class is None or "call" in vars(layer):  # an instance's own `call` may do anything
        return None
    return rule_class(layer)
