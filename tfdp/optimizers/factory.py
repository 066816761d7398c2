"""Makes a private optimizer class from any Keras optimizer class."""

from collections.abc import Callable

import keras

from tfdp.optimizers.dp_keras_optimizer import DPKerasOptimizer
from tfdp.optimizers.made import made


def make_dp_optimizer_class(base: type) -> type:
    """Returns a private subclass of a Keras optimizer class (the name is TensorFlow Privacy's).

    The class is called `DPKeras<Base>Optimizer` and is registered for serialization under this name.
    Files with such a class load after `import tfdp` if `base` is an optimizer of Keras; a class that
    was made from your own optimizer needs this call first.

    Args:
        base: a subclass of `keras.optimizers.Optimizer`.

    Raises:
        TypeError: `base` is not such a class, or is private already.

    Example:
        >>> import keras, tfdp
        >>> DPLion = tfdp.make_dp_optimizer_class(keras.optimizers.Lion)
        >>> optimizer = DPLion(l2_norm_clip=1.0, noise_multiplier=1.1, learning_rate=1e-3)
        >>> isinstance(optimizer, keras.optimizers.Lion), optimizer.noise_multiplier
        (True, 1.1)
        >>> DPLion.__name__
        'DPKerasLionOptimizer'
    """
    what = "on private gradients. See `DPKerasOptimizer`."
    return make_class(make_dp_optimizer_class, DPKerasOptimizer, base, "DPKeras{}Optimizer", what)


def make_class(
    make: Callable, kind: type, base: type, form: str, what: str, options: str = ""
) -> type:
    """Returns the class of a private optimizer with the update rule of a Keras optimizer class.

    Args:
        make: the public function that makes such classes, for pickles.
        kind: the private optimizer.
        base: a subclass of `keras.optimizers.Optimizer`.
        form: name of the class, with {} for the name of `base`.
        what, options: as in `_described`.

    Raises:
        TypeError: no private optimizer can be made from `base`.
    """
    _check_base(base)
    name = form.format(base.__name__)
    return made(make, (kind, base), name, _described(name, base, what, options))


def _described(name: str, base: type, what: str, options: str) -> str:
    """Returns the docstring of the class `name` that was made from the optimizer class `base`.

    Args:
        name: name of the class, under which `tfdp.optimizers` has it if `base` is Keras' own.
        base: a subclass of `keras.optimizers.Optimizer`.
        what: what the class makes of `base`: the end of a sentence, and what else to read.
        options: further arguments in the example.
    """
    summary = f"`keras.optimizers.{base.__name__}` {what}"
    if getattr(keras.optimizers, base.__name__, None) is not base:
        return summary
    return f"""{summary}

    Example:
        >>> import keras, tfdp
        >>> optimizer = tfdp.optimizers.{name}(
        ...     l2_norm_clip=1.0, noise_multiplier=1.1{options})
        >>> isinstance(optimizer, keras.optimizers.{base.__name__}), optimizer.noise_multiplier
        (True, 1.1)
    """


def _check_base(base: type) -> None:
    """Raises TypeError if no private optimizer can be made from `base`."""
    if not (isinstance(base, type) and issubclass(base, keras.optimizers.Optimizer)):
        raise TypeError(f"Expected a subclass of keras.optimizers.Optimizer. Received: {base!r}")
    if issubclass(base, DPKerasOptimizer):
        raise TypeError(f"{base.__name__} is private already. Expected a plain Keras optimizer.")
    if issubclass(base, keras.optimizers.LossScaleOptimizer):
        raise TypeError(
            "LossScaleOptimizer scales the loss before clipping and skips steps on overflow, both "
            "of which break the guarantee. Use the inner optimizer, with a bfloat16 policy."
        )


DPKerasSGDOptimizer = make_dp_optimizer_class(keras.optimizers.SGD)
DPKerasAdamOptimizer = make_dp_optimizer_class(keras.optimizers.Adam)
DPKerasAdamWOptimizer = make_dp_optimizer_class(keras.optimizers.AdamW)
DPKerasAdagradOptimizer = make_dp_optimizer_class(keras.optimizers.Adagrad)
DPKerasRMSpropOptimizer = make_dp_optimizer_class(keras.optimizers.RMSprop)
DPKerasNadamOptimizer = make_dp_optimizer_class(keras.optimizers.Nadam)
