"""Runs that differ from another run in a few fields."""

from tfdp.accounting import Run, describe
from tfdp.accounting.contribution import Contribution
from tfdp.accounting.mechanisms import mechanism_class
from tfdp.accounting.records import field_names
from tfdp.accounting.sampling import sampling_class


def vary(run: Run, **changes) -> Run:
    """Describes a run again, with other values of the keywords of `describe`.

    A mechanism or sampling that is given by another name takes over the fields that it has, too. One
    that is given as an object replaces the part. All steps count as taken if their number changes.
    """
    mechanism = changes.get("mechanism", run.mechanism.name)
    sampling = changes.get("sampling", run.sampling.name)
    fields = {"start": run.start, "insecure_seed": run.insecure_seed}
    if not changes.keys() & {"steps", "epochs"}:
        fields |= {"steps": run.steps, "taken": run.taken}
    if isinstance(mechanism, str):
        fields |= _shared(run.mechanism, mechanism_class(mechanism))
    if isinstance(sampling, str):
        fields |= _shared(run.sampling, sampling_class(sampling))
    fields |= _shared(run.contribution, Contribution)
    return describe(**(fields | {"mechanism": mechanism, "sampling": sampling} | changes))


def _shared(part, kind: type) -> dict:
    names = set(field_names(kind)) & set(field_names(type(part)))
    return {name: getattr(part, name) for name in names}
