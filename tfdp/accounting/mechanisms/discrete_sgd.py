"""Gradient encoding: codebook vectors that bound a gradient entry by entry, and noise of any family.

The encoded gradient of one example lies in the box below a permuted vector of the codebook. The noise
is independent in every coordinate, with a symmetric density that decreases away from 0.

Theorem C. For such a density every hockey-stick divergence of z(. - t) from z grows with |t|, since
level sets are intervals around t and 0. So a Markov kernel maps the pair of a corner to the pair of
any point of its box, kernels act coordinate by coordinate and on mixtures, and

    (1-q) P_0 + q P_corner   against   P_0

dominates, in both orders, the change of one Poisson lot under zero_out (or adding and removing). The
worst corner is chosen for each Rényi order separately.

Two cases are proven. One is Theorem C, for Poisson lots of single examples and a codebook that does
not depend on the data. The other is Gaussian noise with any sampling: an encoded gradient is no
longer than the longest vector of the codebook, so the mechanism is DP-SGD. The following cases are not
proven, so their epsilon is infinite:

* replace_one with noise that is not Gaussian. Two encoded gradients differ by up to twice the corner,
  but their permutations differ, and a Poisson lot involves three distributions; there is no proof of
  a dominating pair.
* Noise that is not Gaussian with microbatches of several examples or with other samplings.
* Codebooks fitted to private gradients, normalization statistics over the private lot, and clipping
  in several groups of weights.

The paper's Theorem 1 writes Z_t: scale and family of the noise may differ from step to step. All steps
of one family and scale form one privacy loss. These losses compose, because Poisson lots of different
steps are independent.

The paper's Lemma 4 has the prefactor 1/(1 - order); the claim uses it with the sign corrected.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tfdp._validate import instance
from tfdp.accounting import claims, gaussian_steps, noise_tables
from tfdp.accounting.analysis import SECRET_SAMPLE, Analysis
from tfdp.accounting.encoding import Encoding, Family
from tfdp.accounting.mechanisms.base import NoisyMechanism
from tfdp.accounting.mechanisms.dpsgd import DPSGD
from tfdp.accounting.noise_tables import Noise
from tfdp.accounting.numerics import renyi_of_noise
from tfdp.accounting.numerics.noise_families import GAUSSIAN, STUDENT_T
from tfdp.accounting.numerics.privacy_loss import ORDERS, RenyiLoss
from tfdp.accounting.run import Run
from tfdp.accounting.sampling import Poisson

# The family of the paper's experiments, which is the default of the optimizer, too.
USUAL_NOISE, USUAL_DEGREES_OF_FREEDOM = STUDENT_T, 9.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiscreteSGD(NoisyMechanism):
    """Encoded gradients with noise of any family.

    Attributes:
      noise_multiplier: Scale of the noise over the clip norm, constant or per step.
      encoding: Codebook and family of the noise; the family may be a table over steps.
    """

    encoding: Encoding

    name: ClassVar[str] = "discrete_sgd"
    summary: ClassVar[str] = "encoded gradients, noise of any family, and denoising"
    settings: ClassVar[tuple[str, ...]] = (
        "noise",
        "degrees_of_freedom",
        "encode",
        "denoise",
        "codebook_size",
        "noise_decay",
    )
    other_noise_needs: ClassVar[str] = "poisson"
    released: ClassVar[str] = DPSGD.released
    claim_assumptions: ClassVar[tuple[str, ...]] = (
        "The paper's Lemma 5 at whole orders, with 1/(1 - order) corrected to 1/(order - 1), and "
        "the classic conversion, as if every step were a Poisson lot.",
    )
    compounds: ClassVar[dict[str, type]] = {"encoding": Encoding}
    options: ClassVar[tuple[str, ...]] = (
        "num_weights",
        "noise",
        "degrees_of_freedom",
        "largest_entry",
    )

    def __post_init__(self):
        super().__post_init__()
        remedy = "Pass tfdp.accounting.Encoding(...)."
        instance("encoding", self.encoding, Encoding, remedy=remedy)

    def check(self, run: Run) -> None:
        super().check(run)
        self.encoding.check(run.steps)

    def described_steps(self) -> int | None:
        lengths = [super().described_steps(), self.encoding.described_steps()]
        return min((n for n in lengths if n is not None), default=None)

    def past(self, steps: int) -> dict[str, Any]:
        return super().past(steps) | {"encoding": self.encoding.past(steps)}

    def nothing_proven(self, run: Run, adjacency: str) -> str | None:
        return super().nothing_proven(run, adjacency) or self._not_covered(run, adjacency)

    def _not_covered(self, run: Run, adjacency: str) -> str | None:
        """Reason why neither proof of this module covers `run`, or None."""
        contribution = run.contribution
        if self.encoding.private_codebook:
            return (
                "The codebook was fitted to private gradients, which releases them without noise. "
                "Use a codebook drawn at random or fitted to public data."
            )
        if contribution.batch_statistics:
            return (
                "Normalization statistics were taken over the private lot, so one record changes "
                "the encoding of every other. Use layer normalization or public statistics."
            )
        if contribution.clip_groups > 1:
            return (
                f"Gradients were clipped in {contribution.clip_groups} groups, which one codebook "
                "of the whole gradient does not describe."
            )
        others = [family for family, _ in self.encoding.families(run.steps) if family != GAUSSIAN]
        if not others:
            return None
        if contribution.max_examples_per_user > 1:
            return (
                f"For {others[0]} noise nothing is proven for all examples of a user together. Use "
                "Gaussian noise, or max_examples_per_user=1."
            )
        if contribution.microbatch_size > 1:
            return (
                f"Microbatches of {contribution.microbatch_size} examples were encoded together: "
                "one record moves the code from one point of the box to another, which Theorem C "
                "does not cover. Use microbatch_size 1."
            )
        if not isinstance(run.sampling, Poisson):
            return (
                f"With {others[0]} noise the theorem is for Poisson lots only, and the sampling "
                f"was {run.sampling.name!r}. Draw Poisson lots."
            )
        if adjacency == "replace_one":
            return (
                f"For {others[0]} noise no dominating pair is proven where a record is replaced. "
                "Use adjacency zero_out, or Gaussian noise."
            )
        return None

    def analyse(self, run: Run, delta: float, adjacency: str) -> Analysis:
        pieces = self._pieces(run.steps)
        found = Analysis()
        if (GAUSSIAN, None) in pieces:
            noise, steps = pieces.pop((GAUSSIAN, None))
            # An encoded gradient has at most the norm of the longest vector of the codebook, so
            # this norm takes the place of the clip norm.
            noise = noise_tables.scaled(noise, 1 / (self.encoding.norm or 1.0))
            found = gaussian_steps.analyse_sums(run, noise, delta, adjacency, steps)
        if pieces:
            found = self._with_others(found, run, pieces)
        return dataclasses.replace(found, assumptions=(*found.assumptions, *self._assumptions(run)))

    def _pieces(self, steps: int) -> dict[Family, tuple[Noise, int]]:
        """Maps each family of the first `steps` steps to (scales of its noise, number of its steps)."""
        noise = noise_tables.of_steps(self.noise_multiplier, steps)
        counts, scales, done = collections.Counter(), collections.defaultdict(tuple), 0
        for family, count in self.encoding.runs_of_families(steps):
            counts[family] += count
            if isinstance(noise, tuple):
                scales[family] += noise[done : done + count]
            done += count
        return {family: (scales.get(family, noise), counts[family]) for family in counts}

    def _with_others(self, found: Analysis, run: Run, pieces: dict) -> Analysis:
        """Adds the losses of the steps whose noise is not Gaussian to `found`."""
        q = run.sampling.probability
        losses, k_2 = [], 0.0
        for family, (noise, steps) in pieces.items():
            encoding = self.encoding.of_family(*family)
            for scale, count in noise_tables.levels(noise, steps):
                divergences = step_divergences(encoding, scale, q, ORDERS)
                losses.append(RenyiLoss(tuple(divergences), count))
                k_2 = max(k_2, float(_moments(encoding, scale)[:, 0].max()))
        details = {
            "amplification": "secrecy of the sample" if q < 1 else "no",
            "sampling_probability": q,
            "K_2": k_2,
        }
        secret = (SECRET_SAMPLE,) if q < 1 and SECRET_SAMPLE not in found.assumptions else ()
        return Analysis(
            (*found.losses, *losses), (*found.assumptions, *secret), details=found.details | details
        )

    def _assumptions(self, run: Run) -> tuple[str, ...]:
        alone = run.contribution.microbatch_size == 1
        return (
            f"The codebook does not depend on the private data: {self.encoding.describe()}.",
            f"Every {'example' if alone else 'microbatch'} was encoded by itself, and denoising saw "
            "nothing but the noisy sum.",
        )

    def noise_sentence(self, steps: int) -> str:
        families = self.encoding.families(steps)
        if [family for family, _ in families] == [GAUSSIAN]:
            return super().noise_sentence(steps)
        words = " or ".join(_family(*family) for family in families)
        return (
            f"The noise is {words}, independent in every weight and secret; attacks on "
            "floating-point sampling are not covered."
        )

    def noise_words(self, steps: int) -> str:
        words = [
            family + (f" ({nu:g} degrees of freedom)" if nu else "")
            for family, nu in self.encoding.families(steps)
        ]
        scale = noise_tables.words(self.noise_multiplier, steps)
        return f", {' or '.join(words)} noise of scale {scale}"

    def claimed_rdp(self, run: Run) -> np.ndarray:
        """Divergences by the paper's Theorem 1, with the sign corrected, at `claims.ORDERS_2020`."""
        total = np.zeros(len(claims.ORDERS_2020))
        if noise_tables.bare_step(self.noise_multiplier, run.steps) is not None:
            return total + math.inf
        probability = run.sampling.lot_size / run.sampling.num_examples
        for family, (noise, steps) in self._pieces(run.steps).items():
            encoding = self.encoding.of_family(*family)
            for scale, count in noise_tables.levels(noise, steps):
                step = step_divergences(encoding, scale, probability, claims.ORDERS_2020)
                total = total + count * step
        return total

    @classmethod
    def usual_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        chosen = super().usual_options(options)
        if chosen.get("noise") is None:
            chosen["noise"] = USUAL_NOISE
        if chosen["noise"] == STUDENT_T and chosen.get("degrees_of_freedom") is None:
            chosen["degrees_of_freedom"] = USUAL_DEGREES_OF_FREEDOM
        if chosen.get("num_weights") is None and chosen.get("largest_entry") is None:
            # This describes every codebook of unit vectors, whatever their length.
            chosen["largest_entry"] = 1.0
        return chosen

    @classmethod
    def from_options(cls, options: Mapping[str, Any], steps: int) -> dict[str, Any]:
        del steps
        chosen = cls.usual_options({name: options.get(name) for name in cls.options})
        return {"encoding": Encoding(**chosen)}


def _family(family: str, nu: float | None) -> str:
    return family if nu is None else f"{family} with {nu:g} degrees of freedom"


@functools.lru_cache(maxsize=128)
def _moments(encoding: Encoding, scale: float) -> np.ndarray:
    """K_k at `renyi_of_noise.ORDERS`, one row for each vector; one row if only the norm is known."""
    family, nu = encoding.noise, encoding.degrees_of_freedom
    if encoding.largest_entry is not None:
        bound = renyi_of_noise.unit_norm(
            family, 1 / scale, encoding.largest_entry / scale, degrees_of_freedom=nu
        )
        return bound[None, :]
    return np.array(
        [
            renyi_of_noise.corner(family, corner / scale, degrees_of_freedom=nu)
            for corner in encoding.magnitudes()
        ]
    )


def step_divergences(
    encoding: Encoding, scale: float, probability: float, orders: tuple
) -> np.ndarray:
    """Rényi divergences of one step: the worst vector of the codebook at every order.

    Args:
      encoding: Codebook and one family of noise.
      scale: Scale of the noise over the clip norm.
      probability: Sampling probability in (0, 1].
      orders: Orders of the divergence.

    Returns:
      One divergence per order; infinite for every order that is not a whole number from 2 to 64.
    """
    return np.max(
        [
            renyi_of_noise.subsampled(moments, probability, orders)
            for moments in _moments(encoding, scale)
        ],
        axis=0,
    )
