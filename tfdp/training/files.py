"""How a private model gets into files and copies, with its ledger, and out of them again.

Keras writes a model in two parts. The weights (`.keras`, `.weights.h5`, shards, checkpoints, pickles)
consist of what each object's `save_own_variables` writes. A private model writes its ledger there,
beside its own variables, with an optimizer or without; plain Keras can still read the numbers.

The configuration (`.keras`, pickles) names a class. A model that `make_private` made is written as
`PrivateModel`, with the place of the user's class, and so it is private again when it is loaded.
"""

import contextlib
import dataclasses
import pathlib

import keras

from tfdp._compat.files import optimizer_in, read_text, write_text
from tfdp._compat.keras import configured_rate, layers_of, unpickled
from tfdp.account import LEDGER_KEY, Account, account_of, check_counted
from tfdp.accounting import Ledger, Run
from tfdp.optimizers import DPKerasOptimizer
from tfdp.session import Session
from tfdp.training.checks import refuse_unsavable
from tfdp.training.steering import refuse_legacy

# The file of the ledger in the folder of a preset.
PRESET_LEDGER = "privacy.json"


class SavedWithLedger:
    """Mixin for a Keras model: keeps the ledger of its weights, which its files hold and bring.

    The class that it is mixed into provides `_privacy.account`, the account of a model that has no
    weights yet, and `_privacy.optimizer_state`: None, or variables of an optimizer in a file, which
    the next `compile` takes up.
    """

    # -- the ledger ------------------------------------------------------------------------------

    @property
    def _account(self) -> Account:
        """The account of the weights, or of the model itself as long as the model has no weights."""
        privacy = self._privacy
        weights = list(self.weights)
        if weights:
            account = account_of(weights)
            if privacy.account is not account:
                if privacy.account.start != "assumed":
                    account.start = privacy.account.start
                account.absorb(privacy.account)
                privacy.account = account
        return privacy.account

    @property
    def _session(self) -> Session | None:
        return self._account.session

    def _checked_runs(self) -> list[Run]:
        """The runs in the ledger; raises ValueError if the optimizer has taken other steps."""
        optimizer, ledger = getattr(self, "optimizer", None), self._account.ledger
        if isinstance(optimizer, DPKerasOptimizer):
            check_counted(optimizer, ledger)
        runs = self._account.ledger.runs
        if self._account.start == "public":  # declared later, perhaps
            runs = [dataclasses.replace(run, start="public") for run in runs]
        return runs

    # -- the weights -----------------------------------------------------------------------------

    def save_own_variables(self, store):
        """Writes the model's own variables, and the ledger beside them."""
        write_text(store, LEDGER_KEY, self._account.ledger_of_files.to_json())
        super().save_own_variables(store)

    def load_own_variables(self, store):
        """Restores the model's own variables, and merges the ledger that lies beside them.

        Without a ledger, the steps that the file's optimizer has counted leave nothing proven.
        """
        text, privacy = read_text(store, LEDGER_KEY), self._privacy
        try:
            super().load_own_variables(store)
        finally:  # also where Keras leaves out a layer that does not match
            takes_state = privacy.optimizer_state is not None
            saved = optimizer_in(store) if text is None or takes_state else {}
            self._bring(text, steps=int(saved.get("0", 0)))
        if takes_state:
            privacy.optimizer_state = saved
        if not self._has_private_optimizer():
            # Tasks of KerasHub make a plain one, which would take over the count of private steps.
            self.optimizer = None

    def _bring(self, text, steps):
        account = self._account
        if text is not None:
            account.ledger.merge(Ledger.from_json(text))
        elif steps and account.start != "public":
            account.enter_unaccounted(
                f"A plain optimizer took {steps} steps on weights that '{self.name}' loaded, and no "
                "ledger accounts for them. If that was on public data, say so: make_private(model, "
                "start='public')."
            )

    # -- the configuration -----------------------------------------------------------------------

    def save(self, filepath, *args, **kwargs):
        """`keras.Model.save`; formats that hold no ledger are refused, before a file is begun."""
        refuse_legacy(filepath)
        refuse_unsavable(self)
        return super().save(filepath, *args, **kwargs)

    def get_compile_config(self):
        """The arguments of `compile`, without a plain optimizer, with which no private model compiles.

        Keras asks for it whenever it writes a whole model, so models that could not be loaded are
        refused here.
        """
        refuse_unsavable(self)
        return super().get_compile_config() if self._has_private_optimizer() else {}

    def compile_from_config(self, config):
        """Compiles a loaded model.

        As in Keras, a class with a `compile` of its own waits for its user to call it; this call then
        brings the state of the optimizer.
        """
        if not _compiles_itself(type(self)):
            self.compile(**keras.saving.deserialize_keras_object(config))
            if self.built:
                self.optimizer.build(self.trainable_variables)
            return
        super().compile_from_config(config)
        if not self._has_private_optimizer():
            self._privacy.optimizer_state = {}

    def _has_private_optimizer(self) -> bool:
        return isinstance(getattr(self, "optimizer", None), DPKerasOptimizer)

    def _restore_optimizer(self):
        """Gives a newly compiled optimizer the state from the file; its learning rate is kept."""
        state, self._privacy.optimizer_state = self._privacy.optimizer_state, None
        if state:
            optimizer = self.optimizer
            optimizer.build(self.trainable_variables)
            for number, variable in enumerate(optimizer.variables):
                if variable is configured_rate(optimizer):
                    state[str(number)] = variable
            optimizer.load_own_variables(state)

    def __reduce__(self):
        """Copies and pickles are made from what would be in a file."""
        _, arguments = super().__reduce__()
        return unpickled, arguments


def _compiles_itself(cls) -> bool:
    """Whether a class has a `compile` or a `compile_from_config` of its user's."""
    return any(
        {"compile", "compile_from_config"} & vars(base).keys()
        for base in cls.__mro__
        if not (base.__module__.startswith("tfdp.") or issubclass(keras.Model, base))
    )


@contextlib.contextmanager
def plainly(model):
    """Context in which a model, and private models inside of it, are of their plain classes."""
    found = [(each, type(each)) for each in layers_of(model, itself=True)]
    found = [(each, cls) for each, cls in found if "_tfdp_base" in vars(cls)]
    for each, cls in found:
        each.__class__ = vars(cls)["_tfdp_base"]
    try:
        yield
    finally:
        for each, cls in found:
            each.__class__ = cls


def save_to_preset(self, preset_dir, *args, **kwargs):
    """Writes the preset of the plain class, and the ledger into `privacy.json` beside it."""
    with plainly(self):
        self.save_to_preset(preset_dir, *args, **kwargs)
    path = pathlib.Path(preset_dir, PRESET_LEDGER)
    path.write_text(self._account.ledger_of_files.to_json())
