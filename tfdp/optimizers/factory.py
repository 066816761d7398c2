"""Makes a private optimizer class from any Keras optimizer class."""

import functools

import keras

from tfdp.optimizers.dp_keras_optimizer import DPKerasOptimizer


def make_dp_optimizer_class(base: type) -> type[DPKerasOptimizer]:
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
    return make_class(DPKerasOptimizer, base, "DPKeras{}Optimizer")


@functools.cache
def make_class(
    kind: type[DPKerasOptimizer], base: type, form: str, options: str = ""
) -> type[DPKerasOptimizer]:
    """Returns the class of a private optimizer with the update rule of a Keras optimizer class.

    The class is made once, and registered for files under its name.

    Args:
        kind: the private optimizer.
        base: a subclass of `keras.optimizers.Optimizer`.
        form: name of the class, with {} for the name of `base`.
        options: further arguments in the example.

    Raises:
        TypeError: no private optimizer can be made from `base`.
    """
    plain = isinstance(base, type) and issubclass(base, keras.optimizers.Optimizer)
    if not plain or issubclass(base, DPKerasOptimizer | keras.optimizers.LossScaleOptimizer):
        raise TypeError(
            f"No private optimizer can be made from {base!r}. Pass a subclass of "
            "keras.optimizers.Optimizer that is not private yet, and not LossScaleOptimizer, which "
            "scales the loss before clipping."
        )
    name = form.format(base.__name__)
    # Classes of users, of whom two may have the same name, do not take each other's place in files.
    stock = getattr(keras.optimizers, base.__name__, None) is base
    package = "tfdp" if stock else f"tfdp.{base.__module__}"
    doc = f"`keras.optimizers.{base.__name__}` on private gradients; see `{kind.__name__}`."
    if stock:
        doc += f"""

    Example:
        >>> import keras, tfdp
        >>> optimizer = tfdp.optimizers.{name}(
        ...     l2_norm_clip=1.0, noise_multiplier=1.1{options})
        >>> isinstance(optimizer, keras.optimizers.{base.__name__}), optimizer.noise_multiplier
        (True, 1.1)
    """
    cls = type(name, (kind, base), {"__doc__": doc, "__module__": "tfdp.optimizers"})
    return keras.saving.register_keras_serializable(package=package, name=name)(cls)


DPKerasSGDOptimizer = make_dp_optimizer_class(keras.optimizers.SGD)
DPKerasAdamOptimizer = make_dp_optimizer_class(keras.optimizers.Adam)
DPKerasAdamWOptimizer = make_dp_optimizer_class(keras.optimizers.AdamW)
DPKerasAdagradOptimizer = make_dp_optimizer_class(keras.optimizers.Adagrad)
DPKerasRMSpropOptimizer = make_dp_optimizer_class(keras.optimizers.RMSprop)
DPKerasNadamOptimizer = make_dp_optimizer_class(keras.optimizers.Nadam)
