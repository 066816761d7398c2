"""The accountant of the papers, which gives the claimed epsilon.

The papers used TensorFlow Privacy as of 2020: Rényi divergences of the Poisson-subsampled Gaussian
(Mironov, Talwar, Zhang 2019) at a fixed list of orders, multiplied by the number of steps, and the
classic conversion epsilon = RDP + log(1/delta) / (order - 1) (Mironov 2017, Proposition 3). The
papers applied this accountant whatever their sampling was.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Sequence

import numpy as np

from tfdp.accounting.noise_tables import Noise, levels
from tfdp.accounting.sampling import Sampling

ORDERS_2020 = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *range(5, 64), 128, 256, 512)

ASSUMPTIONS = (
    "The paper's accountant treats every step as a Poisson-subsampled Gaussian mechanism with "
    "sampling probability lot_size/num_examples, whatever was executed.",
    "Orders and conversion are those of TensorFlow Privacy in 2020.",
)


@dataclasses.dataclass(frozen=True)
class Claim:
    """Claimed epsilon of a formula that is no Rényi divergence; `reason` says why one is infinite."""

    epsilon: float
    details: dict = dataclasses.field(default_factory=dict)
    reason: str | None = None


def poisson_rdp(sampling: Sampling, noise: Noise, steps: int) -> np.ndarray:
    """Rényi divergences of all steps at `ORDERS_2020`, as if each were a Poisson lot of DP-SGD.

    Of the sampling, only N and L are used. The noise is its standard deviation over the clip norm.
    """
    total, probability = np.zeros(len(ORDERS_2020)), sampling.lot_size / sampling.num_examples
    for multiplier, count in levels(noise, steps):
        total = total + count * _one_lot(probability, multiplier)
    return total


@functools.lru_cache(maxsize=512)
def _one_lot(probability: float, multiplier: float) -> np.ndarray:
    """Divergences of one Poisson-subsampled Gaussian at `ORDERS_2020`, with dp_accounting."""
    import dp_accounting

    accountant = dp_accounting.rdp.RdpAccountant(ORDERS_2020)
    event = dp_accounting.GaussianDpEvent(multiplier)
    if probability < 1:
        event = dp_accounting.PoissonSampledDpEvent(probability, event)
    # Orders whose series does not converge have an infinite or undefined divergence and are dropped
    # when orders are compared, so dp_accounting's warning is suppressed.
    logger, quiet = logging.getLogger("absl"), logging.Filter()
    quiet.filter = lambda record: "failed to converge" not in record.getMessage()
    logger.addFilter(quiet)
    try:
        accountant.compose(event)
    finally:
        logger.removeFilter(quiet)
    return accountant.rdp


def classic_epsilon(rdp: Sequence[float], delta: float) -> tuple[float, float]:
    """(epsilon, best order) of divergences at `ORDERS_2020`; (0, NaN) if all are 0 (no step)."""
    orders, rdp = np.asarray(ORDERS_2020), np.asarray(rdp, dtype=float)
    if not np.any(rdp):
        return 0.0, math.nan
    # A divergence that is not positive is a numerical failure, so its order is not used.
    epsilon = np.where(rdp > 0, rdp + math.log(1 / delta) / (orders - 1), math.inf)
    best = int(np.argmin(epsilon))
    return float(epsilon[best]), float(orders[best])
