"""Describes a training before its first step, and opens the ledger entry that it is accounted under."""

from tfdp.account import Account, check_counted
from tfdp.accounting import Contribution, Run
from tfdp.layers.lot_statistics import uses_batch_statistics
from tfdp.layers.public import public_layers
from tfdp.plan import Facts, Plan
from tfdp.session import OPEN_ENDED, Session


def open_session(model, account: Account, plan: Plan) -> Session:
    """Opens a session for steps, or returns the open one if they belong to it.

    Args:
        model: a private model that is compiled and built.
        account: the account of its weights.
        plan: how the steps draw their examples.

    Returns:
        The session, which is `account.session`.

    Raises:
        ValueError: the model has no trainable weights, the optimizer has taken steps that the ledger
            does not contain, or the arguments of the optimizer do not fit the plan.
    """
    optimizer, variables = model.optimizer, model.trainable_variables
    if not variables:
        raise ValueError(
            f"Model '{model.name}' has no trainable weights. Set `trainable = True` for some layer; "
            "model.evaluate computes the metrics of a frozen model."
        )
    if not optimizer.built:
        optimizer.build(variables)
    check_counted(optimizer, account.ledger)
    facts = planned_facts(model, plan, optimizer, account.start)
    session = account.session
    if (
        session is not None
        and session.continues_with(facts, plan, optimizer, variables)
        and optimizer.continues(session)
    ):
        _extend(session, plan, facts)
    else:
        with model.distribute_strategy.scope():  # its counter has a copy for each replica
            _enter(account, plan, facts, optimizer, variables)
    account.session.limit_steps()
    return account.session


def _extend(session, plan, facts):
    """Describes the further steps, if the session's run does not describe them yet."""
    done, optimizer = session.taken, session.optimizer
    steps = plan.steps
    if steps is None:
        steps = 1 if done < session.run.steps else _open_ended(optimizer, done)
    if done + steps <= session.run.steps:
        return
    tables = optimizer.tables(session.variables, session.first_iteration, done + steps, session.run)
    session.extend(facts.run(done + steps, tables))


def _enter(account, plan, facts, optimizer, variables):
    if plan.start:
        raise RuntimeError(
            "A callback changed the weights of a training that goes on in the middle of an epoch, "
            "and a new run begins with an epoch. Expected the weights of the saved state. Leave "
            "out the callback."
        )
    first = int(optimizer.iterations.numpy())
    steps = _open_ended(optimizer, 0) if plan.steps is None else plan.steps
    run = facts.run(steps, optimizer.tables(variables, first, steps))
    account.close_session()
    account.session = Session(account.ledger, run, plan, optimizer, variables, first)
    optimizer.begin(account.session)


def _open_ended(optimizer, done):
    described = optimizer.described_steps
    return OPEN_ENDED if described is None else max(1, min(OPEN_ENDED, described - done))


def planned_facts(model, plan: Plan, optimizer, start: str) -> Facts:
    """Returns what is accounted of a training, except its number of steps and tables over steps.

    Args:
        model: a built private model.
        plan: how the steps draw their examples.
        optimizer: the private optimizer that takes the steps.
        start: as in `accounting.Run`.

    Raises:
        ValueError: microbatches do not divide the lots, or physical batches cut microbatches.
    """
    microbatch_size = optimizer.microbatch_size(plan.sampling.lot_size)
    drawn = 1 if plan.lots is None else plan.lots.microbatch_size
    if plan.lots is not None and drawn != microbatch_size:
        raise ValueError(
            f"Expected lots of whole microbatches of {microbatch_size} examples, since what sampling "
            f"amplifies is what was drawn. Received lots with microbatch_size={drawn}. Pass "
            f"microbatch_size={microbatch_size} to make_lots."
        )
    if plan.physical_batch_size is not None and plan.physical_batch_size % microbatch_size:
        raise ValueError(
            "Invalid value received for argument `physical_batch_size`. Expected a multiple of "
            f"the microbatch size {microbatch_size}. Received: {plan.physical_batch_size}"
        )
    variables = model.trainable_variables
    return Facts(
        mechanism=optimizer.mechanism,
        fields=optimizer.mechanism_fields(variables),
        sampling=plan.sampling,
        contribution=Contribution(
            microbatch_size=microbatch_size,
            batch_statistics=uses_batch_statistics(model),
            public_examples=sum(layer.count for layer in public_layers(model)),
            **optimizer.contribution_fields(variables),
        ),
        start=start,
        insecure_seed=optimizer.seeded or plan.insecure_seed,
    )


def planned_run(model, plan: Plan, optimizer, start: str) -> Run:
    """Returns the run that a model's training of `plan.steps` steps from the first one will be.

    Args:
        model, plan, optimizer, start: as in `planned_facts`.
    """
    tables = optimizer.tables(model.trainable_variables, 0, plan.steps)
    return planned_facts(model, plan, optimizer, start).run(plan.steps, tables)
