"""Private Keras models: `make_private`, and `from_preset` for models of KerasHub.

Their common base `PrivateTraining` provides the guarantee, which its module (`private_training`)
states.
"""

import functools
import os
import pathlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import keras

from tfdp._compat.keras import Trainer
from tfdp.accounting import Ledger, PrivacyBudget
from tfdp.training.checks import refuse_mixing_layers, refuse_own_train_step
from tfdp.training.export import replace_again, replacements
from tfdp.training.files import OF_KERAS_HUB, PRESET_LEDGER, plainly
from tfdp.training.private_training import PrivateTraining

__all__ = ["PrivateTraining", "from_preset", "make_private"]


# Entry of a private model's configuration, beside those of its plain class.
_PRIVATE = "tfdp_private"


@keras.saving.register_keras_serializable(package="tfdp")
class PrivateModel:
    """The first base of all classes that `make_private` makes, and their name in files.

    The configuration is that of the plain class, with an additional entry for the place of the plain
    class and the settings of `make_private`.
    """

    def get_config(self):
        with plainly(self):
            config = self.get_config()
        place = _place(self._tfdp_base) | {"build_config": self.get_build_config()}
        private = {
            "needs": "import tfdp",  # the first entry, for readers of Keras' error without it
            "class": place,
            "settings": _settings(self),
            "replaced": replacements(self),
        }
        return {_PRIVATE: private} | config

    @classmethod
    def from_config(cls, config, **kwargs):
        config = dict(config)
        private = config.pop(_PRIVATE, {"settings": {}})  # none in that of the plain class
        if cls is PrivateModel:  # from a file
            model = keras.saving.deserialize_keras_object(private["class"] | {"config": config})
        else:
            model = cls._tfdp_base.from_config(config, **kwargs)
        replace_again(model, private.get("replaced", {}))
        model.__class__ = _private_class(type(model))
        return model.privacy.configure(**private["settings"])


def _place(cls) -> dict:
    """Returns the place where Keras finds a class when it loads a configuration."""
    stock = cls in (keras.Sequential, keras.Model)  # which Keras saves under their public module
    return {
        "module": "keras" if stock else cls.__module__,
        "class_name": cls.__name__,
        "registered_name": None if stock else keras.saving.get_registered_name(cls),
    }


def _settings(model) -> dict:
    """Returns the arguments of `make_private` for a file; no seed, and the budget is in the ledger."""
    privacy, public = model.privacy, model.privacy.public_preprocessing
    if public is not True:
        public = [getattr(layer, "name", layer) for layer in public]
    return {
        "engine": privacy.engine,
        "physical_batch_size": privacy.physical_batch_size,
        "start": privacy.account.start,
        "public_preprocessing": public,
    }


def _not_called(self, plain_model):
    """Constructor of the classes of `make_private`, which is never needed: models exist already.

    Keras' `clone_model` sees from its arguments that clones are of the plain class, as for Sequential.
    """
    raise TypeError(
        "This class cannot be called. Make a plain model, then tfdp.make_private(model)."
    )


@functools.cache
def _private_class(base: type) -> type:
    """Makes the private subclass of a class. Its name stays, since files of weights contain it."""
    members: dict[str, object] = {
        "__module__": "tfdp",
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "_tfdp_base": base,
        "__init__": _not_called,
    }
    members |= {each.__name__: each for each in OF_KERAS_HUB if hasattr(base, each.__name__)}
    made = type(base.__name__, (PrivateModel, PrivateTraining, base), members)
    # All of them have one name in files, which goes on loading `PrivateModel`.
    for cls in (made, PrivateModel):
        keras.saving.register_keras_serializable("tfdp", "PrivateModel")(cls)
    return made


if TYPE_CHECKING:

    class Private(PrivateTraining, keras.Model):
        """A private model, as type checkers see it."""

        def __getattr__(self, name: str) -> Any: ...  # of the user's class

else:
    Private = keras.Model


def make_private(
    model: keras.Model,
    *,
    engine: str = "auto",
    physical_batch_size: int | None = None,
    budget: PrivacyBudget | None = None,
    seed: int | None = None,
    start: str | None = None,
    public_preprocessing: bool | Collection = (),
) -> Private:
    """Makes a Keras model train with differential privacy, in place, and returns it.

    Afterwards compile the model with a private optimizer, such as `DPKerasSGDOptimizer`, and call
    `fit` as in Keras. `model.privacy` has the privacy spent, the budget and the statement. If you know
    epsilon rather than the noise, use `make_private_with_epsilon`.

    The model may be of any class, including a subclass of `keras.Model` that you wrote. Its layers must
    treat examples one by one: `tfdp.fix` replaces batch normalization.

    `model.save` and `keras.models.save_model` write a private model: after `import tfdp`,
    `keras.models.load_model` returns it with its ledger and budget. `model.privacy.release` writes a
    model for plain Keras. Call `make_private` before `load_weights`: a plain model ignores the ledger.

    Args:
        model: Any Keras model whose layers treat examples one by one.
        engine: How per-example gradients are computed, with the same result. "auto", the default,
            and "ghost" never write out the gradient of the whole model for each example; "auto"
            also takes models whose normalization uses statistics of the lot. "vectorized" writes
            all of these gradients out. "loop" takes one example after the other: slow, but for any
            model that TensorFlow can differentiate.
        physical_batch_size: Largest number of rows in the network at the same time. It limits memory
            and does not affect privacy. None processes a lot as a whole, or, for convolutions and
            recurrent layers on a CPU, 32 to 384 examples at a time.
        budget: The largest epsilon and delta that may be spent, including earlier training. A step
            that would exceed it raises `BudgetExhausted`. Like the ledger, the budget belongs to the
            weights and is saved with them. None keeps an earlier budget.
        seed: An integer that makes the lots reproducible that `fit` draws from arrays, for tests and
            debugging. It is insecure: nothing finite is proven with a seed. None draws secret lots.
        start: "public" declares that the current weights do not depend on the private data, because
            they are fresh or were trained on public data. The privacy statement says that the user
            declared it. None keeps an earlier value. Without any declaration, the value is
            "assumed": tfdp assumes the same until it detects the opposite.
        public_preprocessing: Layers, or their names, that were adapted to public data, such as
            `Normalization` and `TextVectorization`. True means all. Other adapted layers are
            refused.

    Returns:
        `model` itself.

    Raises:
        TypeError: If `model` is not a Keras model.
        ValueError: If a layer mixes examples or was adapted to data (the error names it and the
            remedy), the model has its own `train_step`, or an argument is invalid.

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
    if not (isinstance(model, keras.Layer) and isinstance(model, Trainer)):
        hint = ". Pass a model, not its class." if isinstance(model, type) else ""
        raise TypeError(f"Expected a keras.Model. Received: {type(model).__name__}{hint}")
    refuse_own_train_step(model, PrivateTraining)
    if model.built:
        refuse_mixing_layers(model, public_preprocessing)
    if not isinstance(model, PrivateTraining):
        if hasattr(model, "privacy"):
            raise ValueError(
                f"Model '{model.name}' has an attribute 'privacy', which tfdp needs for the ledger, "
                "the budget and the statement. Rename the attribute."
            )
        model.__class__ = _private_class(type(model))  # type: ignore[arg-type]  # a class is hashable
    model.privacy.configure(
        engine=engine,
        physical_batch_size=physical_batch_size,
        budget=budget,
        seed=seed,
        start=start,
        public_preprocessing=public_preprocessing,
    )
    return model


def from_preset(cls: Any, preset: str | os.PathLike, **arguments) -> Private:
    """Loads a private KerasHub model from the preset that it was saved to, with its ledger and budget.

    A preset is a folder in which KerasHub keeps a model. `save_to_preset` of a private model writes the
    ledger as a file `privacy.json` into the folder. KerasHub's own `cls.from_preset` ignores it and
    loads a plain model.

    Args:
        cls: The class of the model, such as `keras_hub.models.TextClassifier`.
        preset: Path of a local folder that `save_to_preset` of a private model wrote.
        **arguments: Further arguments of `cls.from_preset`.

    Returns:
        A private model with the default settings of `make_private`, which a call of `make_private`
        changes.

    Raises:
        ValueError: If the folder has no ledger.

    Example:
        >>> import keras, tfdp
        >>> tfdp.from_preset(keras.Model, "bert_tiny_en_uncased")
        Traceback (most recent call last):
        ...
        ValueError: Expected a folder that save_to_preset of a private model wrote. Found no ...
    """
    path = pathlib.Path(preset, PRESET_LEDGER)
    if not path.is_file():
        raise ValueError(
            f"Expected a folder that save_to_preset of a private model wrote. Found no {path}. Load a "
            "public preset by its class: tfdp.make_private(cls.from_preset(preset))."
        )
    model = cls.from_preset(preset, **arguments)
    model.optimizer = None  # a plain one, to which a file may have given the count of private steps
    make_private(model)
    model.privacy.ledger.merge(Ledger.from_json(path.read_text()))
    return model
