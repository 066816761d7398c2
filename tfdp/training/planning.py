"""The description of a training before its first step: the one that is accounted."""

from tfdp.accounting import Run
from tfdp.layers.lot_statistics import uses_batch_statistics
from tfdp.layers.public import public_layers
from tfdp.session import Plan


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
