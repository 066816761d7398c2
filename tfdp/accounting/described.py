"""Runs that a search is about: given as a `Run`, or by its keywords without what is searched for."""

from typing import Any

from tfdp.accounting.mechanisms.registry import mechanism_class, mechanism_names
from tfdp.accounting.records import field_names
from tfdp.accounting.run import Run

_NOISE = "noise_multiplier"


def without_noise(run: Run | None, fields: dict[str, Any]) -> Run:
    """Returns the run of `noise_for`, whose noise multiplier is 1 if keywords describe it.

    Raises:
      TypeError: If both a run and keywords are given, or neither, or a noise multiplier.
    """
    if _NOISE in fields:
        raise TypeError(
            f"noise_for finds the noise multiplier. Expected none. Received {_NOISE}="
            f"{fields[_NOISE]!r}. Leave it out; or pass a Run: a table of noise multipliers keeps its "
            "shape there."
        )
    return _run("noise_for", run, fields, {_NOISE: 1.0} if _has_noise(fields) else {})


def without_steps(run: Run | None, fields: dict[str, Any]) -> Run:
    """Returns the run of `max_steps`, which has no steps if keywords describe it.

    Raises:
      TypeError: If both a run and keywords are given, or neither, or a number of steps.
    """
    for name in ("steps", "epochs"):
        if name in fields:
            raise TypeError(
                f"max_steps finds the number of steps. Expected none. Received {name}="
                f"{fields[name]!r}. Leave it out."
            )
    return _run("max_steps", run, fields, {"steps": 0})


def _run(where: str, run: Run | None, fields: dict[str, Any], found: dict[str, Any]) -> Run:
    if run is not None:
        if not isinstance(run, Run):
            raise TypeError(
                f"Expected {where} to get a Run, or the keywords of one. Received {run!r}. Pass for "
                'example mechanism="dpsgd", num_examples=60000, lot_size=256, epochs=15.'
            )
        if fields:
            raise TypeError(
                f"Expected {where} to get a Run or the keywords of one. Received a Run and "
                f"{sorted(fields)}. Change the run with run.with_(...)."
            )
        return run
    if not fields:
        raise TypeError(
            f"Expected {where} to get a Run, or the keywords of one. Received neither. Pass for "
            'example mechanism="dpsgd", num_examples=60000, lot_size=256, epochs=15.'
        )
    mechanism = _class_of(fields)
    usual = {"sampling": getattr(mechanism, "usual_sampling", "poisson")}
    return Run(**(usual | found | fields))


def _has_noise(fields: dict[str, Any]) -> bool:
    """Whether `Run` needs a noise multiplier: an object has one already, and "none" takes none."""
    kind = _class_of(fields)
    return isinstance(fields.get("mechanism"), str) and kind and _NOISE in field_names(kind)


def _class_of(fields: dict[str, Any]) -> type | None:
    """Class of the mechanism, or None if it is missing or unknown, which `Run` reports."""
    mechanism = fields.get("mechanism")
    if isinstance(mechanism, str):
        return mechanism_class(mechanism) if mechanism in mechanism_names() else None
    return None if mechanism is None else type(mechanism)
