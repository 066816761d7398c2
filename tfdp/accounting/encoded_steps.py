"""Proven analysis of encoded gradients, with noise of any family.

The encoded gradient of one example lies in the box below a permuted vector of the codebook: its norm
and its entries are at most those of some vector. The noise is independent in every coordinate, with a
symmetric density that decreases away from 0.

Let the vectors of a codebook have norm at most 1 and entries of at most m. Then a change of j terms is
j sqrt(b)-GDP, with the b of `noise_scores`. Further:

* Such changes add up over steps like those of Gaussian noise.
* Mixtures of shifts on a line are no easier to tell apart than those of Gaussian noise.
* In random allocation of a record that is left out, a Markov kernel for each lot maps Gaussian noise
  with and without the record to noise of the family.

Hence the theorems of DP-SGD hold for the noise over sqrt(b). There are two exceptions, whose proofs in
`gaussian_steps` compare more than two shifts in several lots at once: random allocation of replaced
records, and groups that take turns with users of several records.

b is the Fisher information of the noise, times 1.001 for thousands of entries of similar size, and
times up to 1.57 where one entry can have the whole norm. For few or large entries, there are two other
bounds, with Poisson lots of single examples and terms that are left out (or added):

* One vector: Theorem C. For a symmetric density that decreases away from 0, every hockey-stick
  divergence of z(. - t) from z grows with |t|, since level sets are intervals around t and 0. So a
  Markov kernel maps the pair of a corner to the pair of any point of its box, and kernels act
  coordinate by coordinate and on mixtures. The pair of the corner is in `shifted_noise`: its largest
  entries one by one, all others by their b.
* Any vectors: Rényi divergences (`renyi_of_noise`), whose worst vector is chosen for each order.
  They alone are proven for Student's t with less than 1 or more than 12 degrees of freedom.

Not proven, with an infinite epsilon: codebooks fitted to private gradients, normalization statistics
over the private lot, and clipping in several groups of weights.
"""

import dataclasses
import functools
import math

import numpy as np

from tfdp.accounting import gaussian_steps, noise_tables
from tfdp.accounting.analysis import Analysis
from tfdp.accounting.encoding import Encoding
from tfdp.accounting.mechanisms import DiscreteSGD
from tfdp.accounting.numerics import noise_scores, renyi_of_noise
from tfdp.accounting.numerics.noise_families import GAUSSIAN
from tfdp.accounting.numerics.pairs import Component
from tfdp.accounting.numerics.privacy_loss import ORDERS, RenyiLoss
from tfdp.accounting.numerics.shifted_noise import Shifts
from tfdp.accounting.numerics.subsampled import SubsampledLoss
from tfdp.accounting.run import Run
from tfdp.accounting.sampling import Poisson

# Square of the norm over the largest entry from which b is within 1% of the Fisher information, and
# the largest number of different entries that count one by one below it.
_MANY, _ONE_BY_ONE = 200, 32


def prove(run: Run, delta: float, adjacency: str) -> Analysis:
    """Returns the privacy losses by the theorem of DP-SGD for a multiple of the noise, or Theorem C."""
    assert isinstance(run.mechanism, DiscreteSGD)
    encoding, noise = run.mechanism.encoding, run.mechanism.noise_multiplier
    if encoding.noise == GAUSSIAN:
        return gaussian_steps.prove(run, delta, adjacency)
    if not noise_scores.are_covered(encoding.degrees_of_freedom):
        return _by_divergences(run)
    shifts = _shifts(encoding)
    unit = math.sqrt(square(encoding))
    table = tuple(z / unit for z in noise) if isinstance(noise, tuple) else noise / unit
    found = [gaussian_steps.analyse_sums(run, table, delta, adjacency)]
    contribution, q = run.contribution, run.sampling.probability
    alone = contribution.max_examples_per_user == 1 and not contribution.replaces(adjacency)
    if shifts is not None and alone and isinstance(run.sampling, Poisson):
        if not shifts.values:
            found.append(_by_divergences(run))
        else:
            losses = tuple(
                SubsampledLoss((Component(1.0, q, scale, "shifted_noise", shifts=shifts),), count)
                for scale, count in noise_tables.levels(noise, run.steps)
            )
            found.append(Analysis(losses, secret_sample=q < 1))
    details = {"gaussian_noise": noise_tables.least(table, run.steps)}
    return dataclasses.replace(gaussian_steps.smallest(found, delta), details=details)


def _by_divergences(run: Run) -> Analysis:
    """Theorem C for any vectors, by Rényi divergences."""
    assert isinstance(run.mechanism, DiscreteSGD)
    encoding, q = run.mechanism.encoding, run.sampling.probability
    losses = tuple(
        RenyiLoss(tuple(step_divergences(encoding, scale, q, ORDERS)), count)
        for scale, count in noise_tables.levels(run.mechanism.noise_multiplier, run.steps)
    )
    return Analysis(losses, secret_sample=q < 1)


def square(encoding: Encoding) -> float:
    """Returns the b of noise of scale 1, for clip norm 1."""
    largest, norm = encoding.bound, 1.0
    if encoding.vector is None and encoding.num_weights is not None:
        norm = min(encoding.num_weights * largest**2, 1.0)
    return noise_scores.square_of(encoding.noise, encoding.degrees_of_freedom, norm, largest)


@functools.lru_cache(maxsize=16)
def _shifts(encoding: Encoding) -> Shifts | None:
    """The shifts of a codebook. They have no values for any vectors; None if b is accurate enough."""
    family, nu, entries = encoding.noise, encoding.degrees_of_freedom, encoding.vector
    if encoding.bound**-2 >= _MANY:
        return None
    if entries is None:
        return Shifts(family, nu, ())
    values, counts = np.unique(entries[entries > 0], return_counts=True)
    rest, large = values[:-_ONE_BY_ONE], slice(-_ONE_BY_ONE, None)
    norm = float(np.einsum("i,i", counts[: len(rest)], rest**2))
    together = noise_scores.square_of(family, nu, norm, rest.max(initial=1e-9))
    one_by_one = zip(values[large].tolist(), counts[large].tolist(), strict=True)
    return Shifts(family, nu, tuple(one_by_one), together)


@functools.lru_cache(maxsize=128)
def _moments(encoding: Encoding, scale: float) -> np.ndarray:
    """K_k at `renyi_of_noise.ORDERS`."""
    family, nu, vector = encoding.noise, encoding.degrees_of_freedom, encoding.vector
    if vector is not None:
        return renyi_of_noise.corner(family, vector / scale, degrees_of_freedom=nu)
    largest = encoding.bound / scale
    return renyi_of_noise.unit_norm(family, 1 / scale, largest, degrees_of_freedom=nu)


def step_divergences(
    encoding: Encoding, scale: float, probability: float, orders: tuple
) -> np.ndarray:
    """Returns the Rényi divergences of one step; infinite where the moments are unknown."""
    return renyi_of_noise.subsampled(_moments(encoding, scale), probability, orders)
