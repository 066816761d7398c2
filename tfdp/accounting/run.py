"""`Run`: the frozen description of a training, which is the only input of the accounting.

A `Run` has public facts (how lots are drawn, which noise, how many steps) and never data. The
constructor validates all fields, so the accounting may rely on them.
"""

import dataclasses
from typing import Any

import numpy as np

from tfdp._validate import flag, instance, instances, one_of, whole
from tfdp.accounting.contribution import Contribution
from tfdp.accounting.mechanisms import Mechanism, mechanism_class
from tfdp.accounting.records import brief, from_record, settle, to_record
from tfdp.accounting.sampling import Sampling, sampling_class

STARTS = ("assumed", "public")
_VERSION = 2
# Fields that descriptions leave out where they have these values.
_USUAL = {"machines": 1, "shards": 1, "taken": None, "open_plan": False}
_DESCRIBE = 'Describe a run by tfdp.accounting.describe("dpsgd", num_examples=..., ...).'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Description of a training in public numbers: sampling, noise and number of steps.

    Every function of `tfdp.accounting` takes one. `describe` creates it from names and plain numbers,
    which is usually shorter; `dataclasses.replace` returns a changed copy.

    Attributes:
        mechanism: Which noise is added, and to which quantity.
        sampling: How lots are drawn.
        steps: Number of steps, each with one lot. Noise given per step may have more entries.
        contribution: The largest influence of one example on a lot's sum.
        start: Origin of the initial weights: "assumed" (to be independent of these data), or "public"
            if the user declared that they are.
        insecure_seed: Whether the noise, or the secret choice of lots, came from a user's seed.
            Nothing finite is proven then.
        machines: Number of machines that trained together, whose network carried sums without
            noise.
        shards: Number of parts of the data, each of which only one machine can read.
        taken: Number of steps that were taken, if all planned `steps` are counted; None for all.
        open_plan: Whether an unknown number of further steps may be planned. Nothing finite is
            proven then.

    Raises:
        ValueError: If a value is out of range, or the parts do not fit together.

    Example:
        >>> from tfdp.accounting import Run
        >>> from tfdp.accounting.mechanisms import DPSGD
        >>> from tfdp.accounting.sampling import Poisson
        >>> run = Run(mechanism=DPSGD(noise_multiplier=1.1), steps=3516,
        ...           sampling=Poisson(num_examples=60000, lot_size=256))
        >>> run.with_steps(100).steps
        100
    """

    mechanism: Mechanism
    sampling: Sampling
    steps: int
    contribution: Contribution = dataclasses.field(default_factory=Contribution)
    start: str = "assumed"
    insecure_seed: bool = False
    machines: int = 1
    shards: int = 1
    taken: int | None = None
    open_plan: bool = False

    def __post_init__(self):
        for name, kind in (
            ("mechanism", Mechanism),
            ("sampling", Sampling),
            ("contribution", Contribution),
        ):
            instance(name, getattr(self, name), kind, remedy=_DESCRIBE)
        taken = whole("taken", self.taken, 0, optional=True)
        settle(
            self,
            steps=whole("steps", self.steps, 0),
            taken=None if taken == self.steps else taken,
            insecure_seed=flag("insecure_seed", self.insecure_seed),
            machines=whole("machines", self.machines, 1),
            shards=whole("shards", self.shards, 1),
            open_plan=flag("open_plan", self.open_plan),
            start=one_of("start", self.start, STARTS),
        )
        self.contribution.check(self.sampling)
        self.mechanism.check(self.steps, self.contribution)

    def __repr__(self) -> str:
        parts = brief(self.mechanism, self.sampling, self.contribution, self)
        return f"Run({self.mechanism.name!r}, {self.sampling.name!r}, {parts})"

    @property
    def described_steps(self) -> int | None:
        """Number of steps that the mechanism's tables cover; None if they cover any number."""
        return min(map(len, self.mechanism.tables().values()), default=None)

    def schedule(self, name: str) -> np.ndarray:
        """Returns a field of the mechanism, such as "noise_multiplier", as an array, shape (steps,)."""
        return self.mechanism.schedule(name, self.steps)

    def with_steps(self, steps: int, taken: int | None = None, open_plan: bool = False) -> "Run":
        """Returns a copy with `steps` steps, of which `taken` were taken (None for all)."""
        return dataclasses.replace(self, steps=steps, taken=taken, open_plan=open_plan)

    def with_noise(self, noise: float) -> "Run":
        """Returns a copy whose noise multiplier is `noise`; a table is multiplied by `noise`."""
        return dataclasses.replace(self, mechanism=self.mechanism.with_noise(noise))

    def for_users(self, examples: int) -> "Run":
        """Returns a copy for users with up to `examples` examples each; one, if records are people."""
        if self.contribution.examples_per_person is not None:
            examples = 1
        contribution = dataclasses.replace(self.contribution, max_examples_per_user=examples)
        return dataclasses.replace(self, contribution=contribution)

    def of_single_terms(self) -> "Run":
        """Returns a copy whose records are single clipped terms, each from a different user."""
        terms = self.sampling.of_groups(self.contribution.microbatch_size)
        alone = dataclasses.replace(self.contribution, microbatch_size=1, max_examples_per_user=1)
        return dataclasses.replace(self, sampling=terms, contribution=alone)

    def past(self) -> "Run":
        """Returns a copy with tables cut at `steps`, equal for runs that executed the same steps."""
        tables = {name: table[: self.steps] for name, table in self.mechanism.tables().items()}
        mechanism = dataclasses.replace(self.mechanism, **tables)
        return dataclasses.replace(self, mechanism=mechanism, taken=None, open_plan=False)

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON-safe description; tables become `{"values": ..., "counts": ...}`."""
        fields = {"version": _VERSION} | to_record(self)
        return {n: v for n, v in fields.items() if n not in _USUAL or v != _USUAL[n]}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Run":
        """Returns the run that `to_dict` described; raises ValueError for any other dictionary."""
        fields = _USUAL | fields
        version = fields.pop("version", None)
        if version != _VERSION:
            raise ValueError(
                f"Expected the description of a Run of version {_VERSION}. Received version "
                f"{version!r}. Use the version of tfdp that wrote it, or a newer one."
            )
        for name, class_of in (("mechanism", mechanism_class), ("sampling", sampling_class)):
            part = fields.get(name, {})
            fields[name] = from_record(class_of(part.get("name")), part)
        return from_record(cls, fields)


def check_run(run: Run) -> Run:
    """Returns `run`; raises ValueError unless it is a `Run`."""
    return instance("run", run, Run, remedy=_DESCRIBE)


def check_runs(runs) -> list[Run]:
    """Returns one run, or a sequence of runs, as a list; raises ValueError for anything else."""
    if isinstance(runs, Run):
        return [runs]
    return instances("runs", runs, Run, remedy=_DESCRIBE)
