"""What is known of a training before its session: how steps draw examples, and what is accounted."""

import dataclasses

from tfdp.accounting import Run
from tfdp.accounting.contribution import Contribution
from tfdp.accounting.mechanisms import Mechanism
from tfdp.accounting.sampling import Sampling


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the steps that are about to run draw their examples.

    Attributes:
        sampling: as in `accounting.Run`.
        steps: number of steps; None if it is unknown.
        turn: the group that the first lot comes from, if groups take turns.
        lots: the `tfdp.data.Lots` that the steps draw from; None for other batches.
        insecure_seed: whether secret draws come from a user's seed.
        physical_batch_size: number of rows in one chunk; None processes a lot as a whole.
        start: place of the first lot in its epoch, where epochs are whole.
    """

    sampling: Sampling
    steps: int | None = None
    turn: int = 0
    lots: object = None
    insecure_seed: bool = False
    physical_batch_size: int | None = None
    start: int = 0


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is accounted of a training, except its number of steps and tables over them.

    Attributes:
        mechanism: class of the mechanism.
        fields: fields of the mechanism that are no tables.
        sampling, contribution, start, insecure_seed: as in `accounting.Run`.
    """

    mechanism: type[Mechanism]
    fields: dict
    sampling: Sampling
    contribution: Contribution
    start: str
    insecure_seed: bool

    def run(self, steps: int, tables: dict) -> Run:
        """Returns the run of `steps` steps, with tables that are fields of the mechanism."""
        return Run(mechanism=self.mechanism(**self.fields, **tables), steps=steps, **self._rest())

    def differences(self, run: Run) -> list[str]:
        """Names of the settings in which a run differs, whatever its steps and tables."""
        if type(run.mechanism) is not self.mechanism:
            return ["mechanism"]
        mechanism = dataclasses.replace(run.mechanism, **self.fields)
        ours = dataclasses.replace(run, mechanism=mechanism, **self._rest())
        return _differing_fields(run, ours)

    def _rest(self) -> dict:
        names = ("sampling", "contribution", "start", "insecure_seed")
        return {name: getattr(self, name) for name in names}


def _differing_fields(one, other) -> list[str]:
    found = []
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if a != b:
            nested = dataclasses.is_dataclass(a) and type(a) is type(b)
            found += _differing_fields(a, b) if nested else [field.name]
    return found
