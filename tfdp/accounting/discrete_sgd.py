"""Gradient encoding: codebook vectors that bound a gradient entry by entry, and noise of any family.

The encoded gradient of one example lies in the box below a permuted vector of the codebook, and the
noise is independent in every coordinate with a symmetric density that falls away from 0.

Theorem C. For such a density every hockey-stick divergence of z(. - t) from z grows with |t|, since
level sets are intervals around t and 0. So a Markov kernel maps the pair of a corner to the pair of
any point of its box, kernels act coordinate by coordinate and on mixtures, and

    (1-q) P_0 + q P_corner   against   P_0

dominates what zero_out (or adding and removing) changes in one Poisson lot, both ways round. Which
corner is worst is decided per Rényi order.

Proven: that, for Poisson lots of single examples and a codebook that does not depend on the data;
Gaussian noise however the lots are drawn, because an encoded gradient is no longer than the longest
vector, so that this is DP-SGD. Not proven, hence infinite:

* replace_one with other noise. Two encoded gradients differ by up to twice the corner, but permuted
  against each other, and with Poisson lots three distributions meet; there is no proof of a
  dominating pair.
* Microbatches of several examples, other samplings, codebooks fitted to private gradients.

The paper's Lemma 4 has the prefactor 1/(1 - order); the claim uses it with the sign corrected.
"""

import functools
import math

import numpy as np

from tfdp.accounting import claims, dpsgd, rdp_of_noise
from tfdp.accounting.analysis import (
    Analysis,
    check_adjacency_fits,
    common_assumptions,
    lots_may_be_cut,
)
from tfdp.accounting.encoding import Encoding
from tfdp.accounting.privacy_loss import RenyiLoss
from tfdp.accounting.run import Run
from tfdp.accounting.subsampled import default_orders

RELEASED = dpsgd.RELEASED
CLAIM_ASSUMPTIONS = (
    "The paper's Lemma 5 at whole orders, with 1/(1 - order) corrected to 1/(order - 1), and the "
    "classic conversion, as if every step were a Poisson lot.",
)


def analyse(run: Run, delta: float, adjacency: str) -> Analysis:
    """Translates a run with encoded gradients into privacy losses.

    Args:
      run: The run, with mechanism "discrete_sgd".
      delta: Decides how much tail mass is left out.
      adjacency: Neighbouring relation.

    Returns:
      An `Analysis`; `reason` is set where nothing finite is proven.

    Raises:
      ValueError: Where the adjacency is not defined for the run's sampling.
    """
    check_adjacency_fits(run, adjacency)
    reason = _no_guarantee(run, adjacency)
    if reason:
        return Analysis((), RELEASED, (), reason=reason)
    encoding = run.encoding
    assumptions = (
        f"The codebook does not depend on the private data: {encoding.describe()}.",
        f"Every {'example' if run.microbatch_size == 1 else 'microbatch'} was encoded by itself, and "
        "denoising saw nothing but the noisy sum.",
    )
    if encoding.noise == "gaussian":
        scale = run.noise_multiplier / encoding.norm if encoding.norm else 0.0
        plain = run.with_(mechanism="dpsgd", encoding=None, noise_multiplier=scale)
        found = dpsgd.analyse(plain, delta, adjacency)
        return Analysis(
            found.losses, RELEASED, (*found.assumptions, *assumptions), found.reason, found.details
        )
    words = common_assumptions(run)
    noise = f"The noise is {_words(encoding)}, independent in every weight and secret; attacks on "
    words = tuple(noise + s.split("attacks on ")[1] if "is Gaussian" in s else s for s in words)
    q = run.sampling_probability
    # In a full lot the record would displace another one; that it is drawn into one at all is
    # charged to delta.
    overflow = q * dpsgd.chance_of_cut(run) if lots_may_be_cut(run) else 0.0
    draws = int(run.schedule("draws").max(initial=1))
    divergences = draws_divergences(encoding, run.noise_multiplier, q, default_orders(), draws)
    details = {
        "amplification": "secrecy of the sample" if q < 1 else "none",
        "sampling_probability": q,
        "K_2": float(_moments(encoding, run.noise_multiplier)[:, 0].max()) * draws,
    }
    loss = RenyiLoss(tuple(divergences), run.steps, overflow)
    assumptions += ("Which examples were in a lot stays secret.",) if q < 1 else ()
    return Analysis((loss,), RELEASED, (*words, *assumptions), details=details)


def _no_guarantee(run: Run, adjacency: str) -> str | None:
    """Why nothing finite is proven for `run`, or None."""
    encoding = run.encoding
    if run.noise_multiplier == 0:
        return "No noise was added (noise_multiplier is 0)."
    if encoding.private_codebook:
        return (
            "The codebook was fitted to private gradients, which releases them without noise. Use "
            "a codebook drawn at random or fitted to public data."
        )
    if run.batch_statistics:
        return (
            "Normalization statistics were taken over the private lot, so one record changes the "
            "encoding of every other. Use layer normalization or public statistics."
        )
    if run.clip_groups > 1:
        return (
            f"Gradients were clipped in {run.clip_groups} groups, which one codebook of the whole "
            "gradient does not describe."
        )
    if encoding.noise == "gaussian":
        return None
    if run.microbatch_size > 1:
        return (
            f"Microbatches of {run.microbatch_size} examples were encoded together: one record "
            "moves the code from one point of the box to another, which Theorem C does not cover. "
            "Use microbatch_size 1."
        )
    if run.sampling != "poisson":
        return (
            f"With {encoding.noise} noise the theorem is for Poisson lots only, and the sampling "
            f"was {run.sampling!r}. Draw Poisson lots."
        )
    if adjacency == "replace_one":
        return (
            f"For {encoding.noise} noise no dominating pair is proven where a record is replaced. "
            "Use adjacency zero_out, or Gaussian noise."
        )
    return None


def _words(encoding: Encoding) -> str:
    nu = encoding.degrees_of_freedom
    return encoding.noise if nu is None else f"{encoding.noise} with {nu:g} degrees of freedom"


@functools.lru_cache(maxsize=128)
def _moments(encoding: Encoding, scale: float) -> np.ndarray:
    """K_k at `rdp_of_noise.ORDERS`, one row for each vector of the codebook."""
    family, nu = encoding.noise, encoding.degrees_of_freedom
    if encoding.largest_entry is not None:
        bound = rdp_of_noise.unit_norm(
            family, 1 / scale, encoding.largest_entry / scale, degrees_of_freedom=nu
        )
        return bound[None, :]
    return np.array(
        [
            rdp_of_noise.corner(family, corner / scale, degrees_of_freedom=nu)
            for corner in encoding.magnitudes()
        ]
    )


def draws_divergences(
    encoding: Encoding, scale: float, probability: float, orders: tuple, draws: int = 1
) -> np.ndarray:
    """Rényi divergences of one step: the worst vector of the codebook at every order.

    Args:
      encoding: Codebook and noise.
      scale: Scale of the noise over the clip norm.
      probability: Sampling probability in (0, 1].
      orders: Orders; infinite where nothing is known (others than whole ones from 2 to 64).
      draws: Independent noise draws around one sum (their K_k add).
    """
    return np.max(
        [
            rdp_of_noise.subsampled(draws * moments, probability, orders)
            for moments in _moments(encoding, scale)
        ],
        axis=0,
    )


def claimed_rdp(run: Run) -> np.ndarray:
    """The paper's Theorem 1 (sign corrected) at `claims.ORDERS_2020`."""
    if run.steps == 0:
        return np.zeros(len(claims.ORDERS_2020))
    if run.noise_multiplier == 0:
        return np.full(len(claims.ORDERS_2020), math.inf)
    return run.steps * draws_divergences(
        run.encoding, run.noise_multiplier, run.lot_size / run.num_examples, claims.ORDERS_2020
    )
