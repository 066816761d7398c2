"""The state of an unfinished training: taken from a model, and given to the model of another process.

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
from tfdp.session import Session
from tfdp.training.backup_folder import BackupError
from tfdp.training.feeding import Feed, Place
from tfdp.training.opening import planned_facts

_VERSION = 7


def take_state(
    model, account: Account, setup: dict, length: int | None, place: Place, notes: dict
) -> tuple[dict, dict[str, np.ndarray]]:
    """Returns the state of a private model after its last step: (about, arrays), for a `BackupFolder`.

    Args:
        model: a private model in training, between two steps.
        account: the account of its weights, with a session.
        setup: from `setup_of`.
        length: number of steps of an epoch of this fit, or None.
        place: the place of the next step.
        notes: what a later process tells of this one; JSON-safe.
    """
    session, secrets = account.session, model.optimizer.secret_state()
    arrays = arrays_of(model) | {f"secret.{name}": np.array(v) for name, v in secrets.items()}
    about = {
        "setup": setup,
        "ledger": account.ledger.to_json(),
        "run_id": session.run_id,
        "first_iteration": session.first_iteration,
        "steps": session.taken,
        "turn": session.next_turn,
        "place": dataclasses.asdict(place),
        "length": length,
        "notes": notes,
    }
    return about, arrays


def give_state(
    model, account: Account, feed: Feed, setup: dict, about: dict, arrays: dict, reserved: int
) -> tuple[Place, int]:
    """Puts a state into a model and opens the session of the saved run, which the fit continues.

    Args:
        model: a compiled private model that is built.
        account: the account of its weights.
        feed: what the fit draws from.
        setup: from `setup_of`.
        about, arrays: the state.
        reserved: number of steps of the run that may have been begun.

    Returns:
        The place of the next step, and the number of lost steps.

    Raises:
        BackupError: the state is of another model or of other data.
    """
    optimizer, ledger = model.optimizer, Ledger.from_json(about["ledger"])
    run_id, kept = about["run_id"], about["steps"]
    run = ledger.entries[run_id]
    other = [name for name, value in setup.items() if about["setup"].get(name) != value]
    if other in ([], ["examples"]):  # whose places matter with some samplings only
        facts = planned_facts(model, feed.plan, optimizer, account.start)
        other = facts.differences(run) or other
    if other:
        raise BackupError(
            f"The state is of a training with other {' and '.join(other)}. Expected the model, "
            "optimizer, data and version of that training, or another folder."
        )
    # This process may have continued the same run itself, after an interruption.
    taken = max(kept, reserved, ledger.taken(run_id), account.ledger.taken(run_id))
    # Planned steps may count beyond those taken.
    ledger.record(run_id, max(taken, ledger.steps(run_id)), taken)
    run, lost = ledger.entries[run_id], taken - kept
    first, turn = about["first_iteration"], about["turn"] + lost
    account.close_session()
    account.ledger.merge(ledger)
    assign_arrays(model, arrays)
    optimizer.iterations.assign(first + taken)
    secrets = {n.partition(".")[2]: a for n, a in arrays.items() if n.startswith("secret.")}
    plan, variables = dataclasses.replace(feed.plan, turn=turn), model.trainable_variables
    with model.distribute_strategy.scope():  # its counter has a copy for each replica
        account.session = Session(
            account.ledger, run, plan, optimizer, variables, first, (run_id, taken)
        )
    optimizer.resume(account.session, secrets, lost)
    return _later(Place(**about["place"]), lost, about["length"]), lost


def setup_of(model, feed: Feed) -> dict:
    """What has to be the same in the process that resumes; runs are compared when they are opened.

    Args:
        model: a compiled private model that is built.
        feed: what the next fit draws from.
    """
    lots = feed.plan.lots
    places = lots is not None and (sampling_class(lots.sampling).whole_epochs or lots.groups > 1)
    return {
        "version": _VERSION,
        "optimizer": type(model.optimizer).__name__,
        "variables": shapes_of(model),
        "examples": lots.fingerprint() if places else None,
    }


def _later(place: Place, steps: int, length: int | None) -> Place:
    """The place so many steps later."""
    place = place.later(steps)
    if length is None:
        return place
    epochs, step = divmod(place.step, length)
    return dataclasses.replace(place, epoch=place.epoch + epochs, step=step)


def arrays_of(model) -> dict[str, np.ndarray]:
    """The values of everything that a state holds of a model and its optimizer."""
    return {name: keras.ops.convert_to_numpy(v) for name, v in _variables(model).items()}


def assign_arrays(model, arrays: dict) -> None:
    """Gives a model and its optimizer the values of `arrays_of`."""
    for name, variable in _variables(model).items():
        variable.assign(arrays[name])


def shapes_of(model) -> list:
    """The types and shapes of everything that a state holds of a model and its optimizer."""
    return [[str(v.dtype), *v.shape] for v in _variables(model).values()]


def _variables(model) -> dict:
    """Weights, random states and slots by name; metrics begin anew."""
    metrics = {id(v) for v in model.metrics_variables}
    weights = [v for v in model.variables if id(v) not in metrics]
    both = {"model": weights, "optimizer": model.optimizer.variables}
    return {f"{name}.{i}": v for name, found in both.items() for i, v in enumerate(found)}
