"""One frozen description of what was executed: the only input of every accountant.

A `Run` holds public facts (how lots are drawn, which noise, how many steps) and never data. It is
checked when it is made, so an accountant may rely on every field.
"""

import copy
import dataclasses
from typing import Any

import numpy as np

from tfdp._validate import flag, one_of, whole
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
    """What was executed, in public numbers: how lots were drawn, which noise, how many steps.

    The parts may be given as objects, or by name with their fields beside them; each keyword then
    goes to the part that has such a field:

        Run(mechanism="dpsgd", sampling="poisson", num_examples=60000, lot_size=256, steps=3516,
            noise_multiplier=1.1)

    Fields of the parts are read the same way: `run.noise_multiplier` is
    `run.mechanism.noise_multiplier`, `run.lot_size` is `run.sampling.lot_size`, and so on for every
    field (and no method) of the three parts. A field that no part of this run has raises
    AttributeError.

    Attributes:
      mechanism: What noise is added around what, and what is proven about it.
      sampling: How lots are drawn.
      steps: Number of lots processed. Tables may be longer; their first `steps` values count.
      contribution: What one example can add to a lot's sum.
      start: Where the weights began: "assumed" (to be independent of these data) or "public" (the
        user declared that they are).
      insecure_seed: Whether the noise, or the secret choice of lots, came from a seed that a user
        chose.
    """

    mechanism: Mechanism
    sampling: Sampling
    steps: int
    contribution: Contribution
    start: str = "assumed"
    insecure_seed: bool = False

    def __init__(
        self,
        *,
        mechanism: Mechanism | str,
        sampling: Sampling | str,
        steps: int,
        contribution: Contribution | None = None,
        start: str = "assumed",
        insecure_seed: bool = False,
        **fields: Any,
    ):
        insecure_seed = fields.pop(flat.SEEDED, insecure_seed)
        parts = {"mechanism": mechanism, "sampling": sampling, "contribution": contribution}
        parts = flat.parts_of(parts, fields)
        own = {
            "steps": steps,
            "start": start,
            "insecure_seed": flag("insecure_seed", insecure_seed),
        }
        for name, value in (parts | own).items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "steps", whole("steps", self.steps, 0))
        one_of("start", self.start, STARTS)
        self.contribution.check(self.sampling)
        self.mechanism.check(self)

    def __getattr__(self, name: str) -> Any:
        # Only called for what a Run does not have itself. Underscores are left to Python, which
        # asks for them while an object is being copied or unpickled and has no parts yet.
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
        """Number of groups of examples that take turns; 1 where all examples may be in every lot."""
        return self.sampling.groups

    @property
    def steps_per_epoch(self) -> int:
        """Whole lots in the data set (N // L, at least 1)."""
        return self.sampling.steps_per_epoch

    @property
    def sampling_probability(self) -> float:
        """Chance that one example is in a lot that it can be in (L/N, times the groups)."""
        return self.sampling.probability

    @property
    def participations(self) -> int:
        """Most lots that one example can be in."""
        return self.sampling.participations(self.steps)

    @property
    def described_steps(self) -> int | None:
        """Steps that the tables of the mechanism cover; None where every number is covered."""
        return self.mechanism.described_steps()

    def schedule(self, name: str) -> np.ndarray:
        """A table of the mechanism, such as "noise_multiplier", as an array of length `steps`."""
        return self.mechanism.schedule(name, self.steps)

    def with_(self, **changes: Any) -> "Run":
        """Returns a copy with some fields changed, validated again.

        Changes are given as to the constructor. A part that is changed by name keeps the fields that
        both classes have; what only the old one had is dropped.
        """
        if flat.SEEDED in changes:
            changes["insecure_seed"] = changes.pop(flat.SEEDED)
        own = {
            name: changes.pop(name, getattr(self, name))
            for name in ("steps", "start", "insecure_seed")
        }
        now = {name: getattr(self, name) for name in ("mechanism", "sampling", "contribution")}
        return Run(**flat.changed(now, changes), **own)

    def with_noise(self, noise: float) -> "Run":
        """Returns a copy with other noise; a table of noise multipliers is multiplied by it."""
        return self.with_(mechanism=self.mechanism.with_noise(noise))

    def past(self) -> tuple:
        """What was executed, with tables up to `steps`: equal for two descriptions of one past."""
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
        return {
            "version": _VERSION,
            "mechanism": self.mechanism.to_dict(),
            "sampling": self.sampling.to_dict(),
            "steps": self.steps,
            "contribution": self.contribution.to_dict(),
            "start": self.start,
            "insecure_seed": self.insecure_seed,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Run":
        """Inverse of `to_dict`; also reads the flat description that tfdp 0.1.0 wrote.

        Raises:
          ValueError: Where a field is unknown or missing.
        """
        if "version" not in fields:
            return flat.read_0_1_0(cls, fields)
        fields = copy.copy(fields)
        version = fields.pop("version")
        if version != _VERSION:
            raise ValueError(
                f"Expected the description of a Run of version {_VERSION}. Received version "
                f"{version!r}. Use the version of tfdp that wrote it, or a newer one."
            )
        if sorted(fields) != sorted(field_names(cls)):
            raise ValueError(f"Expected the fields of a Run. Received {sorted(fields)}.")
        return cls(
            mechanism=mechanism_from_dict(fields.pop("mechanism")),
            sampling=sampling_from_dict(fields.pop("sampling")),
            contribution=Contribution.from_dict(fields.pop("contribution")),
            **fields,
        )
