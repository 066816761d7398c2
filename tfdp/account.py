"""Ties the ledger to the weights, so that the privacy spent on them counts in all later training.

An `Account` is attached to the variables and layers of a model, not to an optimizer or a model object.
They keep it, with its ledger and budget, through `compile`, `make_private`, `load_model` and in layers
that several models share. Changing the values of private weights is post-processing and costs nothing,
so no value is read here.

Numbers that a user copies into a fresh model bring no ledger, and training of the same variables by a
plain model between two private ones is not noticed: the first assumption of every statement.
"""

import keras
from absl import logging

from tfdp._compat.keras import layers_of
from tfdp.accounting import Ledger, Run
from tfdp.accounting.mechanisms import NoisyMechanism, NoMechanism
from tfdp.accounting.sampling import Unknown

# Name of the ledger beside a model's own variables in a file.
LEDGER_KEY = "tfdp_ledger"
# Attribute of an optimizer: the steps that it had counted when the weights were declared to be public.
DECLARED = "_tfdp_declared"


class Account:
    """The privacy spent on a set of weights. A plain object, so that Keras neither tracks nor saves it.

    Attributes:
        session: the session of the last entry that was opened for steps, or None.
        training: the training that runs, or None. Only one may run at a time.
        plan: the plan that was declared for the next trainings: (epochs, steps), one of them None; or
            None.
        start: what is known about the weights before private training: "assumed" (to be
            independent of the private data) or "public" (the user declared that they are).
    """

    def __init__(self):
        self.session, self.training, self.plan = None, None, None
        self.start = "assumed"
        self._ledger = Ledger()

    @property
    def ledger(self) -> Ledger:
        """Everything that was spent; of the training that runs, all planned steps."""
        if self.session is not None:
            self.session.entry.record()
        return self._ledger

    @property
    def runs_so_far(self) -> list[Run]:
        """The runs of the ledger; of the training that runs, only the steps taken."""
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

    def copy(self) -> "Account":
        """An account of other weights with the same ledger; nothing is declared about those."""
        copy = Account()
        copy._ledger.merge(self.ledger)
        return copy

    def close_session(self) -> None:
        """Closes the session, so that it allows no further step."""
        if self.session is not None:
            self.session.entry.close()

    def absorb(self, other: "Account") -> None:
        """Takes over what another account knows, and closes the other account's open session."""
        other.close_session()
        self._ledger.merge(other.ledger)
        self.plan = self.plan or other.plan

    def enter_unaccounted(self, reason: str, declarable: bool = True) -> None:
        """Enters training that was not accounted, for a reason; no finite epsilon is proven after it.

        Args:
            reason: a whole sentence.
            declarable: whether `declare_public` may withdraw the entry.
        """
        logging.warning("%s No finite epsilon is proven for these weights any more.", reason)
        mechanism = NoMechanism(reason=reason, declarable=declarable)
        sampling = Unknown(num_examples=1, lot_size=1)
        run_id = self._ledger.open(Run(mechanism=mechanism, sampling=sampling, steps=1))
        self._ledger.record(run_id, 1)

    def declare_public(self) -> None:
        """Notes that the user declares all unaccounted training to have used public data.

        Such training is withdrawn from the ledger, also if a file brought it.
        """
        self.start = "public"
        self._ledger.withdraw_declarable()


def account_of(model: keras.Model) -> Account:
    """The account of the weights of a model; accounts that meet in a model become one.

    It is kept at the variables, which models may share, and at the layers that hold them, which may
    exchange their variables (`quantize`).
    """
    first, *others = _accounts_in(model) or [Account()]
    for other in others:
        first.absorb(other)
        if other.start == "assumed":
            first.start = "assumed"
    for owner in _owners(model):
        owner._tfdp_account = first
    return first


def copy_ledgers(model: keras.Model, copy: keras.Model) -> None:
    """Gives a copy of a model the ledgers of the weights whose numbers it has."""
    for account in _accounts_in(model):
        account_of(copy).absorb(account.copy())


def _owners(model):
    layers = [layer for layer in layers_of(model, itself=True) if layer.weights]
    return [*layers, *model.weights]


def _accounts_in(model):
    found = [getattr(owner, "_tfdp_account", None) for owner in _owners(model)]
    return [*{id(account): account for account in found if account is not None}.values()]


def known_steps(ledger: Ledger) -> int:
    """Number of private steps taken in a ledger, the most of an optimizer that it accounts for."""
    private = [i for i, run in ledger.entries.items() if isinstance(run.mechanism, NoisyMechanism)]
    return sum(ledger.taken(run_id) for run_id in private)


def check_counted(optimizer, ledger: Ledger) -> None:
    """Raises ValueError if a private optimizer has taken more steps than the ledger of its weights."""
    taken = int(optimizer.iterations.numpy())  # also of one that is not built, from a checkpoint
    known = known_steps(ledger) + vars(optimizer).get(DECLARED, 0)
    if taken > known:
        raise ValueError(
            f"The optimizer has taken {taken} steps, and this model's ledger knows of {known}. "
            "If it trained another model, compile each model with a new optimizer. Otherwise it was "
            "restored from something that holds no ledger, such as a tf.train.Checkpoint or the "
            "file of a plain model. Save with model.save or "
            "model.save_weights, or keep model.privacy.ledger.to_json() beside the checkpoint and "
            "merge it: model.privacy.ledger.merge(Ledger.from_json(text)). Declare steps on public "
            "data by make_private(model, start='public')."
        )
