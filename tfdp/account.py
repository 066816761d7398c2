"""Ties the ledger to the weights: what was spent on weights stays with them in all later training.

An `Account` is attached to the variables of a model, not to an optimizer or a model object. Whatever
is done with `compile`, `make_private`, `load_model` or layers that several models share, the
variables keep their account, and with it the ledger and its budget. What is done with the values of
private weights is post-processing, and costs nothing: no value is read here.

Numbers that a user copies into a fresh model do not bring a ledger, and training of the same variables
by a plain model between two private ones is not noticed; the first two assumptions of every statement
are about that.
"""

import math
from collections.abc import Callable, Sequence

import keras
from absl import logging

from tfdp.accounting import Ledger, Run
from tfdp.accounting.mechanisms.none import NoMechanism
from tfdp.accounting.sampling import Unknown

# Name of the ledger beside a model's own variables in a file.
LEDGER_KEY = "tfdp_ledger"
# Attribute of an optimizer: the steps that it had counted when the weights were declared to be public.
DECLARED = "_tfdp_declared"


class Account:
    """What was spent on a set of weights. A plain object, so that Keras neither tracks nor saves it.

    Attributes:
        session: the entry of the ledger that is open for steps (`session.Session`), or None.
        start: what is known about the weights before private training: "assumed" (to be
            independent of the private data) or "public" (the user declared that they are).
    """

    def __init__(self):
        self.session, self._closed = None, None
        self.start = "assumed"
        self._ledger = Ledger()
        # Whether files count all planned steps of the open run, because results choose among them.
        self.chosen_among = False
        # The session whose training a callback ends, and how many planned steps that leaves out.
        self.chosen_end: Callable[[], tuple] = lambda: (None, 0)
        # Ids of the runs that stand for training that was not accounted.
        self._suspicions: list[str] = []

    @property
    def ledger(self) -> Ledger:
        """Everything that was spent, up to the last step."""
        if self.session is not None:
            self.session.record()
        return self._ledger

    @property
    def stated(self) -> Ledger:
        """The ledger of what the present weights show, if the training ends with them.

        It counts the steps that a decision leaves out, which `ledger` has when the training has ended.
        """
        session, left_out = self.chosen_end()
        if session is None or not left_out:
            return self.ledger
        copy = Ledger.from_json(self.ledger.to_json())
        if _is_unknown(left_out, session):
            copy.record(copy.open(_unaccounted(_UNKNOWN_PLAN)), 1)
        elif session.run_id in copy.entries:
            _record(copy, session.run_id, session.counted_with(left_out))
        return copy

    @property
    def ledger_of_files(self) -> Ledger:
        """The ledger that a file with the present weights holds."""
        session = self.session
        if not self.chosen_among or session is None:
            return self.stated
        copy = Ledger.from_json(self.stated.to_json())
        _record(copy, session.run_id, session.planned)
        return copy

    def close_session(self) -> None:
        """Closes the open session, if there is one, so that it allows no further step."""
        if self.session is not None:
            self.session.close()
            self._closed, self.session = self.session, None

    def count_left_out(self, steps: float, session=None) -> bool:
        """Counts planned steps of a session, open or closed; returns whether there was one.

        Args:
            steps: as in `Session.count_left_out`; infinite if nobody knows how many were planned.
            session: by default the last one.
        """
        last = session or self.session or self._closed
        if last is None:
            return False
        if _is_unknown(steps, last):
            self.enter_unaccounted(_UNKNOWN_PLAN)
            steps = 0
        last.count_left_out(steps)
        if last.run_id in self._ledger.entries:  # it may have come from another account
            _record(self._ledger, last.run_id, last.total)
        return True

    def absorb(self, other: "Account") -> None:
        """Takes over what another account knows, and closes the other account's open session."""
        if other is self:
            return
        other.close_session()
        self._ledger.merge(other.ledger)
        self._suspicions += other._suspicions

    def enter_unaccounted(self, reason: str) -> None:
        """Enters training that was not accounted; from now on no finite epsilon is proven.

        Args:
            reason: what was found, as a whole sentence.
        """
        logging.warning("%s No finite epsilon is proven for these weights any more.", reason)
        run_id = self._ledger.open(_unaccounted(reason))
        self._ledger.record(run_id, 1)
        self._suspicions.append(run_id)

    def declare_public(self) -> None:
        """Notes the user's word that nothing unaccounted in the weights comes from private data.

        Training that was entered as unaccounted in this process is withdrawn.
        """
        self.start = "public"
        for run_id in self._suspicions:
            self._ledger.withdraw(run_id)
        self._suspicions = []


def _record(ledger: Ledger, run_id: str, steps: int) -> None:
    """Records steps, or leaves more of them that a loaded file has told of."""
    ledger.record(run_id, max(steps, ledger.steps(run_id)))


def account_of(variables: Sequence[keras.Variable]) -> Account:
    """The account of a model's variables; accounts that meet on these variables become one.

    Args:
        variables: all weights of a model.
    """
    accounts = {id(a): a for a in (getattr(v, "_tfdp_account", None) for v in variables) if a}
    first, *others = accounts.values() or [Account()]
    for other in others:
        first.absorb(other)
    for variable in variables:
        variable._tfdp_account = first
    return first


_UNKNOWN_PLAN = (
    "A callback ended the training before its first epoch was over, whose number of steps the data do "
    "not say, so nobody knows how many steps were planned. Expected steps_per_epoch, a dataset that "
    "knows its length, or a PrivacyBudget."
)


def _is_unknown(left_out, session) -> bool:
    """Whether nobody knows how many steps count: neither the plan nor a budget says it."""
    return left_out == math.inf and not session.is_limited


def _unaccounted(reason) -> Run:
    """A run of which nothing is proven."""
    unknown = Unknown(num_examples=1, lot_size=1)
    return Run(mechanism=NoMechanism(reason=reason), sampling=unknown, steps=1)
