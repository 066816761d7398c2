"""Captures the state of an unfinished training, and restores it in another process.

Formal guarantee: the other process resumes the same run of the ledger. Steps that were begun after the
state was taken are lost and stay counted: the weights of the state are used as the weights after them,
and neither their lots (where examples have places) nor their noise are used again. See
docs/decisions/crashes.md for the proof that the run's statement covers this.
"""

import dataclasses

import keras
import numpy as np

from tfdp.account import Account
from tfdp.accounting import Ledger
from tfdp.accounting.sampling import sampling_class
from tfdp.entry import Entry
from tfdp.training.backup_folder import BackupError
from tfdp.training.describe import differences, facts_of, session_of
from tfdp.training.feed import Feed
from tfdp.training.position import Position

_VERSION = 8


def capture_state(
    model, account: Account, setup: dict, length: int | None, position: Position, notes: dict
) -> tuple[dict, dict[str, np.ndarray]]:
    """Returns the state of a training between two steps: (about, arrays), for a `BackupFolder`.

    Args:
        model: The private model.
        account: The account of its weights, with an open session.
        setup: The result of `setup_of`.
        length: Number of steps in an epoch of this `fit`. None if unknown.
        position: The position of the next step.
        notes: A JSON-safe report for later processes.
    """
    session, secrets = account.session, model.optimizer.secret_state()
    arrays = {name: keras.ops.convert_to_numpy(v) for name, v in _variables(model).items()}
    arrays |= {f"secret.{name}": np.array(v) for name, v in secrets.items()}
    about = {
        "setup": setup,
        "ledger": account.ledger.to_json(),
        "run_id": session.entry.run_id,
        "first_iteration": session.first_iteration,
        "steps": session.entry.taken,
        "declared": session.entry.declared,
        "turn": session.next_turn,
        "position": dataclasses.asdict(position),
        "length": length,
        "notes": notes,
    }
    return about, arrays


def restore_state(
    model, account: Account, feed: Feed, setup: dict, about: dict, arrays: dict, reserved: int
) -> tuple[Position, int]:
    """Puts a state into a model, and opens the session of the saved run for the `fit` to continue.

    Args:
        model: The private model, compiled and built.
        account: The account of its weights.
        feed: The data of the training.
        setup: The result of `setup_of` in this process.
        about, arrays: The state, as `BackupFolder.read` returns it.
        reserved: Number of steps of the run that may have begun.

    Returns:
        The position of the next step, and the number of lost steps.

    Raises:
        BackupError: If the state is of another model or of other data.
    """
    optimizer, ledger = model.optimizer, Ledger.from_json(about["ledger"])
    run_id, kept = about["run_id"], about["steps"]
    run = ledger.entries[run_id]
    other = [name for name, value in setup.items() if about["setup"].get(name) != value]
    if other in ([], ["examples"]):  # the places of examples matter with some sampling schemes only
        facts = facts_of(model, feed, optimizer, account.start)
        other = differences(facts, run, optimizer, model.trainable_variables) or other
    if other:
        raise BackupError(
            f"The saved state belongs to a training with other {' and '.join(other)}. Use the model, "
            "optimizer, data and version of that training, or another folder."
        )
    # This process may have continued the same run itself, after an interruption.
    taken = max(kept, reserved, ledger.taken(run_id), account.ledger.taken(run_id))
    # All planned steps count already.
    ledger.record(run_id, max(taken, ledger.steps(run_id)), taken, run.open_plan)
    lost = taken - kept
    first, turn = about["first_iteration"], about["turn"] + lost
    account.close_session()
    if account.ledger.budgets:  # of this program, perhaps larger than that of the interrupted one
        ledger.budget = None
    account.ledger.merge(ledger)
    for name, variable in _variables(model).items():
        variable.assign(arrays[name])
    optimizer.iterations.assign(first + taken)
    secrets = {n.partition(".")[2]: a for n, a in arrays.items() if n.startswith("secret.")}
    entry = Entry(account.ledger, run.with_steps(run.steps), run_id, about["declared"])
    account.plan = None  # the state includes the declared plan
    account.session = session_of(model, entry, facts, dataclasses.replace(feed, turn=turn), first)
    with model.distribute_strategy.scope():
        optimizer.resume(account.session, secrets, lost)
    return Position(**about["position"]).after_lost(lost, about["length"]), lost


def setup_of(model, feed: Feed) -> dict:
    """Facts, besides the run, that must be the same in the process that resumes."""
    lots = feed.lots
    if lots is not None and not (sampling_class(lots.sampling).whole_epochs or lots.groups > 1):
        lots = None  # its examples have no places
    return {
        "version": _VERSION,
        "optimizer": type(model.optimizer).__name__,
        "variables": [[str(v.dtype), *v.shape] for v in _variables(model).values()],
        # A machine can read only its own shard, so all shards are identified by a few rows.
        "examples": None if lots is None else [*feed.shards] or lots.fingerprint(),
    }


def _variables(model) -> dict:
    """Returns the variables of model and optimizer in a state, by name. Metrics begin anew."""
    metrics = {id(v) for v in model.metrics_variables}
    weights = [v for v in model.variables if id(v) not in metrics]
    both = {"model": weights, "optimizer": model.optimizer.variables}
    return {f"{name}.{i}": v for name, found in both.items() for i, v in enumerate(found)}
