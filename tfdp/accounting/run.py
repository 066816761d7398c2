"""One frozen description of what was executed: the only input of every accountant.

A `Run` holds public facts (how lots are drawn, which noise, how many steps) and never data. The
constructor validates all fields, so an accountant may rely on every one of them.
"""

import copy
import dataclasses
from typing import Any

import numpy as np

from tfdp._validate import flag, instance, instances, one_of, whole
from tfdp.accounting import flat
from tfdp.accounting.contribution import Contribution
from tfdp.accounting.mechanisms.base import Mechanism
from tfdp.accounting.mechanisms.registry import mechanism_from_dict
from tfdp.accounting.records import field_names
from tfdp.accounting.sampling import Sampling, sampling_from_dict

STARTS = ("assumed", "public")
_VERSION = 2


@dataclasses.dataclass(frozen=True, kw_only=True, init=False)
class Run:
    """Description of one training in public numbers: how lots are drawn, which noise, how many steps.

    Each part is given as an object, or by its name with the fields of the part as further keywords;
    each keyword then goes to the part that has such a field:

        Run(mechanism="dpsgd", sampling="poisson", num_examples=60000, lot_size=256, steps=3516,
            noise_multiplier=1.1)

    `epochs=15` instead of `steps` takes the number of steps from `steps_for`.

    Fields of the parts can be read from the run: `run.noise_multiplier` is
    `run.mechanism.noise_multiplier`, `run.lot_size` is `run.sampling.lot_size`, and so on for every
    field (and no method) of the three parts. A field that no part of this run has raises
    AttributeError.

    Attributes:
      mechanism: Which noise is added, to which quantity, and what is proven about it.
      sampling: How lots are drawn.
      steps: Number of lots processed. Tables over steps may be longer; only their first `steps`
        values count.
      contribution: How much one example can add to a lot's sum.
      start: Origin of the initial weights: "assumed" (they are assumed to be independent of these
        data) or "public" (the user declared that they are independent of these data).
      insecure_seed: Whether the noise, or the secret choice of lots, came from a seed that a user
        chose.
      taken: Number of steps that were taken if planned steps count, too: `steps` of a training that
        ended early are those of its plan. None if all `steps` were taken.

    Example:
      >>> from tfdp.accounting import Run
      >>> run = Run(mechanism="dpsgd", sampling="poisson", num_examples=60000, lot_size=256,
      ...           steps=3516, noise_multiplier=1.1)
      >>> run.noise_multiplier, run.steps_per_epoch
      (1.1, 234)
      >>> print(f"{run.sampling_probability:.4f}")
      0.0043
      >>> run.with_(noise_multiplier=2.0, steps=100).noise_multiplier
      2.0
    """

    mechanism: Mechanism
    sampling: Sampling
    steps: int
    contribution: Contribution
    start: str = "assumed"
    insecure_seed: bool = False
    taken: int | None = None

    def __init__(
        self,
        *,
        mechanism: Mechanism | str | None = None,
        sampling: Sampling | str | None = None,
        steps: int | None = None,
        epochs: float | None = None,
        contribution: Contribution | None = None,
        start: str = "assumed",
        insecure_seed: bool = False,
        taken: int | None = None,
        **fields: Any,
    ):
        parts = {"mechanism": mechanism, "sampling": sampling, "contribution": contribution}
        parts = flat.parts_of(parts, fields)
        own = {
            "steps": _steps(steps, epochs, parts["sampling"]),
            "start": start,
            "insecure_seed": flag("insecure_seed", insecure_seed),
        }
        for name, value in (parts | own).items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "steps", whole("steps", self.steps, 0))
        taken = whole("taken", taken, 0, optional=True)
        object.__setattr__(self, "taken", None if taken == self.steps else taken)
        one_of("start", self.start, STARTS)
        self.contribution.check(self.sampling)
        self.mechanism.check(self)

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for attributes that the Run itself lacks. Names with a leading
        # underscore are not looked up in the parts: `copy` and `pickle` request such names before
        # the object has any parts.
        if not name.startswith("_"):
            for part in ("mechanism", "sampling", "contribution"):
                if name in field_names(type(self.__dict__[part])):
                    return getattr(self.__dict__[part], name)
            raise AttributeError(
                f"Expected a field of a run. Received {name!r}, which the mechanism "
                f"{self.mechanism_name!r} with sampling {self.sampling_name!r} does not have."
            )
        raise AttributeError(name)

    @property
    def mechanism_name(self) -> str:
        """Name of the mechanism in the registry."""
        return self.mechanism.name

    @property
    def sampling_name(self) -> str:
        """Name of the way in which lots are drawn."""
        return self.sampling.name

    @property
    def groups(self) -> int:
        """Number of groups of examples that take turns; 1 if every example may be in every lot."""
        return self.sampling.groups

    @property
    def steps_per_epoch(self) -> int:
        """Whole lots in the data set (N // L, at least 1)."""
        return self.sampling.steps_per_epoch

    @property
    def sampling_probability(self) -> float:
        """Probability that an example is in a lot that can hold it: L/N times the number of groups."""
        return self.sampling.probability

    @property
    def participations(self) -> int:
        """Largest number of lots that one example can be in."""
        return self.sampling.participations(self.steps)

    @property
    def described_steps(self) -> int | None:
        """Number of steps that the tables of the mechanism cover; None if they cover any number."""
        return self.mechanism.described_steps()

    def schedule(self, name: str) -> np.ndarray:
        """A table of the mechanism, such as "noise_multiplier", as an array of length `steps`."""
        return self.mechanism.schedule(name, self.steps)

    def with_(self, **changes: Any) -> "Run":
        """Returns a copy with some fields changed, which the constructor validates again.

        The keywords are those of the constructor. A new number of `steps` counts as taken. If a part is
        replaced by giving a name, the new part takes over the fields that both classes have; fields of
        the old class only are dropped.
        """
        other_steps = "steps" in changes or "epochs" in changes
        own = {
            name: changes.pop(name, getattr(self, name))
            for name in ("steps", "start", "insecure_seed")
            if not (name == "steps" and "epochs" in changes and "steps" not in changes)
        }
        own["taken"] = changes.pop("taken", None if other_steps else self.taken)
        if "epochs" in changes:
            own["epochs"] = changes.pop("epochs")
        now = {name: getattr(self, name) for name in ("mechanism", "sampling", "contribution")}
        return Run(**flat.changed(now, changes), **own)

    def with_noise(self, noise: float) -> "Run":
        """Returns a copy whose noise multiplier is `noise`; a table is multiplied by `noise`."""
        return self.with_(mechanism=self.mechanism.with_noise(noise))

    def past(self) -> tuple:
        """All fields, with tables cut at `steps`; equal for two runs that executed the same steps."""
        return (
            self.mechanism.past(self.steps),
            self.sampling,
            self.steps,
            self.contribution,
            self.start,
            self.insecure_seed,
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON-safe description; tables become `{"values": ..., "counts": ...}`."""
        fields = {
            "version": _VERSION,
            "mechanism": self.mechanism.to_dict(),
            "sampling": self.sampling.to_dict(),
            "steps": self.steps,
            "contribution": self.contribution.to_dict(),
            "start": self.start,
            "insecure_seed": self.insecure_seed,
        }
        return fields if self.taken is None else fields | {"taken": self.taken}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Run":
        """Inverse of `to_dict`.

        Raises:
          ValueError: If a field is unknown or missing, or the version is unknown.
        """
        fields = copy.copy(fields)
        version = fields.pop("version", None)
        if version != _VERSION:
            raise ValueError(
                f"Expected the description of a Run of version {_VERSION}. Received version "
                f"{version!r}. Use the version of tfdp that wrote it, or a newer one."
            )
        fields.setdefault("taken", None)
        if sorted(fields) != sorted(field_names(cls)):
            raise ValueError(f"Expected the fields of a Run. Received {sorted(fields)}.")
        return cls(
            mechanism=mechanism_from_dict(fields.pop("mechanism")),
            sampling=sampling_from_dict(fields.pop("sampling")),
            contribution=Contribution.from_dict(fields.pop("contribution")),
            **fields,
        )


def _steps(steps: int | None, epochs: float | None, sampling: Sampling) -> int:
    """The number of steps, of which `epochs` may be given in its place."""
    if (steps is None) == (epochs is None):
        found = "neither" if steps is None else "both"
        raise ValueError(f"Expected steps or epochs. Received {found}. Pass one of the two.")
    if epochs is None:
        return steps
    steps = sampling.steps_in(epochs)
    if steps < 1:
        raise ValueError(
            f"Expected epochs to hold at least one step. Received {epochs!r}, which is none with lots "
            f"of {sampling.lot_size} out of {sampling.num_examples} examples. Train for longer."
        )
    return steps


_DESCRIBE = "Pass tfdp.accounting.Run(mechanism=..., sampling=..., ...)."


def check_run(run: Run) -> Run:
    """Returns `run`; raises ValueError unless it is a `Run`."""
    return instance("run", run, Run, remedy=_DESCRIBE)


def check_runs(runs) -> list[Run]:
    """Returns a sequence of runs as a list; raises ValueError for anything else."""
    return instances("runs", runs, Run, remedy=_DESCRIBE)
