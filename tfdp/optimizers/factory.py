"""Creates a private optimizer class from any Keras optimizer class."""

import functools
import inspect
import re
from typing import TYPE_CHECKING, Unpack

import keras

from tfdp.optimizers.arguments import Arguments, Rate
from tfdp.optimizers.dp_keras_optimizer import DPKerasOptimizer


def make_dp_optimizer_class(base: type) -> type[DPKerasOptimizer]:
    """Creates a private optimizer class (DP-SGD) with the update rule of a Keras optimizer class.

    For Keras' own optimizers the class already exists, such as `tfdp.DPKerasLionOptimizer`; use this
    function for your own optimizer. The class is called `DPKeras<Base>Optimizer` and is registered for
    serialization under this name. Before you load a file with an optimizer of your own, call this
    function. Its arguments are those of `base` and of `DPKerasOptimizer`.

    Args:
        base: A subclass of `keras.optimizers.Optimizer`.

    Returns:
        The class.

    Raises:
        TypeError: If `base` is not such a class, or is already private.

    Example:
        >>> import keras, tfdp
        >>> DPLion = tfdp.make_dp_optimizer_class(keras.optimizers.Lion)
        >>> optimizer = DPLion(l2_norm_clip=1.0, noise_multiplier=1.1, learning_rate=1e-3)
        >>> isinstance(optimizer, keras.optimizers.Lion), optimizer.noise_multiplier
        (True, 1.1)
        >>> DPLion.__name__
        'DPKerasLionOptimizer'
    """
    return make_class(DPKerasOptimizer, base, "DPKeras{}Optimizer")


@functools.cache
def make_class(
    kind: type[DPKerasOptimizer], base: type, form: str, options: str = ""
) -> type[DPKerasOptimizer]:
    """Creates the class of a private optimizer with the update rule of a Keras optimizer class.

    The class is created once, and registered for serialization under its name.

    Args:
        kind: The private optimizer.
        base: A subclass of `keras.optimizers.Optimizer`.
        form: Name of the class, with {} in place of the name of `base`.
        options: Further arguments in the example.

    Raises:
        TypeError: If no private optimizer can be created from `base`.
    """
    plain = isinstance(base, type) and issubclass(base, keras.optimizers.Optimizer)
    if not plain or issubclass(base, DPKerasOptimizer | keras.optimizers.LossScaleOptimizer):
        raise TypeError(
            f"No private optimizer can be created from {base!r}. Pass a subclass of "
            "keras.optimizers.Optimizer that is not private yet, and not LossScaleOptimizer, which "
            "scales the loss before clipping."
        )
    name = form.format(base.__name__)
    # Users' classes with the same name do not replace each other in files.
    stock = getattr(keras.optimizers, base.__name__, None) is base
    package = "tfdp" if stock else f"tfdp.{base.__module__}"
    # The docstring of `kind`, without its first line (about the base class) and its example.
    told = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[2]
    told = re.split(r"\n\n(?:Attributes|Example):", told)[0]
    title = kind.title[0].upper() + kind.title[1:]
    doc = f"{title}, with the update rule of `keras.optimizers.{base.__name__}`.\n\n{told}\n\n"
    if stock:
        doc += f"""Example:
    >>> import keras, tfdp
    >>> optimizer = tfdp.optimizers.{name}(
    ...     l2_norm_clip=1.0, noise_multiplier=1.1{options})
    >>> isinstance(optimizer, keras.optimizers.{base.__name__}), optimizer.noise_multiplier
    (True, 1.1)
"""
    cls = type(name, (kind, base), {"__doc__": doc, "__module__": "tfdp.optimizers"})
    return keras.saving.register_keras_serializable(package=package, name=name)(cls)


# Type checkers read the signatures below, which a test compares with those of Keras' optimizers.
if TYPE_CHECKING:

    class DPKerasSGDOptimizer(DPKerasOptimizer, keras.optimizers.SGD):
        def __init__(
            self,
            learning_rate: Rate = 0.01,
            momentum: float = 0.0,
            nesterov: bool = False,
            **kwargs: Unpack[Arguments],
        ): ...

    class DPKerasAdamOptimizer(DPKerasOptimizer, keras.optimizers.Adam):
        def __init__(
            self,
            learning_rate: Rate = 0.001,
            beta_1: float = 0.9,
            beta_2: float = 0.999,
            epsilon: float = 1e-7,
            amsgrad: bool = False,
            **kwargs: Unpack[Arguments],
        ): ...

    class DPKerasAdamWOptimizer(DPKerasAdamOptimizer): ...

    class DPKerasAdagradOptimizer(DPKerasOptimizer, keras.optimizers.Adagrad):
        def __init__(
            self,
            learning_rate: Rate = 0.001,
            initial_accumulator_value: float = 0.1,
            epsilon: float = 1e-7,
            **kwargs: Unpack[Arguments],
        ): ...

    class DPKerasRMSpropOptimizer(DPKerasOptimizer, keras.optimizers.RMSprop):
        def __init__(
            self,
            learning_rate: Rate = 0.001,
            rho: float = 0.9,
            momentum: float = 0.0,
            epsilon: float = 1e-7,
            centered: bool = False,
            **kwargs: Unpack[Arguments],
        ): ...

    class DPKerasNadamOptimizer(DPKerasOptimizer, keras.optimizers.Nadam):
        def __init__(
            self,
            learning_rate: Rate = 0.001,
            beta_1: float = 0.9,
            beta_2: float = 0.999,
            epsilon: float = 1e-7,
            **kwargs: Unpack[Arguments],
        ): ...

else:
    DPKerasSGDOptimizer = make_dp_optimizer_class(keras.optimizers.SGD)
    DPKerasAdamOptimizer = make_dp_optimizer_class(keras.optimizers.Adam)
    DPKerasAdamWOptimizer = make_dp_optimizer_class(keras.optimizers.AdamW)
    DPKerasAdagradOptimizer = make_dp_optimizer_class(keras.optimizers.Adagrad)
    DPKerasRMSpropOptimizer = make_dp_optimizer_class(keras.optimizers.RMSprop)
    DPKerasNadamOptimizer = make_dp_optimizer_class(keras.optimizers.Nadam)
