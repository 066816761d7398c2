"""What every mechanism is: a frozen description of its noise, with its proof, claim and words.

To add one, derive a frozen dataclass in a file of its own, give it a `name`, implement what raises
NotImplementedError here, and add a line to the registry. Nothing outside asks which mechanism a run
has; it asks the methods below.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tfdp.accounting import analysis, claims, noise_tables, records
from tfdp.accounting.checks import covers
from tfdp.accounting.noise_tables import Noise
from tfdp.accounting.numerics import privacy_loss

if TYPE_CHECKING:
    from tfdp.accounting.comparison import Advice
    from tfdp.accounting.run import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism:
    """A mechanism; the base class. See `NoisyMechanism` for those that add noise.

    Class attributes:
      name: In the registry, in ledgers and in flags.
      released: What a guarantee is about, in words.
      claim_assumptions: What the paper's claim takes for granted, in sentences.
      schedules: Fields that may be a table over steps.
      compounds: Fields that hold objects, with the classes whose `from_dict` reads them.
      ignored: Fields of other mechanisms that make no difference to this one, whatever they say. The
        update rule is one where it sees noisy sums only.
      options: Plain settings (flags) that `from_options` makes fields of.
      adaptive_clipping: Whether steps are private one by one, so that the clip norm may follow what
        was released.
      segments_note: What has to be true where several segments compose, or None.
    """

    name: ClassVar[str] = ""
    released: ClassVar[str] = ""
    claim_assumptions: ClassVar[tuple[str, ...]] = ()
    schedules: ClassVar[tuple[str, ...]] = ()
    compounds: ClassVar[dict[str, type]] = {}
    ignored: ClassVar[tuple[str, ...]] = ("optimizer",)
    options: ClassVar[tuple[str, ...]] = ()
    adaptive_clipping: ClassVar[bool] = False
    segments_note: ClassVar[str | None] = None

    def _put(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    # -- what is proven ----------------------------------------------------------------------------

    def check(self, run: "Run") -> None:
        """Raises ValueError where this mechanism does not fit the other parts of its run."""
        for name in self.schedules:
            covers(name, getattr(self, name), run.steps)
        if run.contribution.adaptive_clipping and not self.adaptive_clipping:
            raise ValueError(
                "Expected adaptive_clipping with a mechanism whose steps are private one by one: "
                "any other guarantee needs one clip norm for all steps. Received it with "
                f"{self.name!r}. Leave it out."
            )

    def nothing_proven(self, run: "Run", adjacency: str) -> str | None:
        """Why nothing finite can be proven for a run of at least one step, or None."""
        del run, adjacency

    def analyse(self, run: "Run", delta: float, adjacency: str) -> "analysis.Analysis":
        """The losses of a run of at least one step for which `nothing_proven` knows no reason.

        Assumptions are those of this mechanism only; `analysis.analyse` adds what all share. An
        `UnboundedSensitivity` that is raised here becomes the reason of an infinite epsilon.
        """
        raise NotImplementedError

    def noise_sentence(self, steps: int) -> str:
        """What has to be true about the noise of a finite guarantee."""
        raise NotImplementedError

    def curve(
        self, run: "Run", counts: np.ndarray, delta: float, adjacency: str
    ) -> Sequence[float]:
        """Proven epsilon after each of `counts` steps: upper bounds, cheap ones where there are.

        Args:
          run: With `steps` the largest of `counts`, and a finite guarantee there.
          counts: Step counts, increasing, at least 0.
          delta: Probability in (0, 1).
          adjacency: Neighbouring relation.
        """
        values = []
        for count in counts:
            losses = analysis.analyse(run.with_(steps=int(count)), delta, adjacency).losses
            quick = privacy_loss.quick_epsilon(losses, delta)
            values.append(
                privacy_loss.epsilon_of(losses, delta).epsilon if quick is None else quick
            )
        return values

    # -- what is claimed ---------------------------------------------------------------------------

    def claimed_rdp(self, run: "Run") -> np.ndarray | None:
        """The claim as Rényi divergences at `claims.ORDERS_2020`, which add over runs, or None."""
        del run

    def claimed_epsilon(self, run: "Run", delta: float) -> "claims.Claim":
        """The claim, where it is no Rényi divergence."""
        raise NotImplementedError

    @property
    def no_claim(self) -> str:
        """Why a claim is infinite where the Rényi divergences are."""
        return "No noise was added."

    # -- noise and time ----------------------------------------------------------------------------

    def with_noise(self, noise: float) -> "Mechanism":
        """The mechanism with other noise; a table is multiplied. What calibration searches over."""
        del noise
        return self

    def described_steps(self) -> int | None:
        """Number of steps that the tables cover, or None where every number is covered."""
        tables = [getattr(self, name) for name in self.schedules]
        return min((len(table) for table in tables if isinstance(table, tuple)), default=None)

    def past(self, steps: int) -> dict[str, Any]:
        """All fields, with tables up to `steps`: equal for two descriptions of one past."""
        fields = {name: getattr(self, name) for name in records.field_names(type(self))}
        for name in self.schedules:
            if isinstance(fields[name], tuple):
                fields[name] = fields[name][:steps]
        return {"name": self.name} | fields

    def schedule(self, name: str, steps: int) -> np.ndarray:
        """A constant or a table as an array of length `steps`."""
        if name not in self.schedules:
            raise ValueError(
                f"Expected a schedule of {self.name!r}: {', '.join(self.schedules) or 'there is none'}."
                f" Received {name!r}."
            )
        value = getattr(self, name)
        # Every guarantee is invariant under one common factor of what is not given.
        array = np.asarray(1.0 if value is None else value, dtype=float)
        return np.full(steps, float(array)) if array.ndim == 0 else array[:steps]

    # -- words -------------------------------------------------------------------------------------

    def executed_words(self, run: "Run") -> str | None:
        """What was executed, as a whole sentence; None where the usual one says it."""
        del run

    def noise_words(self, steps: int) -> str:
        """The noise, as the end of the sentence that says what was executed."""
        raise NotImplementedError

    def advice(self, run: "Run", delta: float, adjacency: str) -> "Advice | None":
        """What a user of this mechanism should compare it with, or None."""
        del run, delta, adjacency

    # -- making, writing and reading ---------------------------------------------------------------

    @classmethod
    def from_options(cls, options: Mapping[str, Any], steps: int) -> dict[str, Any]:
        """Fields that are made from `options` (plain settings such as flags, None where not given).

        Raises:
          ValueError: Where an option is missing.
        """
        del options, steps
        return {}

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe fields and name; tables become run lengths."""
        return records.to_record(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Mechanism":
        """Inverse of `to_dict`. Raises ValueError where a field is unknown or missing."""
        return records.from_record(cls, fields, cls.compounds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyMechanism(Mechanism):
    """A mechanism that adds noise.

    Attributes:
      noise_multiplier: Standard deviation (or scale) of the noise on the sum, divided by the clip
        norm; one number, or one for each step.
    """

    noise_multiplier: Noise

    schedules: ClassVar[tuple[str, ...]] = ("noise_multiplier",)

    def __post_init__(self):
        self._put("noise_multiplier", noise_tables.checked(self.noise_multiplier))

    def with_noise(self, noise: float) -> "NoisyMechanism":
        table = self.noise_multiplier
        new = noise_tables.scaled(table, noise) if isinstance(table, tuple) else noise
        return dataclasses.replace(self, noise_multiplier=new)

    def nothing_proven(self, run: "Run", adjacency: str) -> str | None:
        del adjacency
        step = noise_tables.bare_step(self.noise_multiplier, run.steps)
        if step is None:
            return None
        if not isinstance(noise_tables.of_steps(self.noise_multiplier, run.steps), tuple):
            return "No noise was added (noise_multiplier is 0)."
        return f"No noise was added in step {step} (noise_multiplier is 0 there)."

    def noise_sentence(self, steps: int) -> str:
        del steps
        return (
            "The noise is Gaussian, independent and secret; attacks on floating-point sampling are "
            "not covered."
        )

    def noise_words(self, steps: int) -> str:
        return f", noise multiplier {noise_tables.words(self.noise_multiplier, steps)}"
