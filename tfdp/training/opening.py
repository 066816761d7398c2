"""Describes a training before its first step, and opens the ledger entry that it is accounted under."""

import warnings

from tfdp.account import Account, check_counted
from tfdp.accounting import Run
from tfdp.layers.lot_statistics import uses_batch_statistics
from tfdp.layers.public import public_layers
from tfdp.session import OPEN_ENDED, Plan, Session


def open_session(model, account: Account, plan: Plan) -> Session | None:
    """Opens a session for steps, or returns the open one if they belong to it.

    Args:
        model: a private model that is compiled and built.
        account: the account of its weights.
        plan: how the steps draw their examples.

    Returns:
        The session, which is `account.session`; None for a model without trainable weights.

    Raises:
        ValueError: the optimizer has taken steps that the ledger does not contain, or the arguments
            of the optimizer do not fit the plan.
    """
    optimizer, variables = model.optimizer, model.trainable_variables
    if not variables:
        warnings.warn("The model does not have any trainable weights.", stacklevel=3)
        account.close_session()
        return None
    if not optimizer.built:
        optimizer.build(variables)
    check_counted(optimizer, account.ledger)
    fields = planned_fields(model, plan, optimizer, account.start)
    session = account.session
    if (
        session is not None
        and session.continues_with(fields, plan, optimizer, variables)
        and optimizer.continues(session)
    ):
        _extend(session, plan, fields)
    else:
        with model.distribute_strategy.scope():  # its counter has a copy for each replica
            _enter(account, plan, fields, optimizer, variables)
    account.session.limit_steps()
    return account.session


def _extend(session, plan, fields):
    """Describes the further steps, if the session's run does not describe them yet."""
    done, optimizer = session.taken, session.optimizer
    steps = plan.steps
    if steps is None:
        steps = 1 if done < session.run.steps else _open_ended(optimizer, done)
    if done + steps <= session.run.steps:
        return
    tables = optimizer.tables(session.variables, session.first_iteration, done + steps, session.run)
    session.extend(Run(steps=done + steps, **tables, **fields))


def _enter(account, plan, fields, optimizer, variables):
    resumed, account.waiting = account.waiting, None  # a run that waits is resumed once
    if resumed is None:
        first, done, known = int(optimizer.iterations.numpy()), 0, None
    else:
        resumed.check_place(plan)
        first, done, known = resumed.first_iteration, resumed.steps, resumed.run
    if plan.start and plan.start != done % plan.lots.steps_per_epoch:
        raise RuntimeError(
            "A callback changed the weights of a training that goes on in the middle of an epoch, "
            "and a new run begins with an epoch. Expected the weights of the saved state. Leave "
            "out the callback."
        )
    steps = done + (_open_ended(optimizer, done) if plan.steps is None else plan.steps)
    run = Run(steps=steps, **optimizer.tables(variables, first, steps, known), **fields)
    account.close_session()
    account.session = Session(
        account.ledger,
        run,
        plan,
        fields,
        optimizer,
        variables,
        first,
        None if resumed is None else (resumed.run_id, resumed.steps),
    )
    optimizer.begin(account.session, resumed is not None)


def _open_ended(optimizer, done):
    described = optimizer.described_steps
    return OPEN_ENDED if described is None else max(1, min(OPEN_ENDED, described - done))


def planned_fields(model, plan: Plan, optimizer, start: str) -> dict:
    """Returns the fields of `accounting.Run`, except the number of steps and tables over steps.

    Args:
        model: a built private model.
        plan: how the steps draw their examples.
        optimizer: the private optimizer that takes the steps.
        start: as in `accounting.Run`.

    Raises:
        ValueError: microbatches do not divide the lots, or physical batches cut microbatches.
    """
    microbatch_size = optimizer.microbatch_size(plan.lot_size)
    if plan.physical_batch_size is not None and plan.physical_batch_size % microbatch_size:
        raise ValueError(
            "Invalid value received for argument `physical_batch_size`. Expected a multiple of "
            f"the microbatch size {microbatch_size}. Received: {plan.physical_batch_size}"
        )
    fields = dict(
        num_examples=plan.num_examples,
        lot_size=plan.lot_size,
        sampling=plan.sampling,
        microbatch_size=microbatch_size,
        start=start,
        batch_statistics=uses_batch_statistics(model),
        public_examples=sum(layer.count for layer in public_layers(model)),
        **({"groups": plan.groups} if plan.groups > 1 else {}),
        **({"nominal": True} if plan.nominal else {}),
        **optimizer.run_fields(model.trainable_variables),
    )
    fields["insecure_seed"] |= plan.insecure_seed
    return fields


def planned_run(model, plan: Plan, optimizer, start: str) -> Run:
    """Returns the run that a model's training of `plan.steps` steps from the first one will be.

    Args:
        model, plan, optimizer, start: as in `planned_fields`.
    """
    tables = optimizer.tables(model.trainable_variables, 0, plan.steps)
    return Run(steps=plan.steps, **tables, **planned_fields(model, plan, optimizer, start))
