"""Saves, loads and copies private models together with their ledgers.

Keras writes a model in two parts. The weights (in `.keras`, `.weights.h5`, shards and pickles, but not
in `tf.train.Checkpoint`, which has numbers only) are what `save_own_variables` of each object writes.
A private model writes its ledger there, beside its own variables, with or without an optimizer. Plain
Keras can still read the numbers.

The configuration (in `.keras` and pickles) names a class. A model that `make_private` made is written
as `PrivateModel`, with the place of the user's class. So it is private again when it is loaded.
"""

import contextlib
import pathlib

import keras

from tfdp._compat.files import add_text, optimizer_in, read_text, texts_in, write_text
from tfdp._compat.keras import layers_of, take_policy, unpickled
from tfdp.account import LEDGER_KEY
from tfdp.accounting import Ledger
from tfdp.optimizers import DPKerasOptimizer
from tfdp.training.replicas import writes
from tfdp.training.steering import refuse_legacy

# Name of the ledger's file in the folder of a preset.
PRESET_LEDGER = "privacy.json"


class SavedWithLedger:
    """Mixin that adds the ledger to the files of a private Keras model."""

    # -- the weights -----------------------------------------------------------------------------

    def save_own_variables(self, store):
        """Writes the model's own variables, and the ledger beside them."""
        for layer in layers_of(self):  # they are written after their model
            take_policy(layer)
        write_text(store, LEDGER_KEY, self.privacy.account.ledger.to_json())
        super().save_own_variables(store)

    def load_own_variables(self, store):
        """Restores the model's own variables, and merges the ledger beside them.

        If the file has no ledger but an optimizer with counted steps, nothing finite is proven.
        """
        text = read_text(store, LEDGER_KEY)
        try:
            super().load_own_variables(store)
        finally:  # also if Keras skips a layer that does not match
            self._bring(text, store)
        if not self._has_private_optimizer():
            # KerasHub's tasks make a plain optimizer, which would take over the count of private steps.
            self.optimizer = None

    def _bring(self, text, store):
        account = self.privacy.account
        if text is not None:
            account.ledger.merge(Ledger.from_json(text))
            return
        steps = int(optimizer_in(store).get("0", 0))
        if steps and account.start != "public":
            account.enter_unaccounted(
                f"A plain optimizer took {steps} steps on weights that '{self.name}' loaded, and no "
                "ledger accounts for them. If that was on public data, declare it: make_private(model, "
                "start='public')."
            )

    # -- the configuration -----------------------------------------------------------------------

    def save(self, filepath, *args, **kwargs):
        """Saves as `keras.Model.save` does, with the ledger.

        Formats without a place for the ledger are refused. Of several machines, the chief writes the
        file.

        Args:
            filepath: A file name that ends in `.keras`, or another name that Keras accepts.
            *args, **kwargs: Further arguments of `keras.Model.save`.
        """
        refuse_legacy(filepath)
        return super().save(filepath, *args, **kwargs) if writes(self) else None

    def save_weights(self, filepath, *args, **kwargs):
        """Saves weights as `keras.Model.save_weights` does, with the ledger. The chief writes."""
        return super().save_weights(filepath, *args, **kwargs) if writes(self) else None

    def export(self, filepath, *args, **kwargs):
        """Exports as `keras.Model.export` does. Of several machines, the chief writes the folder."""
        return super().export(filepath, *args, **kwargs) if writes(self) else None

    def get_compile_config(self):
        """Returns the arguments of `compile`, none with a plain optimizer, which cannot be used."""
        return super().get_compile_config() if self._has_private_optimizer() else {}

    def compile_from_config(self, config):
        """Compiles a loaded model, except for classes with a custom `compile`, as in Keras."""
        if _compiles_itself(type(self)):
            super().compile_from_config(config)
            return
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    def _has_private_optimizer(self) -> bool:
        return isinstance(getattr(self, "optimizer", None), DPKerasOptimizer)

    def __reduce__(self):
        """Makes copies and pickles from the contents of a file."""
        _, arguments = super().__reduce__()
        return unpickled, arguments


def _compiles_itself(cls) -> bool:
    """Whether a class has a custom `compile` or `compile_from_config`."""
    return any(
        {"compile", "compile_from_config"} & vars(base).keys()
        for base in cls.__mro__
        if not (base.__module__.startswith("tfdp.") or issubclass(keras.Model, base))
    )


@contextlib.contextmanager
def plainly(*models):
    """Context in which private models have their plain classes. Other models are unchanged."""
    found = [(each, type(each)) for each in models]
    found = [(each, cls) for each, cls in found if "_tfdp_base" in vars(cls)]
    for each, cls in found:
        each.__class__ = vars(cls)["_tfdp_base"]
    try:
        yield
    finally:
        for each, cls in found:
            each.__class__ = cls


def save_to_preset(self, preset_dir, *args, **kwargs):
    """Writes the preset of the plain class, with the ledger in a file `privacy.json`."""
    if not writes(self):
        return
    with plainly(*layers_of(self, itself=True)):
        self.save_to_preset(preset_dir, *args, **kwargs)
    path = pathlib.Path(preset_dir, PRESET_LEDGER)
    path.write_text(self.privacy.account.ledger.to_json())


def save_lora_weights(self, filepath):
    """Writes KerasHub's file of low-rank factors, with the ledger."""
    if not writes(self):
        return
    self._tfdp_base.save_lora_weights(self, filepath)
    add_text(filepath, LEDGER_KEY, self.privacy.account.ledger.to_json())


def load_lora_weights(self, filepath):
    """Loads a file of low-rank factors, and merges its ledger."""
    for text in texts_in(filepath, LEDGER_KEY):
        self.privacy.ledger.merge(Ledger.from_json(text))
    self._tfdp_base.load_lora_weights(self, filepath)


# Methods of KerasHub's models that private models replace, if their class has them.
OF_KERAS_HUB = (save_to_preset, save_lora_weights, load_lora_weights)
