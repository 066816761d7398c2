"""Ties the ledger to the weights: what was spent on weights stays with them in all later training.

An `Account` is attached to the variables of a model, not to an optimizer or a model object. Whatever
is done with `compile`, `make_private`, `load_model` or layers that several models share, the
variables keep their account, and with it the ledger and its budget.

Weights can also move as plain numbers, which an account does not see. So the account keeps digests of
the weights as they were when they were last accounted. Weights that differ without private steps
between are either values that this process has trained privately and recognizes (then the ledger of
those values is merged), or the result of training that was not accounted: such training is entered into
the ledger, and no finite epsilon is proven.

Numbers that a user gives to `set_weights` or loads from a file without a ledger cannot be told from
fresh weights; the first assumption of every statement is about them.
"""

import hashlib
import math
import os
from collections.abc import Callable, Sequence

import keras
import numpy as np
from absl import logging

from tfdp._compat.files import saved_under
from tfdp._compat.keras import moving_averages
from tfdp.accounting import Ledger, Run
from tfdp.accounting.mechanisms.none import NoMechanism
from tfdp.accounting.sampling import Unknown

# Name of the ledger among an optimizer's variables in a file.
LEDGER_KEY = "tfdp_ledger"

# Digests of variables that were trained privately in this process, and their ledger at that time.
_TRAINED_HERE: dict[bytes, Ledger] = {}


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
        # Id of the open run and its number of steps at the last look.
        self._looked_at = None
        # Ids of the private runs that the ledger held at the last look.
        self._runs: set[str] = set()
        # Digests that stay in `_TRAINED_HERE` only until the next call of `remember`.
        self._latest: list[bytes] = []
        # Whether files count all planned steps of the open run, because results choose among them.
        self.chosen_among = False
        # The session whose training a callback ends, and how many planned steps that leaves out.
        self.chosen_end: Callable[[], tuple] = lambda: (None, 0)
        # What copies of the latest weights bring with them.
        self._snapshot: Ledger | None = None
        # Ids of the runs that stand for changes that were not accounted.
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
            copy.record(session.run_id, session.counted_with(left_out))
        return copy

    def announce(self) -> None:
        """Lets copies of the present weights bring what is stated of them, after a decision."""
        if self._snapshot is not None:
            self._snapshot.merge(self.stated)

    @property
    def ledger_of_files(self) -> Ledger:
        """The ledger that a file with the present weights holds."""
        session = self.session
        if not self.chosen_among or session is None:
            return self.stated
        copy = Ledger.from_json(self.stated.to_json())
        copy.record(session.run_id, session.planned)
        return copy

    def bring(self, ledger: Ledger) -> None:
        """Merges a ledger that comes with the weights, from the file that they were loaded from."""
        self._ledger.merge(ledger)
        self._runs = self._private_runs()

    def close_session(self) -> None:
        """Closes the open session, if there is one, so that it allows no further step."""
        if self.session is not None:
            self.session.close()
            self._closed, self.session = self.session, None

    def count_left_out(
        self, steps: float, variables: Sequence[keras.Variable], session=None
    ) -> bool:
        """Counts planned steps of a session, open or closed; returns whether there was one.

        Args:
            steps: as in `Session.count_left_out`; infinite if nobody knows how many were planned.
            variables: all weights of the model, which belong to what is counted then.
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
            self._ledger.record(last.run_id, last.total)
        self.remember(variables, trained=last.variables if last.spent else ())
        return True

    def absorb(self, other: "Account") -> None:
        """Takes over what another account knows, and closes the other account's open session."""
        if other is self:
            return
        other.close_session()
        self._ledger.merge(other.ledger)
        self._runs |= other._private_runs()
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

    def look(self, variables: Sequence[keras.Variable], for_good: bool = True) -> None:
        """Notes the values of the weights, and examines them if no step was taken since the last look.

        After private steps, changed values are the steps' result. Without a step in between, every
        change needs another explanation (`examine`).

        Args:
            variables: all weights of the model.
            for_good: as in `remember`.
        """
        taken = self._taken()
        if taken == self._looked_at:
            self.examine(variables)
            if for_good:
                self._latest = []  # the next `remember` then leaves these digests in place
        else:
            self.remember(variables, for_good)

    def _private_runs(self) -> set[str]:
        return {i for i, run in self._ledger.entries.items() if hasattr(run, "noise_multiplier")}

    def _taken(self) -> tuple[str, int] | None:
        return None if self.session is None else (self.session.run_id, self.session.spent)

    def examine(self, variables: Sequence[keras.Variable]) -> None:
        """Looks for changes of the weights that were not accounted, and enters them.

        Args:
            variables: all weights of the model.
        """
        # A ledger that the user has merged since the last look explains weights that the user has
        # put in.
        explained = self._private_runs() - self._runs
        self._looked_at = self._taken()
        changed = []
        for variable, digest in _digests(variables):
            known = _TRAINED_HERE.get(digest)
            if known is not None:
                # What this account itself states may be more than is spent until training has ended.
                if known is not self._snapshot:
                    self._ledger.merge(known)
            elif getattr(variable, "_tfdp_seen", None) not in (None, digest):
                changed.append(variable.path)
            variable._tfdp_seen = digest
        self._runs = self._private_runs()
        if changed and not explained:
            self.enter_unaccounted(
                f"The weights {_some(changed)} were changed since they were last accounted, and not by "
                "private training. If what changed them did not look at the private data, say so: "
                "make_private(model, start='public')."
            )

    def declare_public(self, variables: Sequence[keras.Variable]) -> None:
        """Notes the user's word that nothing unaccounted in the weights comes from private data.

        The word covers the weights as they are now. Training that was entered as unaccounted in this
        process is withdrawn; later changes are not covered.

        Args:
            variables: all weights of the model.
        """
        self.start = "public"
        for run_id in self._suspicions:
            self._ledger.withdraw(run_id)
        self._suspicions = []
        self.remember(variables)

    def remember(
        self,
        variables: Sequence[keras.Variable],
        for_good: bool = True,
        trained: Sequence[keras.Variable] = (),
    ) -> None:
        """Notes the present values of the weights as accounted for.

        Values that private steps have produced are published to the whole process: any account that
        meets them again merges this ledger.

        Args:
            variables: all weights of the model.
            for_good: whether the values stay published; if not, the next call of `remember`
                withdraws them.
            trained: those among the variables whose values private steps have produced in another
                process; those of the open session are known.
        """
        self._runs = self._private_runs()
        for digest in self._latest:
            _TRAINED_HERE.pop(digest, None)
        self._latest = []
        self._looked_at = self._taken()
        session = self.session
        moved = list(session.variables) if session is not None and session.spent else []
        trained = {id(variable) for variable in (*moved, *trained)}
        # Averages of released weights are post-processing, and belong to the same ledger.
        averages = _averages(session) if moved else []
        trained |= {id(variable) for variable in averages}
        snapshot = None
        for variable, digest in _digests([*variables, *averages]):
            variable._tfdp_seen = digest
            # Values that no step has changed, or constant ones, also occur in untrained models, so
            # they must not bring a ledger with them.
            if id(variable) not in trained or _is_constant(variable):
                continue
            if digest == getattr(variable, "_tfdp_began", None):
                continue
            if snapshot is None:
                self._snapshot = snapshot = Ledger()
                snapshot.merge(self.stated)
            if digest not in _TRAINED_HERE and not for_good:
                self._latest.append(digest)
            _TRAINED_HERE[digest] = snapshot

    def begin(self, variables: Sequence[keras.Variable]) -> None:
        """Notes the values of the weights before a session's first step.

        Args:
            variables: all weights of the model.
        """
        for variable in variables:
            variable._tfdp_began = getattr(variable, "_tfdp_seen", None)
        self._runs = self._private_runs()
        self._looked_at = self._taken()


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


def ledger_in_file(path: str | os.PathLike) -> Ledger | None:
    """The ledger in a file of weights or of a whole model, or None if the file holds none.

    Keras reads an optimizer's part of a file only if the model has an optimizer, so `load_weights`
    before `compile` would otherwise lose the ledger.

    Args:
        path: what `load_weights` was given: `.weights.h5`, `.keras`, or the `.weights.json` of shards;
            or an open file.

    Raises:
        LedgerError: the file holds a ledger that cannot be read, or two that contradict each other.
    """
    found = Ledger()
    for text in saved_under(path, LEDGER_KEY):
        found.merge(Ledger.from_json(bytes(text).decode()))
    return found if found.entries or found.budgets else None


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


def _digests(variables):
    """Yields (variable, digest of its values) for all variables of floating-point numbers."""
    for variable in variables:
        if not keras.backend.is_float_dtype(variable.dtype):
            continue  # seeds and counters, which change outside of training too
        values = np.ascontiguousarray(_values(variable))
        digest = hashlib.sha256(values.reshape(-1).view(np.uint8).data)  # half the time of BLAKE2b
        digest.update(f"{variable.dtype} {values.shape}".encode())
        yield variable, digest.digest()[:16]


def _values(variable):
    return np.asarray(keras.ops.convert_to_numpy(variable))


def _is_constant(variable) -> bool:
    values = _values(variable).ravel()
    if values.size < 2:
        return bool(np.all((values == 0) | (values == 1)))
    return bool(np.all(values == values[0]))


def _averages(session) -> list:
    """The moving averages of the weights that the session's optimizer keeps."""
    return moving_averages(session.optimizer)


def digests_of(variables: Sequence[keras.Variable]) -> np.ndarray:
    """The digests of variables, for a file: uint8 [variables, 16]; zeros where there is no digest."""
    known = {id(v): np.frombuffer(d, np.uint8) for v, d in _digests(variables)}
    return np.array([known.get(id(v), np.zeros(16, np.uint8)) for v in variables], np.uint8)


def expect_digests(variables: Sequence[keras.Variable], digests: np.ndarray) -> None:
    """Sets the values that variables are expected to have, to detect training since they were saved.

    Args:
        variables: in the order of `digests`.
        digests: as from `digests_of`.
    """
    for variable, digest in zip(variables, np.asarray(digests, np.uint8), strict=True):
        if digest.any():
            variable._tfdp_seen = digest.tobytes()


def _some(paths) -> str:
    shown = ", ".join(f"'{path}'" for path in paths[:3])
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3} more"
