"""Proven analysis of encoded gradients, which codebook vectors bound entry by entry, with any noise.

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
"""

import functools

import numpy as np

from tfdp.accounting import gaussian_steps, noise_tables
from tfdp.accounting.analysis import Analysis
from tfdp.accounting.encoding import Encoding, normal_quantiles
from tfdp.accounting.mechanisms import DiscreteSGD
from tfdp.accounting.numerics import renyi_of_noise
from tfdp.accounting.numerics.noise_families import GAUSSIAN
from tfdp.accounting.numerics.privacy_loss import ORDERS, RenyiLoss
from tfdp.accounting.run import Run


def prove(run: Run, delta: float, adjacency: str) -> Analysis:
    """The theorem of encoded gradients: that of DP-SGD for Gaussian noise, else Theorem C."""
    assert isinstance(run.mechanism, DiscreteSGD)
    encoding, noise = run.mechanism.encoding, run.mechanism.noise_multiplier
    if encoding.noise == GAUSSIAN:
        return gaussian_steps.prove(run, delta, adjacency)
    q, scales = run.sampling.probability, noise_tables.levels(noise, run.steps)
    losses = tuple(
        RenyiLoss(tuple(step_divergences(encoding, scale, q, ORDERS)), count)
        for scale, count in scales
    )
    details = {"K_2": max(float(_moments(encoding, scale)[0]) for scale, _ in scales)}
    return Analysis(losses, secret_sample=q < 1, details=details)


@functools.lru_cache(maxsize=128)
def _moments(encoding: Encoding, scale: float) -> np.ndarray:
    """K_k at `renyi_of_noise.ORDERS`."""
    family, nu, largest = encoding.noise, encoding.degrees_of_freedom, encoding.largest_entry
    if largest is None:
        assert encoding.num_weights is not None  # it may be open with a largest entry only
        shifts = normal_quantiles(encoding.num_weights) / scale
        return renyi_of_noise.corner(family, shifts, degrees_of_freedom=nu)
    return renyi_of_noise.unit_norm(family, 1 / scale, largest / scale, degrees_of_freedom=nu)


def step_divergences(
    encoding: Encoding, scale: float, probability: float, orders: tuple
) -> np.ndarray:
    """Rényi divergences of one step; infinite where the moments are not known."""
    return renyi_of_noise.subsampled(_moments(encoding, scale), probability, orders)
