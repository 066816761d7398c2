"""Opens the ledger entry that further steps of a model are accounted under."""

import warnings

from tfdp.account import Account, check_counted
from tfdp.accounting import Run
from tfdp.session import OPEN_ENDED, Plan, Session
from tfdp.training.planning import planned_fields


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
