"""Creates runs from names and plain numbers."""

from typing import Any

from tfdp._validate import did_you_mean
from tfdp.accounting.contribution import Contribution
from tfdp.accounting.mechanisms import USUAL_MECHANISM, Mechanism, mechanism_class
from tfdp.accounting.records import field_names
from tfdp.accounting.run import Run
from tfdp.accounting.sampling import Sampling, sampling_class

# Fields of a run that are plain values.
_OWN = ("start", "insecure_seed", "machines", "shards", "taken", "open_plan")


def describe(
    mechanism: str | Mechanism = USUAL_MECHANISM,
    sampling: str | Sampling | None = None,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    **fields: Any,
) -> Run:
    """Describes a training as a `Run`, from names and plain numbers.

    The result is the input of `proven`, `claimed`, `noise_for` and the other functions of this
    package. Nothing is trained.

    Args:
        mechanism: Name of the mechanism, one of `mechanism_names()`, or a `Mechanism`.
        sampling: Name of the sampling scheme, one of `sampling_names()`, or a `Sampling`; None for
            the mechanism's `usual_sampling`.
        steps: Number of steps.
        epochs: Replaces `steps`: number of passes over the data (see `steps_for`).
        **fields: Fields of the mechanism (such as `noise_multiplier`), the sampling
            (`num_examples`, `lot_size`), `Contribution` (`l2_norm_clip`) and `Run` (`start`,
            `insecure_seed`).

    Returns:
        The `Run`.

    Raises:
        TypeError: If a field that has no default is missing.
        ValueError: If this mechanism or sampling has no such field, a value is out of range, or not
            exactly one of `steps` and `epochs` is given.

    Example:
        >>> from tfdp.accounting import describe
        >>> run = describe("dpsgd", "poisson", num_examples=60000, lot_size=256, epochs=15,
        ...                noise_multiplier=1.1, l2_norm_clip=0.5)
        >>> run.steps
        3515
    """
    kind = mechanism if isinstance(mechanism, Mechanism) else mechanism_class(mechanism)
    if sampling is None:
        sampling = kind.usual_sampling
    scheme = sampling if isinstance(sampling, Sampling) else sampling_class(sampling)
    parts = (kind, scheme, Contribution)
    _check_fields(fields, parts)
    noise, lots, contribution = (_made(part, fields) for part in parts)
    if (steps is None) == (epochs is None):
        found = "neither" if steps is None else "both"
        raise ValueError(f"Expected steps or epochs. Received {found}. Pass one of the two.")
    if steps is None:
        assert epochs is not None
        steps = lots.steps_in(epochs)
        if steps < 1:
            raise ValueError(
                f"Expected at least one step. Received epochs={epochs!r}, which is less than one step "
                f"with lots of {lots.lot_size} out of {lots.num_examples} examples. Train longer."
            )
    return Run(
        mechanism=noise,
        sampling=lots,
        contribution=contribution,
        steps=steps,
        **{name: fields[name] for name in _OWN if name in fields},
    )


def _made(part: Any, fields: dict[str, Any]) -> Any:
    """Creates a part that is given as a class; returns an object as it is."""
    if not isinstance(part, type):
        return part
    return part(**{name: fields[name] for name in field_names(part) if name in fields})


def _check_fields(fields: dict[str, Any], parts: tuple) -> None:
    """Raises ValueError for a keyword that no part takes."""
    known = {*_OWN, "mechanism", "sampling", "steps", "epochs"}.union(
        *(field_names(part) for part in parts if isinstance(part, type))
    )
    for name in fields:
        if name not in known:
            raise ValueError(
                f"Expected fields of {parts[0].name!r} and of {parts[1].name!r} sampling: "
                f"{', '.join(sorted(known))}. Received {name!r}.{did_you_mean(name, known)}"
            )


def steps_for(epochs: float, num_examples: int, lot_size: int, sampling: str) -> int:
    """Returns the number of training steps in a number of passes over the data.

    Args:
        epochs: Number of passes, above 0 and possibly fractional.
        num_examples: Number N of examples.
        lot_size: Nominal lot size L, at most N.
        sampling: Name of the sampling scheme, one of `sampling_names()`.

    Returns:
        floor(epochs * N / L) if each lot is drawn independently at random, and
        floor(epochs * (N // L)) if epochs go through the data.

    Raises:
        ValueError: If the scheme `sampling` is unknown or a number is out of range.

    Example:
        >>> from tfdp.accounting import steps_for
        >>> steps_for(15, num_examples=60000, lot_size=256, sampling="poisson")
        3515
    """
    lots = sampling_class(sampling)(num_examples=num_examples, lot_size=lot_size)
    return lots.steps_in(epochs)
