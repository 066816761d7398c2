"""Private Keras models: `make_private`, `DPModel`, `DPSequential`.

Their common base `PrivateTraining` provides the guarantee; its module (`private_training`) states it.
"""

import functools
from collections.abc import Collection

import keras

from tfdp._compat.keras import (
    Functional,
    Trainer,
    compile_arguments,
    pickled,
    unpickled,
)
from tfdp._other_libraries import refuse_other
from tfdp.accounting import PrivacyBudget
from tfdp.optimizers import DPKerasOptimizer
from tfdp.optimizers.made import make_again, origin_of
from tfdp.training.checks import refuse_mixing_layers, refuse_own_train_step, refuse_unsavable
from tfdp.training.private_training import PrivateTraining

__all__ = ["DPFunctional", "DPModel", "DPSequential", "PrivateTraining", "make_private"]


def _reduce(model):
    """`__reduce__` for copies and pickles: they carry ledger, budget and settings, compiled or not."""
    refuse_unsavable(model)  # a copy is made from what would be in a file
    made = origin_of(type(getattr(model, "optimizer", None)))
    return _rebuild, (pickled(model), model._portrait(), made)


def _rebuild(arguments, portrait, made=None):
    # Pickle looks classes up by name, and a private class may have the name of its plain class. So
    # the unpickled model may be plain, and is made private again.
    make_again(made)
    return make_private(unpickled(*arguments))._take_over(portrait)


@keras.saving.register_keras_serializable(package="tfdp")
class DPModel(PrivateTraining, keras.Model):
    """A `keras.Model` that trains privately: subclass it, or call it with inputs and outputs.

    Example:
        >>> import keras, tfdp
        >>> inputs = keras.Input((4,))
        >>> hidden = keras.layers.Dense(8, activation="tanh")(inputs)
        >>> model = tfdp.DPModel(inputs, keras.layers.Dense(3)(hidden))
        >>> model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.1), "mse")
        >>> model.privacy.ledger
        Ledger(0 runs, 0 steps)
    """

    _tfdp_base = keras.Model
    __reduce__ = _reduce

    def __new__(cls, *args, **kwargs):
        if cls is DPModel and _is_functional(args, kwargs):
            return super().__new__(DPFunctional)
        return super().__new__(cls)

    def __init__(self, *args, **kwargs):
        refuse_other(type(self).__name__, kwargs)
        if _is_functional(args, kwargs) and not isinstance(self, Functional):
            # Keras would insert its functional class into the bases of DPModel itself, and so into
            # all other subclasses of DPModel.
            raise TypeError(
                f"{type(self).__name__} calls DPModel with inputs and outputs. Expected a subclass of "
                "tfdp.training.DPFunctional, or make_private of a subclass of keras.Model."
            )
        super().__init__(*args, **kwargs)


def _is_functional(args, kwargs):
    return (
        len(args) == 2 or bool(args and "outputs" in kwargs) or {"inputs", "outputs"} <= set(kwargs)
    )


@keras.saving.register_keras_serializable(package="tfdp")
class DPFunctional(DPModel, Functional):
    """A functional `keras.Model` that trains privately; `DPModel(inputs, outputs)` makes one."""

    _tfdp_base = Functional


@keras.saving.register_keras_serializable(package="tfdp")
class DPSequential(PrivateTraining, keras.Sequential):
    """A `keras.Sequential` that trains privately.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> model = tfdp.DPSequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.1), "mse")
        >>> x = np.zeros((100, 2), "float32")
        >>> _ = model.fit(x, x[:, :1], batch_size=50, verbose=0)
        >>> model.privacy.steps_taken
        2
    """

    _tfdp_base = keras.Sequential
    __reduce__ = _reduce

    def __init__(self, *args, **kwargs):
        refuse_other(type(self).__name__, kwargs)
        super().__init__(*args, **kwargs)


@functools.cache
def _private_class(base: type) -> type:
    """A private subclass of `base` that saves itself under the name of `base`.

    So the file of a private model is the file of a plain model, and loads without tfdp.
    """
    # Keras finds its own classes by identity and saves them under their public module. This subclass
    # is another object, so it names that module itself.
    stock = base in (keras.Sequential, keras.Model)
    members = {
        "__module__": "keras" if stock else base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "_tfdp_base": base,
        "__reduce__": _reduce,
    }
    made = type(base.__name__, (PrivateTraining, base), members)
    name = keras.saving.get_registered_name(base)
    if keras.saving.get_registered_object(name) is base:
        # Files have to contain the name that the user registered, so the private class is registered
        # under it first, and then `base` again: the name has to go on loading the user's class.
        package, _, short = name.partition(">")
        for cls in (made, base):
            keras.saving.register_keras_serializable(package, short)(cls)
    return made


def make_private(
    model: keras.Model,
    *,
    engine: str = "auto",
    physical_batch_size: int | None = None,
    budget: PrivacyBudget | None = None,
    seed: int | None = None,
    start: str | None = None,
    public_preprocessing: bool | Collection = (),
    **unknown,
) -> keras.Model:
    """Makes a Keras model train privately, in place, and returns it.

    The class keeps its name and module, so that the saved `.keras` file loads in plain Keras. A model
    that was loaded with its private optimizer is compiled again with it, so it can train at once.

    Args:
        model: any Keras model whose layers treat examples one by one. (Keras' own tests mix its trainer
            into a layer that is no `keras.Model`; this is accepted, too.)
        engine: the way in which per-example gradients are computed. "ghost" is the fastest, and
            "vectorized" knows more models; "auto" takes the faster of the two that is exact for the
            model, and warns where that is not "ghost". "loop" takes one example after the other: slow,
            but for any model that TensorFlow can differentiate.
        physical_batch_size: largest number of examples that are in the network at once; None processes
            a lot as a whole, or, for convolutions and recurrent layers on a CPU, 32 to 384 examples
            at a time.
        budget: the most that may be spent, including what was spent before; the step that would
            exceed it raises `BudgetExhausted`. Like the ledger, the budget belongs to the weights: it
            is saved with them, and None leaves an earlier budget as it is.
        seed: insecure; makes the lots that `fit` draws from arrays reproducible, so that nothing finite
            is proven. For tests and debugging.
        start: "public" declares that the weights, as they are now, do not depend on the private data,
            because they are fresh or were trained on public data; the privacy statement says that the
            user declared it. None leaves an earlier value as it is. The first value is "assumed":
            the same independence is assumed as long as nothing shows the opposite.
        public_preprocessing: layers, or their names, that were adapted to public data (`Normalization`,
            `TextVectorization` and the like); True for all. Other adapted layers are refused.

    Returns:
        `model` itself.

    Raises:
        TypeError: `model` is not a Keras model, or an argument is unknown.
        ValueError: a layer mixes examples or was adapted to data (the error names it and the remedy),
            the model has its own `train_step`, or an argument is invalid.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]))
        >>> optimizer = tfdp.DPKerasSGDOptimizer(
        ...     l2_norm_clip=1.0, noise_multiplier=1.1, learning_rate=0.15)
        >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        >>> model.compile(optimizer, loss, metrics=["accuracy"])
        >>> x, y = np.zeros((500, 4), "float32"), np.zeros(500, "int32")
        >>> _ = model.fit(x, y, batch_size=50, epochs=2, verbose=0)
        >>> print(model.privacy.spent(delta=1e-4))  # doctest: +ELLIPSIS
        proven epsilon: 2.383 at delta = 0.0001...
    """
    refuse_other("make_private", unknown)
    if unknown:
        raise TypeError(f"make_private has no argument {next(iter(unknown))!r}.")
    if not (isinstance(model, keras.Layer) and isinstance(model, Trainer)):
        raise TypeError(f"Expected a keras.Model. Received: {type(model).__name__}")
    refuse_own_train_step(model, PrivateTraining)
    if model.built:
        refuse_mixing_layers(model, public_preprocessing)
    made = not isinstance(model, PrivateTraining)
    if made:
        if hasattr(model, "privacy"):
            raise ValueError(
                f"Model '{model.name}' has an attribute 'privacy' of its own. Expected that name to be "
                "free: tfdp puts the ledger, the budget and the statement there. Rename yours."
            )
        model.__class__ = _private_class(type(model))
    model._configure_privacy(
        engine=engine,
        physical_batch_size=physical_batch_size,
        budget=budget,
        seed=seed,
        start=start,
        public_preprocessing=public_preprocessing,
    )
    if made and isinstance(getattr(model, "optimizer", None), DPKerasOptimizer):
        # A loaded model. Its metrics would count padding rows.
        model.compile(**compile_arguments(model))
    return model
