"""Describes a training as a run before its first step, and opens the ledger entry of its steps."""

import dataclasses

from tfdp._compat.replicas import number_of_machines
from tfdp.account import Account, check_counted
from tfdp.accounting import Contribution, Run
from tfdp.data.words import derived
from tfdp.entry import Entry
from tfdp.layers.lot_statistics import uses_batch_statistics
from tfdp.layers.public import public_layers
from tfdp.session import Session
from tfdp.training.feed import Feed

# Number of steps that a run without a planned end (train_on_batch) describes at a time.
OPEN_ENDED = 10_000


def facts_of(model, feed: Feed, optimizer, start: str) -> Run:
    """Returns the accounted settings of a training, as a run without steps and their tables.

    Args:
        model: A built private model.
        feed: The data of the training, and how the steps draw from them.
        optimizer: The private optimizer that takes the steps. It need not be that of the model.
        start: The start of the weights, as in `accounting.Run`.
    """
    lots, microbatch_size = feed.lots, optimizer.microbatch_size(feed.sampling.lot_size)
    if lots is not None and lots.microbatch_size != microbatch_size:
        raise ValueError(
            f"The lots have microbatch_size={lots.microbatch_size}, but the optimizer clips "
            f"microbatches of {microbatch_size} examples, which must be drawn as a whole. Pass "
            f"microbatch_size={microbatch_size} to make_lots."
        )
    variables = model.trainable_variables
    contribution = Contribution(
        microbatch_size=microbatch_size,
        views=1 if lots is None else lots.views,
        examples_per_person=None if lots is None else lots.examples_per_person,
        batch_statistics=uses_batch_statistics(model),
        public_examples=sum(layer.count for layer in public_layers(model)),
        **optimizer.contribution_fields(variables),
    )
    rows, averaged = feed.physical_batch_size, contribution.averaged_rows
    if rows is not None and rows % averaged:
        raise ValueError(
            "Invalid value received for argument `physical_batch_size`. Expected a multiple of "
            f"{averaged}, the rows whose gradients are averaged (microbatch size {microbatch_size}, "
            f"views {contribution.views}). Received: {rows}"
        )
    return Run(
        mechanism=optimizer.mechanism(**optimizer.mechanism_fields(variables)),
        sampling=feed.sampling,
        steps=0,
        contribution=contribution,
        start=start,
        insecure_seed=optimizer.seeded or feed.insecure_seed,
        machines=(machines := number_of_machines(model.distribute_strategy)),
        shards=machines if lots is not None and lots.sharded else 1,
    )


def with_tables(facts: Run, optimizer, variables, first: int, steps: int, known=None) -> Run:
    """Returns the run of `steps` steps with these facts. Other arguments are as for `tables`."""
    tables = optimizer.tables(variables, first, steps, known)
    mechanism = dataclasses.replace(facts.mechanism, **tables)
    return dataclasses.replace(facts, mechanism=mechanism, steps=steps)


def differences(facts: Run, run: Run, optimizer, variables) -> list[str]:
    """Names of the settings in which a run differs from facts, apart from its steps and tables."""
    if type(run.mechanism) is type(facts.mechanism):
        tables = {n: getattr(facts.mechanism, n) for n in optimizer.tables(variables, 0, 0)}
        run = dataclasses.replace(run, mechanism=dataclasses.replace(run.mechanism, **tables))
    return _differing_fields(facts, run.with_steps(0))


def _differing_fields(one, other) -> list[str]:
    found = []
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if a != b:
            nested = dataclasses.is_dataclass(a) and type(a) is type(b)
            found += _differing_fields(a, b) if nested else [field.name]
    return found


def planned_run(model, feed: Feed, steps: int, optimizer, start: str) -> Run:
    """Returns the run of a whole training of `steps` steps. Other arguments are as for `facts_of`."""
    facts = facts_of(model, feed, optimizer, start)
    return with_tables(facts, optimizer, model.trainable_variables, 0, steps)


def open_session(model, account: Account, feed: Feed, steps: int | None) -> Session:
    """Opens an entry for further steps, or extends the open one if they belong to it.

    Args:
        model: A private model that is compiled and built.
        account: The account of its weights, which gets the session.
        feed: The data of the training, and how the steps draw from them.
        steps: Number of further steps to describe. None if unknown.
    """
    optimizer, variables = model.optimizer, model.trainable_variables
    if not variables:
        raise ValueError(
            f"Model '{model.name}' has no trainable weights. Set `trainable = True` for some layer, or "
            "compute the metrics of a frozen model with model.evaluate."
        )
    if not optimizer.built:
        with model.distribute_strategy.scope():
            optimizer.build(variables)
    check_counted(optimizer, account.ledger)
    facts, session = facts_of(model, feed, optimizer, account.start), account.session
    if session is not None and continues(session, facts, feed, optimizer, variables):
        describe_more(session, steps)
        return session
    if feed.start:
        raise RuntimeError(
            "A callback changed the weights of a training that was resumed in the middle of an epoch, "
            "but the new run for these weights must begin with an epoch. Remove the callback, so that "
            "the weights stay those of the saved state."
        )
    first = int(optimizer.iterations.numpy())
    steps = _open_ended(optimizer, 0) if steps is None else steps
    run = with_tables(facts, optimizer, variables, first, steps)
    account.close_session()
    # All machines give the run one id, so that it counts once where their ledgers meet.
    run_id = None if feed.key is None else derived(feed.key, "run").hex()
    entry = Entry(account.ledger, run, run_id)
    account.session = session_of(model, entry, facts, feed, first)
    with model.distribute_strategy.scope():  # its variables have a copy for each replica, too
        optimizer.begin(account.session)
    return account.session


def session_of(model, entry: Entry, facts: Run, feed: Feed, first_iteration: int) -> Session:
    """Returns a session for the steps of an entry. `Session` describes the arguments."""
    with model.distribute_strategy.scope():  # its counter has a copy for each replica
        return Session(
            entry,
            model.optimizer,
            model.trainable_variables,
            facts,
            first_iteration,
            physical_batch_size=feed.physical_batch_size,
            lots=feed.lots,
            turn=feed.turn,
            key=feed.key,
        )


def continues(session: Session, facts: Run, feed: Feed, optimizer, variables) -> bool:
    """Whether further steps belong to the entry of a session.

    Random lots may be new. Lots of whole epochs must draw like the previous lots (`Lots.draws_as`) and
    begin where the last training stopped, so that an example is once in an epoch. Arrays get new `Lots`
    in each `fit`, so `fit(x, y, shuffle=False)` always begins a new entry. Where groups take turns, the
    `Lots` must draw like the previous ones, and the turns must continue.
    """
    entry, sampling = session.entry, session.run.sampling
    if not (
        entry.is_settled
        and feed.physical_batch_size == session.physical_batch_size
        and session.trains(variables, optimizer)
        and session.first_iteration == int(optimizer.iterations.numpy()) - entry.taken
        and facts == session.facts
        and optimizer.continues(session)
    ):
        return False
    lots = feed.lots
    same_lots = session.lots is None if lots is None else lots.draws_as(session.lots)
    if sampling.groups > 1:
        return same_lots and feed.turn == session.next_turn % sampling.groups
    if sampling.whole_epochs:
        return same_lots and feed.start == entry.taken % sampling.steps_per_epoch
    return True


def describe_more(session: Session, steps: int | None) -> None:
    """Extends the session's run by further steps, unless it describes them already."""
    entry, optimizer, first = session.entry, session.optimizer, session.first_iteration
    done = entry.taken
    if steps is None:
        steps = 1 if done < entry.run.steps else _open_ended(optimizer, done)
    if (end := done + steps) > entry.run.steps:
        run = with_tables(session.facts, optimizer, session.variables, first, end, entry.run)
        entry.extend(run)


def _open_ended(optimizer, done: int) -> int:
    described = optimizer.described_steps
    return OPEN_ENDED if described is None else max(1, min(OPEN_ENDED, described - done))
