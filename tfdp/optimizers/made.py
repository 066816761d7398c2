"""Classes that are made from an optimizer class on demand, and how a pickle finds them again.

Such a class is an attribute of no module, and in another process nobody has made it. So a pickle names
the function that makes the class, and the class that it was made from.
"""

import functools
from collections.abc import Callable

import keras

from tfdp._compat.keras import unpickled

# Attribute of a made class: (function, base).
_ORIGIN = "_tfdp_made_by"


@functools.cache
def made(function: Callable, bases: tuple[type, type], name: str, doc: str) -> type:
    """Makes an optimizer class once, and registers it for files under its name.

    Args:
        function: a function of a module, whose result for the last of `bases` is this class.
        bases: a private optimizer class, and the Keras optimizer class whose update rule it takes.
        name: name of the class.
        doc: its docstring.
    """
    base = bases[-1]
    members = {"__doc__": doc, "__module__": "tfdp.optimizers", _ORIGIN: (function, base)}
    # Classes of users, of whom two may have the same name, must not take each other's place in files.
    stock = getattr(keras.optimizers, base.__name__, None) is base
    package = "tfdp" if stock else f"tfdp.{base.__module__}"
    cls = type(name, bases, members)
    return keras.saving.register_keras_serializable(package=package, name=name)(cls)


def origin_of(cls: type) -> tuple | None:
    """What a pickle needs to make an optimizer class again; None for a class that no function made.

    Args:
        cls: a class, or a user's subclass of a made class.
    """
    return next((vars(base)[_ORIGIN] for base in cls.__mro__ if _ORIGIN in vars(base)), None)


def make_again(origin: tuple | None) -> None:
    """Makes the class that `origin_of` described, so that Keras finds it by its registered name."""
    if origin is not None:
        function, base = origin
        function(base)


def unpickled_as(origin: tuple | None, arguments: tuple) -> keras.optimizers.Optimizer:
    """The optimizer in a pickle.

    Args:
        origin: from `origin_of`.
        arguments: those that Keras' own `__reduce__` gives.
    """
    make_again(origin)
    return unpickled(*arguments)
