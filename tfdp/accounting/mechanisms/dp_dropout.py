"""Differentially private dropout (DPD): SGLD steps whose noise is interpreted as dropout.

The weights move by eta_t / 2 times (clipped gradient + noise of standard deviation 2 C sigma). The
noise does not depend on the weights, so this is DP-SGD with noise multiplier z = 2 sigma. If each
layer is clipped at C (`clip_groups`), the guarantee is that of z divided by the square root of the
number of layers. A run's `noise_multiplier` is z; the paper's sigma is z / 2.

The paper's claim is a recipe from epsilon to sigma. It inverts the classical Gaussian mechanism
(e_it, d_it), amplification by sampling, e' = log(1 + nu (exp(e_it) - 1)), and a composition:

* "ac", advanced composition with e^x - 1 replaced by x: eps = sqrt(2 T log(1/d')) e' + T e'^2;
* "zcdp": rho = T r with a step's r from e', eps = rho + 2 sqrt(rho log(1/delta)).

The paper's numbers (sigma = 10.88 and 3.23 at epsilon 0.5 on MNIST) do not follow if T is the number
of steps. They follow if T is the number of passes over the data, and more than one reading gives them.
The readings here are best guesses that were found by search; `READINGS` lists them. Neither claim is a
theorem: composition over passes leaves out N/S - 1 of N/S steps, and an amplified (e', d')-mechanism
has no finite zCDP parameter.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar

from tfdp._validate import one_of
from tfdp.accounting import noise_tables
from tfdp.accounting.analysis import Analysis
from tfdp.accounting.claims import Claim
from tfdp.accounting.mechanisms.dpsgd import DPSGD
from tfdp.accounting.run import Run

_ASSUMPTION = (
    "The noise on the clipped sum has the same standard deviation in every weight, whatever the "
    "weights are; dropout rates are read off it, not the other way round."
)


@dataclasses.dataclass(frozen=True)
class Reading:
    """One reading of the paper's recipe: `split` maps (delta, T, nu) to (d', d_it).

    `zcdp`: whether steps are composed as zCDP, and not by advanced composition; `by_proposition`:
    whether Proposition 2 then converts e' into r; `per_step`: whether T counts steps, and not passes.
    """

    words: str
    split: Callable[[float, int, float], tuple[float, float]]
    zcdp: bool
    by_proposition: bool = False
    per_step: bool = False


READINGS = {
    "ac": Reading(
        "T passes, delta = T d_it + d' in equal parts", lambda d, t, nu: (d / (t + 1),) * 2, False
    ),
    "ac_as_printed": Reading(
        "T steps, d' = delta/2, d_it = (delta - d')/(T nu)",
        lambda d, t, nu: (d / 2, d / 2 / (t * nu)), False, per_step=True,
    ),
    "zcdp": Reading(
        "T passes, e' by Proposition 2, d' = nu delta, d_it = delta/T",
        lambda d, t, nu: (nu * d, d / t), True, True,
    ),
    "zcdp_a": Reading(
        "T passes, e' by the Gaussian mechanism, d_it = delta, d' = nu delta (the paper's sigma at "
        "delta = 1e-6)",
        lambda d, t, nu: (nu * d, d), True,
    ),
    "zcdp_c": Reading(
        "T passes, e' by Proposition 2, d' = d_it = delta/(2T)",
        lambda d, t, nu: (d / (2 * t),) * 2, True, True,
    ),
    "zcdp_as_printed": Reading(
        "T steps, e' by the Gaussian mechanism, d' = delta, d_it = delta/nu",
        lambda d, t, nu: (d, d / nu), True, per_step=True,
    ),
}  # fmt: skip


def claimed_sigma_epsilon(
    sigma: float, delta: float, steps: int, probability: float, reading: str
) -> float:
    """Epsilon that a reading gives for the paper's sigma; infinite if that is no useful number."""
    choice = READINGS[reading]
    count = steps if choice.per_step else max(1, math.ceil(steps * probability - 1e-9))
    if steps == 0:
        return 0.0
    d_prime, d_iter = choice.split(delta, count, probability)
    if sigma == 0 or not d_iter < 1.25:
        return math.inf
    e_iter = math.sqrt(2 * math.log(1.25 / d_iter)) / sigma
    if e_iter > 700:
        return math.inf
    step = math.log1p(probability * math.expm1(e_iter))
    if not choice.zcdp:
        return math.sqrt(2 * count * math.log(1 / d_prime)) * step + count * step * step
    if choice.by_proposition:
        tail = math.log(1 / d_prime)
        # Solves r + 2 sqrt(r tail) = step for r in a form without cancellation.
        rho = (step / (math.sqrt(tail + step) + math.sqrt(tail))) ** 2
    else:
        rho = step * step / (4 * math.log(1.25 / d_prime))
    return count * rho + 2 * math.sqrt(count * rho * math.log(1 / delta))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DPDropout(DPSGD):
    """DP-SGD with noise of standard deviation 2 C sigma, and the dropout paper's claim.

    Attributes:
      composition: Name of the reading in `READINGS` that the claim follows; None for the class's
        `default_reading`.
    """

    composition: str | None = None

    name: ClassVar[str] = "dp_dropout"
    summary: ClassVar[str] = "Langevin steps whose noise is read as dropout"
    settings: ClassVar[tuple[str, ...]] = ("learning_rate_exponent", "composition")
    update_rules: ClassVar[str] = "own"
    claim_assumptions: ClassVar[tuple[str, ...]] = (
        "The paper's recipe in the reading that reproduces its published noise (a best guess): it "
        "composes over passes instead of steps, and treats clipping by layers as clipping once.",
    )
    default_reading: ClassVar[str] = "ac"

    def __post_init__(self):
        super().__post_init__()
        if self.composition is not None:
            one_of("composition", self.composition, tuple(READINGS))

    def analyse(self, run: Run, delta: float, adjacency: str) -> Analysis:
        sigma = {"sigma": self._sigma(run.steps)}
        return super().analyse(run, delta, adjacency).also(_ASSUMPTION, details=sigma)

    def claimed_rdp(self, run: Run) -> None:
        """Returns None, because the claim is a recipe for epsilon and not a Rényi divergence."""

    def claimed_epsilon(self, run: Run, delta: float) -> Claim:
        """Epsilon of the paper's recipe. The recipe has one sigma; of a table, the least is used."""
        reading = self.composition or self.default_reading
        sigma = self._sigma(run.steps)
        probability = run.sampling.lot_size / run.sampling.num_examples
        epsilon = claimed_sigma_epsilon(sigma, delta, run.steps, probability, reading)
        details = {"composition": reading, "reading": READINGS[reading].words, "sigma": sigma}
        return Claim(epsilon, details, "No (or next to no) noise was added.")

    def _sigma(self, steps: int) -> float:
        return noise_tables.least(self.noise_multiplier, steps) / 2
