"""The state of an unfinished training: taken from a model, and given to the model of another process.

Formal guarantee: the other process goes on with the same run of the ledger. Steps that were begun after
the state was taken are lost and stay counted: the weights of the state go on as the weights after them,
and neither their lots (where examples have places) nor their noise are used again. See
docs/decisions/crashes.md for the proof that the run's statement covers this.
"""

import dataclasses

import keras
import numpy as np

from tfdp.accounting import Ledger
from tfdp.accounting.sampling import sampling_class
from tfdp.optimizers.accounted import SavedRun
from tfdp.session import Session
from tfdp.training.backup_folder import BackupError
from tfdp.training.feeding import Place

_VERSION = 4


def take_state(
    model,
    session: Session,
    place: Place,
    length: int | None,
    fingerprint: str | None,
    told: dict,
) -> tuple[dict, dict[str, np.ndarray]]:
    """Returns the state of a private model after its last step: (about, arrays), for a `BackupFolder`.

    Args:
        model: a private model in training, between two steps.
        session: its open session.
        place: the place of the next step.
        length: number of steps of an epoch of this fit, or None.
        fingerprint: that of the examples (`fingerprint_of`).
        told: what a later process tells of this one; JSON-safe.
    """
    optimizer = model.optimizer
    arrays = {f"model.{i}": copy_of(v) for i, v in enumerate(state_variables(model))}
    arrays |= {f"optimizer.{i}": copy_of(v) for i, v in enumerate(optimizer.variables)}
    arrays |= {
        f"secret.{name}": np.array(value) for name, value in optimizer.secret_state().items()
    }
    about = {
        "version": _VERSION,
        "ledger": model._account.ledger.to_json(),
        "run_id": session.run_id,
        "first_iteration": session.first_iteration,
        "steps": session.taken,
        "turn": session.next_turn,
        "epoch": place.epoch,
        "step": place.step,
        "taken": place.taken,
        "order": None if place.order is None else place.order.hex(),
        "fingerprint": fingerprint,
        "shapes": shapes_of(model),
        "length": length,
        "mechanism": optimizer.mechanism.name,
        "rule": _rule_of(optimizer),
        "told": told,
    }
    return about, arrays


def fingerprint_of(feed) -> str | None:
    """Fingerprint of the examples of a feed; None if they have no places."""
    lots = feed.plan.lots
    if lots is None or not (sampling_class(lots.sampling).whole_epochs or lots.groups > 1):
        return None
    return lots.fingerprint()


def give_state(
    model, feed, about: dict, arrays: dict, reserved: int, fingerprint: str | None
) -> Place:
    """Puts a state into a model, so that its next `fit` goes on with the saved run.

    Args:
        model: a compiled private model that is built.
        feed: what the next fit draws from.
        about, arrays: the state.
        reserved: number of steps of the run that may have been begun.
        fingerprint: that of the examples (`fingerprint_of`).

    Returns:
        The place of the next step.

    Raises:
        BackupError: the state is of another model or of other data.
    """
    optimizer, account = model.optimizer, model._account
    if about.get("version") != _VERSION:
        raise BackupError(
            f"Expected a training state of version {_VERSION}. Found {about.get('version')!r}. Go on "
            "with the version of tfdp that wrote it."
        )
    if about["mechanism"] != optimizer.mechanism.name:
        raise BackupError(
            f"The backup is of another mechanism. Expected an optimizer of {about['mechanism']!r}. "
            f"Found one of {optimizer.mechanism.name!r}. Use that of the training, or another folder."
        )
    if about["shapes"] != shapes_of(model):
        raise BackupError(
            "The backup is of another model or optimizer. Expected variables of the shapes "
            f"{differing(about['shapes'], shapes_of(model))}. Found "
            f"{differing(shapes_of(model), about['shapes'])}. Use the model of that "
            "training, or another folder."
        )
    if about["rule"] != _rule_of(optimizer):
        raise BackupError(
            f"The backup is of another optimizer. Expected {about['rule']}. Found "
            f"{_rule_of(optimizer)}. Use that of the training, or another folder."
        )
    if about["fingerprint"] != fingerprint:
        raise BackupError(
            "The backup is of other data, or of lots that are drawn otherwise. Expected the same "
            "examples in the same order with the same sampling, since every example has its place. "
            "Found others. Use the data and the sampling of that training, or another folder."
        )
    ledger = Ledger.from_json(about["ledger"])
    run_id, kept = about["run_id"], about["steps"]
    if reserved < kept:
        raise BackupError(
            f"Expected at least the {kept} steps of the state to be reserved. Found {reserved}: the "
            "two files of the folder are not of the same moment. Restore both."
        )
    # This process may have gone on with the same run itself, after an interrupt.
    taken = max(kept, reserved, ledger.taken(run_id), account.ledger.taken(run_id))
    # Planned steps may count beyond those taken.
    ledger.record(run_id, max(taken, ledger.steps(run_id)), taken)
    lost = taken - kept
    run = ledger.entries[run_id]
    saved = SavedRun(
        run_id, taken, about["first_iteration"], run, about["turn"] + lost, fingerprint
    )
    account.close_session()
    account.ledger.merge(ledger)
    for i, variable in enumerate(state_variables(model)):
        variable.assign(arrays[f"model.{i}"])
    for i, variable in enumerate(optimizer.variables):
        variable.assign(arrays[f"optimizer.{i}"])
    optimizer.iterations.assign(about["first_iteration"] + taken)
    secrets = {n.partition(".")[2]: a for n, a in arrays.items() if n.startswith("secret.")}
    optimizer.take_up_secrets(secrets, saved, lost, model.trainable_variables)
    optimizer.go_on_with(saved)
    order = None if about["order"] is None else bytes.fromhex(about["order"])
    place = Place(about["epoch"], about["step"], about["taken"], order)
    return _later(place, lost, about["length"])


def _rule_of(optimizer) -> str:
    """Name of Keras' update rule, whose slots a state holds."""
    rule = getattr(optimizer, "update_rule", None) or optimizer
    kinds = (kind for kind in type(rule).__mro__ if kind.__module__.startswith("keras."))
    return next(kinds).__name__


def _later(place: Place, steps: int, length: int | None) -> Place:
    """The place so many steps later."""
    place, step = dataclasses.replace(place, taken=place.taken + steps), place.step + steps
    if length is None:
        return dataclasses.replace(place, step=step)
    return dataclasses.replace(place, epoch=place.epoch + step // length, step=step % length)


def copy_of(variable) -> np.ndarray:
    """The value, in memory that later steps do not write."""
    return keras.ops.convert_to_numpy(variable).copy()


def state_variables(model) -> list:
    """Weights and random states; metrics begin anew."""
    metrics = {id(v) for v in model.metrics_variables}
    return [v for v in model.variables if id(v) not in metrics]


def shapes_of(model) -> list:
    """The types and shapes of everything that a state holds of a model and its optimizer."""
    both = (*state_variables(model), *model.optimizer.variables)
    return [[str(v.dtype), *v.shape] for v in both]


def differing(shapes, others) -> list:
    """The first of the shapes that others do not have in the same place."""
    found = [a for a, b in zip(shapes, [*others, *([None] * len(shapes))], strict=False) if a != b]
    return found[:3]
