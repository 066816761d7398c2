"""Rules of the ghost engine, one module per layer family, and the registry that finds them.

`base` states the contract for rules of your own; `gradients.testing.check_rule` compares a rule with
a loop over the examples.

Example:
    >>> import keras
    >>> from tfdp.gradients.rules import rule_for
    >>> layer = keras.layers.Dense(3)
    >>> layer.build((None, 2))
    >>> type(rule_for(layer)).__name__
    'DenseRule'
"""

import functools
import importlib

from tfdp._compat.keras import has_nothing_of_its_own
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

_MODULES = (
    *("dense", "conv", "depthwise", "normalization", "embedding", "recurrent", "noisy"),
    "normalized_lstm",
    *("reversible_embedding", "lora"),
)
_REGISTRY: dict = {}  # by layer class and whether the layer uses LoRA


def register(*layer_classes, lora: bool = False):
    """Class decorator that makes a `Rule` the rule of the given layer classes.

    A subclass that has anything of its own is *not* covered, because its `call` may do anything;
    register the subclass itself if the rule holds for it. A later registration replaces an earlier one.

    Args:
        *layer_classes: classes of the layers.
        lora: whether the rule is for layers on which `enable_lora` was called, instead of all others.

    Example:
        >>> import keras
        >>> from tfdp.gradients.rules import Instantiated, Rule, register, rule_for
        >>> from tfdp.gradients.testing import check_rule
        >>> class Scale(keras.layers.Layer):
        ...     def build(self, shape):
        ...         self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")
        ...     def call(self, inputs):
        ...         return inputs * self.factor
        >>> @register(Scale)
        ... class ScaleRule(Rule):
        ...     def variables(self):
        ...         return [self.layer.factor]
        ...     def call(self, record, inputs):
        ...         return record(inputs * self.layer.factor, inputs=inputs)
        ...     def gradients(self, calls):
        ...         (call,) = calls
        ...         return [(self.layer.factor, Instantiated(call.gradient * call["inputs"]))]
        >>> check_rule(Scale(), (7,))  # raises if a loop over the examples gives other gradients
        >>> type(rule_for(Scale())).__name__
        'ScaleRule'
    """

    def decorate(rule_class):
        for layer_class in layer_classes:
            _REGISTRY[layer_class, lora] = rule_class
        return rule_class

    return decorate


@functools.cache
def _load() -> None:
    for module in _MODULES:
        importlib.import_module(f"{__name__}.{module}")


def rule_for(layer) -> Rule | None:
    """Returns the rule of a built layer, or None where its class has none.

    Example:
        >>> import keras
        >>> from tfdp.gradients.rules import rule_for
        >>> dense = keras.layers.Dense(3)
        >>> dense.build((None, 2))
        >>> [variable.name for variable in rule_for(dense).variables()]
        ['kernel', 'bias']
        >>> class Own(keras.layers.Dense):
        ...     def call(self, inputs):
        ...         return super().call(inputs) + 1.0
        >>> rule_for(Own(3)) is None  # its `call` may do anything
        True
    """
    _load()
    rule_class = _rule_class(type(layer), getattr(layer, "lora_enabled", False))
    if rule_class is None or "call" in vars(layer):  # an instance's own `call` may do anything
        return None
    return rule_class(layer)


def _rule_class(layer_class, lora):
    for kind in layer_class.__mro__:
        # A rule that does not know of LoRA refuses the layer in its own words.
        found = _REGISTRY.get((kind, True)) if lora else None
        found = found or _REGISTRY.get((kind, False))
        if found is not None:
            return found
        if not has_nothing_of_its_own(kind):
            return None
    return None
