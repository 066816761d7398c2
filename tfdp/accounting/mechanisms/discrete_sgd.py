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
longer than the clip norm, so the mechanism is DP-SGD.

Noise that is not Gaussian has no proven pair for replace_one, microbatches and users of several
examples: two encoded gradients differ by up to twice the corner, but their permutations differ, and a
Poisson lot involves three distributions. Group privacy covers these cases in Poisson lots, by Theorem C
for each term that is left out or put in. The following cases are not proven, so their epsilon is
infinite:

* Noise that is not Gaussian with other samplings.
* Codebooks fitted to private gradients, normalization statistics over the private lot, and clipping
  in several groups of weights.

The scale of the noise may differ from step to step. All steps of one scale form one privacy loss. These
losses compose, because Poisson lots of different steps are independent.

The paper's Lemma 4 has the prefactor 1/(1 - order); the claim uses it with the sign corrected.
"""

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np

from tfdp._validate import instance
from tfdp.accounting import claims, gaussian_steps, noise_tables
from tfdp.accounting.analysis import Analysis
from tfdp.accounting.assumptions import SECRET_SAMPLE, Declared
from tfdp.accounting.encoding import Encoding, normal_quantiles
from tfdp.accounting.mechanisms.base import NoisyMechanism
from tfdp.accounting.mechanisms.dpsgd import DPSGD
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
      encoding: Codebook and family of the noise.
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
    released: ClassVar[str] = DPSGD.released
    claim_assumptions: ClassVar[tuple[str, ...]] = (
        "The paper's Lemma 5 at whole orders, with 1/(1 - order) corrected to 1/(order - 1), and "
        "the classic conversion, as if every step were a Poisson lot.",
    )

    def __post_init__(self):
        super().__post_init__()
        instance("encoding", self.encoding, Encoding, remedy="Pass tfdp.accounting.Encoding(...).")

    def nothing_proven(self, run: Run, adjacency: str) -> str | None:
        return super().nothing_proven(run, adjacency) or self._not_covered(run, adjacency)

    def _not_covered(self, run: Run, adjacency: str) -> str | None:
        """Reason why neither proof of this module covers `run`, or None."""
        contribution, noise = run.contribution, self.encoding.noise
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
        if noise == GAUSSIAN:
            return None
        if contribution.max_examples_per_user > 1:
            return (
                f"For {noise} noise nothing is proven for all examples of a user together. Use "
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
                f"With {noise} noise the theorem is for Poisson lots only, and the sampling "
                f"was {run.sampling.name!r}. Draw Poisson lots."
            )
        if adjacency == "replace_one":
            return (
                f"For {noise} noise no dominating pair is proven where a record is replaced. "
                "Use adjacency zero_out, or Gaussian noise."
            )
        return None

    def analyse(self, run: Run, delta: float, adjacency: str) -> Analysis:
        if self.encoding.noise == GAUSSIAN:
            found = gaussian_steps.analyse_sums(run, self.noise_multiplier, delta, adjacency)
        else:
            found = self._by_theorem_c(run)
        return found.also(
            Declared(
                f"The codebook does not depend on the private data: {self.encoding.describe()}."
            ),
            "Every clipped gradient was encoded by itself, and denoising saw only the noisy sum.",
        )

    def _by_theorem_c(self, run: Run) -> Analysis:
        q, scales = run.sampling.probability, noise_tables.levels(self.noise_multiplier, run.steps)
        losses = tuple(
            RenyiLoss(tuple(step_divergences(self.encoding, scale, q, ORDERS)), count)
            for scale, count in scales
        )
        details = {
            "amplification": "secrecy of the sample" if q < 1 else "no",
            "sampling_probability": q,
            "K_2": max(float(_moments(self.encoding, scale)[0]) for scale, _ in scales),
        }
        return Analysis(losses, (SECRET_SAMPLE,) if q < 1 else (), details=details)

    def noise_sentence(self, steps: int) -> str:
        if self.encoding.noise == GAUSSIAN:
            return super().noise_sentence(steps)
        nu = self.encoding.degrees_of_freedom
        freedom = "" if nu is None else f" with {nu:g} degrees of freedom"
        return (
            f"The noise is {self.encoding.noise}{freedom}, independent in every weight and secret."
        )

    def noise_words(self, steps: int) -> str:
        nu = self.encoding.degrees_of_freedom
        freedom = "" if nu is None else f" ({nu:g} degrees of freedom)"
        scale = noise_tables.words(self.noise_multiplier, steps)
        return f", {self.encoding.noise}{freedom} noise of scale {scale}"

    def claimed_rdp(self, run: Run) -> np.ndarray:
        """Divergences by the paper's Theorem 1, with the sign corrected, at `claims.ORDERS_2020`."""
        total = np.zeros(len(claims.ORDERS_2020))
        if run.steps and noise_tables.least(self.noise_multiplier, run.steps) == 0:
            return total + math.inf
        probability = run.sampling.lot_size / run.sampling.num_examples
        for scale, count in noise_tables.levels(self.noise_multiplier, run.steps):
            step = step_divergences(self.encoding, scale, probability, claims.ORDERS_2020)
            total = total + count * step
        return total


@functools.lru_cache(maxsize=128)
def _moments(encoding: Encoding, scale: float) -> np.ndarray:
    """K_k at `renyi_of_noise.ORDERS`."""
    family, nu, largest = encoding.noise, encoding.degrees_of_freedom, encoding.largest_entry
    if largest is None:
        shifts = normal_quantiles(encoding.num_weights) / scale
        return renyi_of_noise.corner(family, shifts, degrees_of_freedom=nu)
    return renyi_of_noise.unit_norm(family, 1 / scale, largest / scale, degrees_of_freedom=nu)


def step_divergences(
    encoding: Encoding, scale: float, probability: float, orders: tuple
) -> np.ndarray:
    """Rényi divergences of one step; infinite where the moments are not known."""
    return renyi_of_noise.subsampled(_moments(encoding, scale), probability, orders)
