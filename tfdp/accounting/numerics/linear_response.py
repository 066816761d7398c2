"""Response of SI-DPSGD's released weights to one record, in units of the noise.

SI-DPSGD keeps means mu_{t+1} = mu_t - lr_t v_t and releases theta_{t+1} = mu_{t+1} + noise of
standard deviation noise_lr_t C z_t / L. After dividing row t by its noise scale, the released weights
are y_t = sum_s W[t, s] G_s / C + z xi_t, with G_s the clipped sum of step s and

    W[t, s] = (sqrt(n_t) z / (z_t noise_lr_t)) * sum_{r=s..t} lr_r prod_{j=s+1..r} beta_j

for heavy-ball momentum v_t = beta_t v_{t-1} + g_t. For Nesterov momentum, g_t + beta_t v_t takes the
place of v_t in the update of the means. Here n_t is the number of noise draws around one mean, z_t is
the noise multiplier of step t, and z is that of the first step. No learning rate and no beta is
negative, so W >= 0.

Theorem A. Fix all sampling and let m_s be the multiplicity of the record in step s. The released
weights are mu-GDP for zero_out adjacency with mu = ||W m|| / z, and a linear loss attains this bound.
The functions below never form the matrix; they use scalar recursions over the steps.
"""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tfdp.accounting.run import Run


@dataclasses.dataclass(frozen=True)
class Dynamics:
    """Per-step coefficients of the recursion, as arrays of length `steps`.

    Attributes:
      lr: Learning rates lr_t of the means.
      beta: Momentum coefficients beta_t.
      row_weight: n_t (z / z_t)^2 / noise_lr_t^2; 0 for a row without noise.
      nesterov: Whether the momentum is Nesterov's.
      bare_step: First step without noise whose mean has moved from its initial value, or None.
    """

    lr: np.ndarray
    beta: np.ndarray
    row_weight: np.ndarray
    nesterov: bool
    bare_step: int | None = None

    @classmethod
    def of(cls, run: "Run") -> "Dynamics":
        """Makes the coefficients of a run of SI-DPSGD whose noise multipliers are all above 0."""
        lr, noise_lr = run.schedule("learning_rates"), run.schedule("noise_learning_rates")
        noise = run.schedule("noise_multiplier")
        noisy = noise_lr > 0
        # A row without noise reveals nothing as long as the mean has not moved.
        bare = ~noisy & (np.maximum.accumulate(lr) > 0)
        row_weight = np.zeros(run.steps)
        row_weight[noisy] = run.schedule("draws")[noisy] / noise_lr[noisy] ** 2
        if run.steps:
            row_weight *= (noise[0] / noise) ** 2  # exactly 1 for equal noise multipliers
        return cls(
            lr,
            run.schedule("momentum"),
            row_weight,
            run.mechanism.nesterov,
            int(np.argmax(bare)) if np.any(bare) else None,
        )

    @property
    def steps(self) -> int:
        """Number of steps T."""
        return len(self.lr)

    @property
    def non_increasing(self) -> bool:
        """Whether an earlier participation has at least the effect of a later one in every row.

        If learning rates and momentum do not increase, every entry of column s - 1 of W is at least
        the entry of column s in the same row.
        """
        return bool(np.all(np.diff(self.lr) <= 0) and np.all(np.diff(self.beta) <= 0))

    @property
    def is_prefix_sum(self) -> bool:
        """Whether W is a multiple of the matrix of prefix sums (constant rates, no momentum)."""
        return bool(
            np.all(self.lr == self.lr[0])
            and not np.any(self.beta)
            and np.all(self.row_weight == self.row_weight[0])
            and self.lr[0] > 0
        )

    def prefix_sum_scale(self) -> float | None:
        """The number w if W is w times the matrix of prefix sums, else None."""
        # The draws around one mean, and the ratio of the two rates, scale every row alike.
        return float(np.sqrt(self.row_weight[0]) * self.lr[0]) if self.is_prefix_sum else None

    def cyclic(self, period: int, steps: np.ndarray) -> tuple[np.ndarray, str]:
        """See `linear_releases.Response`."""
        scan = "offset 0" if self.non_increasing else "all offsets"
        return cyclic_squared_response(self, period, steps), f"worst participation pattern ({scan})"

    def shuffled(self, period: int, steps: np.ndarray) -> tuple[np.ndarray, str]:
        """See `linear_releases.Response`."""
        if self.non_increasing:  # earliest participation is the worst in every epoch
            return self.cyclic(period, steps)
        return envelope_squared_response(self, period, steps), "envelope over every epoch"

    def every_step(self, steps: np.ndarray) -> np.ndarray:
        """See `linear_releases.Response`."""
        return squared_response(self, np.ones(self.steps))[np.asarray(steps) - 1]

    def column_norms(self) -> np.ndarray:
        """See `linear_releases.Response`."""
        return column_norms(self)


def _advance(dynamics: Dynamics, t: int, momentum, mean, multiplicity):
    """One step of the recursion over the response of velocity and mean to a record.

    Returns:
      The new (momentum, mean).
    """
    momentum = dynamics.beta[t] * momentum + multiplicity
    moved = multiplicity + dynamics.beta[t] * momentum if dynamics.nesterov else momentum
    return momentum, mean + dynamics.lr[t] * moved


def squared_response(dynamics: Dynamics, multiplicities: np.ndarray) -> np.ndarray:
    """||W m||^2 up to every step, for explicit multiplicities.

    Args:
      dynamics: Coefficients of T steps.
      multiplicities: Multiplicity of the record in each step, shape (T,), or (T, P) for P patterns.

    Returns:
      Array of the same shape: entry t is the squared norm over the rows 0..t of W m.
    """
    pattern = np.asarray(multiplicities, dtype=float)
    momentum = mean = np.zeros(pattern.shape[1:])
    total = np.zeros(pattern.shape[1:])
    result = np.empty_like(pattern)
    for t in range(dynamics.steps):
        momentum, mean = _advance(dynamics, t, momentum, mean, pattern[t])
        total = total + dynamics.row_weight[t] * mean * mean
        result[t] = total
    return result


def cyclic_squared_response(
    dynamics: Dynamics, period: int, steps: np.ndarray, block: int = 4096
) -> np.ndarray:
    """Largest ||W m||^2 over all offsets of a record that is in every `period`-th step.

    Args:
      dynamics: Coefficients of T steps.
      period: Steps per epoch.
      steps: Step counts in 1..T, increasing.
      block: Number of offsets that are simulated at once, which bounds the memory.

    Returns:
      One number for each of `steps`.
    """
    steps = np.asarray(steps)
    # Offset 0 is the worst one if learning rates and momentum do not increase; otherwise all
    # offsets are tried.
    offsets = 1 if dynamics.non_increasing else min(period, dynamics.steps)
    best = np.zeros(len(steps))
    for first in range(0, offsets, block):
        width = min(block, offsets - first)
        best = np.maximum(best, _scan_offsets(dynamics, period, steps, first, width))
    return best


def _scan_offsets(dynamics, period, steps, first, width) -> np.ndarray:
    momentum, mean, total = np.zeros(width), np.zeros(width), np.zeros(width)
    out, cursor = np.zeros(len(steps)), 0
    present = np.zeros(width)
    for t in range(int(steps[-1])):
        column = t % period - first
        inside = 0 <= column < width
        if inside:
            present[column] = 1.0
        momentum, mean = _advance(dynamics, t, momentum, mean, present)
        if inside:
            present[column] = 0.0
        total = total + dynamics.row_weight[t] * mean * mean
        while cursor < len(steps) and steps[cursor] == t + 1:
            out[cursor] = total.max()
            cursor += 1
    return out


def full_columns(dynamics: Dynamics) -> np.ndarray:
    """H_s: the change of the last mean per unit of gradient in step s, by a backward recursion.

    Before division by the noise scale of the row, the entries of a column of W only grow with the
    row. So H_s bounds them in every row.

    Returns:
      Array of shape (T,).
    """
    total = np.zeros(dynamics.steps)
    carried = 0.0  # sum over r >= s of lr_r [beta_r] prod_{j=s+1..r} beta_j
    for s in range(dynamics.steps - 1, -1, -1):
        following = dynamics.beta[s + 1] * carried if s + 1 < dynamics.steps else 0.0
        if dynamics.nesterov:
            carried = dynamics.lr[s] * dynamics.beta[s] + following
            total[s] = dynamics.lr[s] + carried
        else:
            carried = dynamics.lr[s] + following
            total[s] = carried
    return total


def envelope_squared_response(dynamics: Dynamics, period: int, steps: np.ndarray) -> np.ndarray:
    """Upper bound on ||W m||^2 for a record that is in one unknown step of every epoch.

    With U_e[t] = max of W[t, s] over the steps s <= t of epoch e, W m <= sum_e U_e row by row,
    whatever the permutations are. `full_columns` bounds the entries of a column in all rows.

    Args:
      dynamics: Coefficients of T steps.
      period: Steps per epoch.
      steps: Step counts in 1..T, increasing.

    Returns:
      One number for each of `steps`.
    """
    columns = full_columns(dynamics)
    reached = np.empty(dynamics.steps)
    before = 0.0
    for start in range(0, dynamics.steps, period):
        inside = np.maximum.accumulate(columns[start : start + period])
        reached[start : start + period] = before + inside
        before += inside[-1]
    return np.cumsum(dynamics.row_weight * reached**2)[np.asarray(steps) - 1]


def column_norms(dynamics: Dynamics) -> np.ndarray:
    """Exact ||W[:, s]|| for every step s, in one backward pass.

    The squared norm of all rows from s on is a quadratic form P_s of the state (momentum, mean) after
    step s. It obeys P_s = row_weight_s e e' + F' P_{s+1} F, where e is the unit vector of the mean and
    F is one step of the recursion without a new gradient.

    Returns:
      Array of shape (T,).
    """
    norms = np.empty(dynamics.steps)
    a = b = c = 0.0  # P = [[a, b], [b, c]] over (momentum, mean)
    for s in range(dynamics.steps - 1, -1, -1):
        if s + 1 < dynamics.steps:
            beta = dynamics.beta[s + 1]
            push = dynamics.lr[s + 1] * beta * (beta if dynamics.nesterov else 1.0)
            # F sends (v, M) to (beta v, M + push v).
            a, b = beta * beta * a + 2 * beta * push * b + push * push * c, beta * b + push * c
        c = c + dynamics.row_weight[s]
        first = dynamics.lr[s] * (1 + dynamics.beta[s] if dynamics.nesterov else 1.0)
        norms[s] = np.sqrt(a + 2 * b * first + c * first * first)
    return norms
