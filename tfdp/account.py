"""Attaches the ledger to the weights, so that privacy spent on them counts in all later training.

An `Account` is attached to the variables and layers of a model, not to an optimizer or a model object.
So the ledger and its budget survive `compile`, `make_private` and `load_model`, and they hold for
layers that several models share. Changing the values of private weights is post-processing and costs
nothing, so no value is read here.

Two things are not detected: values that a user copies into a fresh model, which carry no ledger, and
plain training of the same variables between two private trainings. The first assumption of every
statement covers both.
"""

import keras
from absl import logging

from tfdp._compat.keras import layers_of
from tfdp.accounting import Ledger, Run
from tfdp.accounting.mechanisms import NoisyMechanism, NoMechanism
from tfdp.accounting.sampling import Unknown

# Name of the ledger beside a model's own variables in a file.
LEDGER_KEY = "tfdp_ledger"
# Attribute of an optimizer: the steps it had counted when the weights were declared public.
DECLARED = "_tfdp_declared"


class Account:
    """The privacy spent on a set of weights.

    It is a plain object, so that Keras neither tracks nor saves it.

    Attributes:
        session: The session of the last entry that was opened for steps, or None.
        training: The current training, or None. Only one may run at a time.
        plan: The length that the user declared for the next trainings: (epochs, steps), one of which
            is None. None without such a declaration.
        start: The status of the weights before private training: "assumed" (to be independent of
            the private data) or "public" (the user declared that they are).
    """

    def __init__(self):
        self.session, self.training, self.plan = None, None, None
        self.start = "assumed"
        self._ledger = Ledger()

    @property
    def ledger(self) -> Ledger:
        """Everything that was spent, with all planned steps of the current training."""
        if self.session is not None:
            self.session.entry.record()
        return self._ledger

    @property
    def runs_so_far(self) -> list[Run]:
        """The runs of the ledger, with only the steps taken of the current training."""
        entries = self.ledger.entries
        if self.training is not None and self.session is not None:
            entry = self.session.entry
            if not entry.closed:
                entries[entry.run_id] = entries[entry.run_id].with_steps(entry.so_far)
        return [run for run in entries.values() if run.steps]

    @property
    def next_turn(self) -> int:
        """Number of the next lot; modulo the number of groups, the group whose turn it is."""
        open_one = self.session is not None and not self.session.entry.closed
        return self.session.next_turn if open_one else 0

    def close_session(self) -> None:
        """Closes the session, so that it allows no further step."""
        if self.session is not None:
            self.session.entry.close()

    def absorb(self, other: "Account") -> None:
        """Merges another account into this one, and closes the other account's open session."""
        other.close_session()
        self._ledger.merge(other.ledger)
        self.plan = self.plan or other.plan

    def enter_unaccounted(self, reason: str, declarable: bool = True) -> None:
        """Records training without accounting, after which no finite epsilon is proven.

        Args:
            reason: Why nothing is proven, a whole sentence for the statement.
            declarable: Whether `declare_public` may withdraw the entry.
        """
        logging.warning("%s No finite epsilon can be proven for these weights any more.", reason)
        mechanism = NoMechanism(reason=reason, declarable=declarable)
        sampling = Unknown(num_examples=1, lot_size=1)
        run_id = self._ledger.open(Run(mechanism=mechanism, sampling=sampling, steps=1))
        self._ledger.record(run_id, 1)

    def declare_public(self) -> None:
        """Records the user's declaration that all unaccounted training used public data.

        Such training is removed from the ledger, even if it was loaded from a file.
        """
        self.start = "public"
        self._ledger.withdraw_declarable()


def account_of(model: keras.Model) -> Account:
    """Returns the account of a model's weights, after merging all accounts in the model.

    The account is attached to the variables, because several models may share them, and to the layers,
    because a layer may replace its variables (`quantize`).
    """
    first, *others = _accounts_in(model) or [Account()]
    for other in others:
        first.absorb(other)
        if other.start == "assumed":
            first.start = "assumed"
    for owner in _owners(model):
        owner._tfdp_account = first
    return first


def _owners(model):
    layers = [layer for layer in layers_of(model, itself=True) if layer.weights]
    return [*layers, *model.weights]


def _accounts_in(model):
    found = [getattr(owner, "_tfdp_account", None) for owner in _owners(model)]
    return [*{id(account): account for account in found if account is not None}.values()]


def known_steps(ledger: Ledger) -> int:
    """Returns the number of private steps in a ledger: the most that an optimizer may have counted."""
    private = [i for i, run in ledger.entries.items() if isinstance(run.mechanism, NoisyMechanism)]
    return sum(ledger.taken(run_id) for run_id in private)


def check_counted(optimizer, ledger: Ledger) -> None:
    """Raises ValueError if a private optimizer has taken more steps than the ledger of its weights."""
    taken = int(optimizer.iterations.numpy())  # also of one that is not built, from a checkpoint
    known = known_steps(ledger) + vars(optimizer).get(DECLARED, 0)
    if taken > known:
        raise ValueError(
            f"The optimizer has taken {taken} steps, but this model's ledger counts only {known}. "
            "If it trained another model, compile each model with a new optimizer. Otherwise it "
            "was restored from something without a ledger, such as a tf.train.Checkpoint or the "
            "file of a plain model. Save with model.save or model.save_weights, or keep "
            "model.privacy.ledger.to_json() beside the checkpoint and merge it: "
            "model.privacy.ledger.merge(Ledger.from_json(text)). Declare steps on public data "
            "with make_private(model, start='public')."
        )
