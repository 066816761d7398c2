"""The accounting of the papers, which gives the claimed epsilon: one formula for each mechanism.

The papers used TensorFlow Privacy as of 2020: Rényi divergences of the Poisson-subsampled Gaussian
(Mironov, Talwar, Zhang 2019) at a fixed list of orders, multiplied by the number of steps, and the
classic conversion epsilon = RDP + log(1/delta) / (order - 1) (Mironov 2017, Proposition 3). The
papers applied this accountant whatever their sampling was.

The dropout paper claims a recipe from epsilon to sigma. It inverts the classical Gaussian mechanism
(e_it, d_it), amplification by sampling, e' = log(1 + nu (exp(e_it) - 1)), and a composition:

* "ac", advanced composition with e^x - 1 replaced by x: eps = sqrt(2 T log(1/d')) e' + T e'^2;
* "zcdp": rho = T r with a step's r from e', eps = rho + 2 sqrt(rho log(1/delta)).

The paper's numbers (sigma = 10.88 and 3.23 at epsilon 0.5 on MNIST) do not follow if T is the number
of steps. They follow if T is the number of passes over the data; more than one reading gives them.
The readings in `READINGS` are best guesses that were found by search. Neither claim is a
theorem: composition over passes leaves out N/S - 1 of N/S steps, and an amplified (e', d')-mechanism
has no finite zCDP parameter.

The discrete paper's Lemma 4 has the prefactor 1/(1 - order); the claim uses it with the sign corrected.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Sequence

import numpy as np

from tfdp.accounting import encoded_steps, noise_tables
from tfdp.accounting.mechanisms import (
    DPSGD,
    SIDPSGD,
    DiscreteSGD,
    DPDropout,
    Matrix,
    Mechanism,
    NoisyMechanism,
    NoMechanism,
)
from tfdp.accounting.numerics import privacy_loss
from tfdp.accounting.proofs import analyse
from tfdp.accounting.run import Run
from tfdp.accounting.sampling import Unknown
from tfdp.accounting.sentences import Table, all_of

ORDERS_2020 = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *range(5, 64), 128, 256, 512)

_POISSON = (
    "The paper's accountant treats every step as a Poisson-subsampled Gaussian mechanism with "
    "sampling probability lot_size/num_examples, whatever was executed.",
    "Orders and conversion are those of TensorFlow Privacy in 2020.",
)


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claimed epsilon; `reason` may say why it is infinite."""

    epsilon: float
    details: dict
    reason: str | None = None


@dataclasses.dataclass(frozen=True)
class Formula:
    """The accounting of a paper: its assumptions, and either `divergences` or `epsilon`.

    Attributes:
        assumptions: The assumptions of the formula, in sentences.
        divergences: Function from a run to its Rényi divergences at `ORDERS_2020`, which add up over
            runs.
        epsilon: Function from a run and a delta to the claim.
    """

    assumptions: tuple[str, ...]
    divergences: Callable[[Run], np.ndarray] | None = None
    epsilon: Callable[[Run, float], Claim] | None = None


def _poisson(run: Run) -> np.ndarray:
    """Divergences as if each step were DP-SGD on a Poisson lot with this N and L."""
    return _over_steps(run, lambda noise, probability: _one_lot(probability, noise))


def _encoded(run: Run) -> np.ndarray:
    """Divergences by the discrete paper's Theorem 1, with the sign corrected."""
    assert isinstance(run.mechanism, DiscreteSGD)
    encoding, noise = run.mechanism.encoding, run.mechanism.noise_multiplier
    if run.steps and noise_tables.least(noise, run.steps) == 0:
        return np.full(len(ORDERS_2020), math.inf)
    return _over_steps(
        run, lambda scale, q: encoded_steps.step_divergences(encoding, scale, q, ORDERS_2020)
    )


def _over_steps(run: Run, of_one: Callable[[float, float], np.ndarray]) -> np.ndarray:
    assert isinstance(run.mechanism, NoisyMechanism)
    probability = run.sampling.lot_size / run.sampling.num_examples
    total = np.zeros(len(ORDERS_2020))
    for noise, count in noise_tables.levels(run.mechanism.noise_multiplier, run.steps):
        total = total + count * of_one(noise, probability)
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
    logger = logging.getLogger("absl")
    logger.addFilter(_quiet)
    try:
        accountant.compose(event)
    finally:
        logger.removeFilter(_quiet)
    return accountant.rdp


def _quiet(record: logging.LogRecord) -> bool:
    return "failed to converge" not in record.getMessage()


def _nothing(run: Run) -> np.ndarray:
    return np.full(len(ORDERS_2020), math.inf if run.steps else 0.0)


def _as_proven(run: Run, delta: float) -> Claim:
    """The proven epsilon of one example for zero_out, as if the seed of the noise were secret."""
    run = dataclasses.replace(run.for_users(1), insecure_seed=False)
    analysis = analyse(run, delta, "zero_out")
    epsilon = (
        math.inf if analysis.reason else privacy_loss.epsilon_of(analysis.losses, delta).epsilon
    )
    return Claim(epsilon, analysis.details, analysis.reason)


@dataclasses.dataclass(frozen=True)
class Reading:
    """One reading of the paper's recipe.

    Attributes:
        words: The reading in words.
        split: Function from (delta, T, nu) to (d', d_it).
        zcdp: Whether steps are composed as zCDP rather than by advanced composition.
        by_proposition: Whether Proposition 2 then converts e' into r.
        per_step: Whether T counts steps, not passes.
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
    """Returns the epsilon of a reading for the paper's sigma; infinite outside the formula's range."""
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


def _dropout(run: Run, delta: float) -> Claim:
    """Epsilon by the dropout paper's recipe. It has one sigma, so the least one of a table is used."""
    mechanism = run.mechanism
    assert isinstance(mechanism, DPDropout)
    reading = mechanism.composition or mechanism.default_reading
    sigma = noise_tables.least(mechanism.noise_multiplier, run.steps) / 2
    probability = run.sampling.lot_size / run.sampling.num_examples
    epsilon = claimed_sigma_epsilon(sigma, delta, run.steps, probability, reading)
    details = {"composition": reading, "reading": READINGS[reading].words, "sigma": sigma}
    return Claim(epsilon, details)


CLAIMS: dict[type[Mechanism], Formula] = {
    NoMechanism: Formula((), _nothing),
    DPSGD: Formula(_POISSON, _poisson),
    DPDropout: Formula(
        (
            "The paper's recipe in the reading that reproduces its published noise (a best guess): it "
            "composes over passes instead of steps, and treats clipping by layers as clipping once.",
        ),
        epsilon=_dropout,
    ),
    SIDPSGD: Formula(
        (
            *_POISSON,
            "The paper treats every step as fresh, although its means carry all earlier gradients "
            "without noise; momentum and learning rates are ignored.",
        ),
        _poisson,
    ),
    Matrix: Formula(
        ("The literature's accounting of matrix mechanisms is the proven one.",),
        epsilon=_as_proven,
    ),
    DiscreteSGD: Formula(
        (
            "The paper's Lemma 5 at whole orders, with 1/(1 - order) corrected to 1/(order - 1), and "
            "the classic conversion, as if every step were a Poisson lot.",
        ),
        _encoded,
    ),
}


# Differences between runs and formulas. A condition is called with the runs and the adjacency.
_DIFFERENCES: Table = {
    "added or removed": (
        lambda _, adjacency: adjacency == "replace_one",
        "The paper's formula is for one record added or removed.",
    ),
    "unknown number of examples": (
        lambda runs, _: any(isinstance(run.sampling, Unknown) for run in runs),
        "The number of examples in your own batches is unknown: the formula uses the number of "
        "rows planned for one epoch or one call, {rows}.",
    ),
    "one record": (
        lambda runs, _: any(run.contribution.max_examples_per_user > 1 for run in runs),
        "The paper's formula is for one record, not for a user.",
    ),
}


def differences(runs: Sequence[Run], adjacency: str) -> tuple[str, ...]:
    """Returns sentences about the differences between these runs and the formulas' assumptions."""
    rows = {run.sampling.num_examples for run in runs if isinstance(run.sampling, Unknown)}
    return all_of(_DIFFERENCES, runs, adjacency, rows=" or ".join(map(str, sorted(rows))))


def of_divergences(divergences: Sequence[np.ndarray], delta: float) -> Claim:
    """Returns the claim from the sum of divergences at `ORDERS_2020`, by the classic conversion."""
    rdp, orders = sum(divergences, np.zeros(len(ORDERS_2020))), np.asarray(ORDERS_2020)
    if not np.any(rdp):
        return Claim(0.0, {})
    # A divergence that is not positive is a numerical failure, so its order is not used.
    epsilon = np.where(rdp > 0, rdp + math.log(1 / delta) / (orders - 1), math.inf)
    best = int(np.argmin(epsilon))
    details = {
        "conversion": "RDP, 2020 orders, classic conversion",
        "rdp_order": float(orders[best]),
    }
    return Claim(float(epsilon[best]), details)
