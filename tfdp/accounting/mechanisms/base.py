"""Base classes of the mechanisms: a frozen description of the noise, with proof, claim and words.

To add a mechanism, derive a frozen dataclass in a file of its own, give it a `name`, implement the
methods that raise NotImplementedError here, and add a line to the registry. No other code compares
the name of a mechanism; it calls the methods below instead.
"""

import dataclasses
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tfdp.accounting import analysis, claims, noise_tables
from tfdp.accounting.noise_tables import Noise
from tfdp.accounting.records import settle

if TYPE_CHECKING:
    from tfdp.accounting.run import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Base class of all mechanisms. Mechanisms that add noise derive from `NoisyMechanism`.

    Class attributes:
      name: Name in the registry, in ledgers and in flags.
      summary: What the mechanism does, in a few words.
      released: The released values that a guarantee is about.
      claim_assumptions: Assumptions of the paper's claim.
      schedules: Names of the fields that may be a table over steps.
      settings: Settings of an experiment that this mechanism has and not every one.
      update_rules: Keras update rules that the mechanism allows: "any", since they see noisy sums only;
        "linear", for a proven guarantee SGD with or without momentum; or "own", the paper's step.
      adaptive_clipping: Whether the clip norm may depend on earlier releases.
      usual_sampling: Name of the sampling scheme where none is chosen.
      segments_note: Assumption of a guarantee about several runs of this mechanism, or None.
      advice: Sentence about a better mechanism at the same proven epsilon, or None.
      declarable: Whether the user may declare that a run of it was on public data.

    Example:
      >>> from tfdp.accounting import describe
      >>> run = describe("dpsgd", "poisson", num_examples=1000, lot_size=100, steps=10,
      ...                noise_multiplier=(4.0, 4.0, *[2.0] * 8))
      >>> run.mechanism.schedule("noise_multiplier", 4)
      array([4., 4., 2., 2.])
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    released: ClassVar[str] = ""
    claim_assumptions: ClassVar[tuple[str, ...]] = ()
    schedules: ClassVar[tuple[str, ...]] = ()
    settings: ClassVar[tuple[str, ...]] = ()
    update_rules: ClassVar[str] = "any"
    adaptive_clipping: ClassVar[bool] = False
    usual_sampling: ClassVar[str] = "poisson"
    segments_note: ClassVar[str | None] = None
    advice: ClassVar[str | None] = None
    declarable: ClassVar[bool] = False

    # -- what is proven ----------------------------------------------------------------------------

    def check(self, run: "Run") -> None:
        """Raises ValueError if this mechanism does not fit the other parts of its run."""
        for name, table in self._tables().items():
            if len(table) < run.steps:
                raise ValueError(
                    f"Expected {name} to have one value for each of the {run.steps} steps. Received "
                    f"{len(table)} values. Pass a constant or the whole schedule."
                )
        if run.contribution.adaptive_clipping and not self.adaptive_clipping:
            raise ValueError(
                "Expected adaptive_clipping with a mechanism whose steps are private one by one: "
                "any other guarantee needs one clip norm for all steps. Received it with "
                f"{self.name!r}. Leave it out."
            )

    def nothing_proven(self, run: "Run", adjacency: str) -> str | None:
        """Reason why nothing finite can be proven for a run of at least one step, or None."""
        del run, adjacency

    def analyse(self, run: "Run", delta: float, adjacency: str) -> "analysis.Analysis":
        """Privacy losses and this mechanism's assumptions, for a run that `nothing_proven` lets pass.

        `delta` determines how much tail mass is left out. An `UnboundedSensitivity` becomes the reason
        of an infinite epsilon.
        """
        raise NotImplementedError

    def noise_sentence(self, steps: int) -> str:
        """Sentence about the noise that has to be true for a finite guarantee to hold."""
        raise NotImplementedError

    # -- what is claimed ---------------------------------------------------------------------------

    def claimed_rdp(self, run: "Run") -> np.ndarray | None:
        """The claim as Rényi divergences at `claims.ORDERS_2020`, which add over runs; or None."""
        del run

    def claimed_epsilon(self, run: "Run", delta: float) -> "claims.Claim":
        """The claim as an epsilon. Only called if `claimed_rdp` returns None."""
        raise NotImplementedError

    @property
    def no_claim(self) -> str:
        """Reason of an infinite claim, reported if all divergences of `claimed_rdp` are infinite."""
        return "No noise was added."

    # -- noise and time ----------------------------------------------------------------------------

    def with_noise(self, noise: float) -> "Mechanism":
        """A copy with this noise multiplier; a table is multiplied by it."""
        del noise
        return self

    def _tables(self) -> dict[str, tuple]:
        values = {name: getattr(self, name) for name in self.schedules}
        return {name: value for name, value in values.items() if isinstance(value, tuple)}

    def described_steps(self) -> int | None:
        """Number of steps that the tables cover, or None if no field is a table."""
        return min(map(len, self._tables().values()), default=None)

    def cut(self, steps: int) -> "Mechanism":
        """Returns a copy with tables of `steps` values; equal if the same steps were executed."""
        tables = {name: table[:steps] for name, table in self._tables().items()}
        return dataclasses.replace(self, **tables)

    def schedule(self, name: str, steps: int) -> np.ndarray:
        """A field of `schedules` as an array of shape (steps,).

        None, an unknown constant, becomes 1: a constant factor of all values changes no guarantee.
        """
        value = getattr(self, name)
        array = np.asarray(1.0 if value is None else value, dtype=float)
        return np.full(steps, float(array)) if array.ndim == 0 else array[:steps]

    # -- words -------------------------------------------------------------------------------------

    def executed_words(self, run: "Run") -> str | None:
        """Sentence that describes what was executed; None for the usual sentence of the statement."""
        del run

    def noise_words(self, steps: int) -> str:
        """Description of the noise that ends the usual sentence about what was executed."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyMechanism(Mechanism):
    """Base class of the mechanisms that add noise.

    Attributes:
      noise_multiplier: Standard deviation (or scale) of the noise on the sum, divided by the clip
        norm; one number, or one for each step.
    """

    noise_multiplier: Noise

    schedules: ClassVar[tuple[str, ...]] = ("noise_multiplier",)

    def __post_init__(self):
        settle(self, noise_multiplier=noise_tables.checked(self.noise_multiplier))

    def with_noise(self, noise: float) -> "NoisyMechanism":
        table = self.noise_multiplier
        new = noise_tables.scaled(table, noise) if isinstance(table, tuple) else noise
        return dataclasses.replace(self, noise_multiplier=new)

    def nothing_proven(self, run: "Run", adjacency: str) -> str | None:
        del adjacency
        noise = noise_tables.of_steps(self.noise_multiplier, max(run.steps, 1))
        if isinstance(noise, tuple) and 0.0 in noise:
            step = noise.index(0.0)
            return f"No noise was added in step {step} (noise_multiplier is 0 there)."
        return None if noise else "No noise was added (noise_multiplier is 0)."

    def noise_sentence(self, steps: int) -> str:
        del steps
        return "The noise is Gaussian, independent and secret."

    def noise_words(self, steps: int) -> str:
        return f", noise multiplier {noise_tables.words(self.noise_multiplier, steps)}"
