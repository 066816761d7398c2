"""Responses of releases to one record, in units of the noise: SI-DPSGD, and Toeplitz strategies.

SI-DPSGD keeps means mu_{t+1} = mu_t - lr_t v_t and releases theta_{t+1} = mu_{t+1} + noise of
standard deviation lr_t C z_t / L. After dividing row t by its noise scale, the released weights
are y_t = sum_s W[t, s] G_s / C + z xi_t, with G_s the clipped sum of step s and

    W[t, s] = (z / (z_t lr_t)) * sum_{r=s..t} lr_r prod_{j=s+1..r} beta_j

for heavy-ball momentum v_t = beta_t v_{t-1} + g_t. With Nesterov momentum, the update of the means
uses g_t + beta_t v_t instead of v_t. Here z_t is the noise multiplier of step t, and z is that of
the first step. No learning rate and no beta is negative, so W >= 0.

Theorem A. Fix all sampling and let m_s be the multiplicity of the record in step s. The released
weights are mu-GDP for zero_out adjacency with mu = ||W m|| / z, and a linear loss attains this bound.
The matrix is never formed; scalar recursions over the steps replace it.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator

import numpy as np

from tfdp.accounting.mechanisms import SIDPSGD, Matrix
from tfdp.accounting.run import Run

# Largest number of blocks whose inner products are written out, and of entries of their columns.
_BLOCKS, _ENTRIES = 512, 4_000_000


def largest_root(products: np.ndarray) -> float:
    """Returns the largest eigenvalue, with room for rounding.

    If the matrix has negative eigenvalues, a multiple of the identity is added first.
    """
    roots = np.linalg.eigvalsh(products)
    return float(roots[-1] - min(roots[0], 0.0)) * (1 + 1e-10)


@dataclasses.dataclass(frozen=True)
class Dynamics:
    """Per-step coefficients of the recursion, as arrays of length T: the matrix W of SI-DPSGD.

    Attributes:
        lr: Learning rates lr_t of the means.
        beta: Momentum coefficients beta_t.
        row_weight: (z / z_t)^2 / lr_t^2; 0 for a row without noise.
        nesterov: Whether the momentum is Nesterov's.
        bare_step: First step without noise whose mean has moved from its initial value, or None.
    """

    lr: np.ndarray
    beta: np.ndarray
    row_weight: np.ndarray
    nesterov: bool
    bare_step: int | None = None

    @classmethod
    def of(cls, run: Run) -> "Dynamics":
        """Makes the coefficients of a run of SI-DPSGD whose noise multipliers are all above 0."""
        assert isinstance(run.mechanism, SIDPSGD)
        lr, noise = run.schedule("learning_rates"), run.schedule("noise_multiplier")
        noisy = lr > 0
        # A row without noise reveals nothing as long as the mean has not moved.
        bare = ~noisy & np.maximum.accumulate(noisy)
        row_weight = np.zeros(run.steps)
        row_weight[noisy] = 1.0 / lr[noisy] ** 2
        row_weight *= (noise[0] / noise) ** 2  # exactly 1 for equal noise multipliers
        first_bare = int(np.argmax(bare)) if np.any(bare) else None
        return cls(lr, run.schedule("momentum"), row_weight, run.mechanism.nesterov, first_bare)

    @property
    def non_increasing(self) -> bool:
        """Whether an earlier participation has at least the effect of a later one in every row.

        If learning rates and momentum do not increase, every entry of column s - 1 of W is at least
        the entry of column s in the same row.
        """
        return bool(np.all(np.diff(self.lr) <= 0) and np.all(np.diff(self.beta) <= 0))

    def prefix_sum_scale(self) -> float | None:
        """Returns the number w if W is w times the matrix of prefix sums, and otherwise None."""
        constant = all(np.all(each == each[0]) for each in (self.lr, self.row_weight))
        if not constant or np.any(self.beta) or not self.lr[0] > 0:
            return None
        return float(np.sqrt(self.row_weight[0]) * self.lr[0])

    def means(self, multiplicities: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Yields the change of the mean after each step, for several patterns m at once."""
        momentum = mean = np.zeros(())
        for t, present in enumerate(multiplicities):
            momentum = self.beta[t] * momentum + present
            moved = present + self.beta[t] * momentum if self.nesterov else momentum
            mean = mean + self.lr[t] * moved
            yield mean

    def squared_response(self, multiplicities: Iterable[np.ndarray]) -> np.ndarray:
        """Returns ||W m||^2 for several patterns m at once.

        Args:
            multiplicities: For each step, one number for all patterns, or one for each.
        """
        total = np.zeros(())
        for weight, mean in zip(self.row_weight, self.means(multiplicities), strict=False):
            total = total + weight * mean * mean
        return total

    def cyclic(self, period: int) -> float:
        """Returns ||W m||^2 of the worst record that is in every `period`-th step."""
        offsets = 1 if self.non_increasing else min(period, len(self.lr))
        return float(np.max(self.squared_response(self._patterns(offsets, period))))

    def _patterns(self, number: int, period: int) -> Iterator[np.ndarray]:
        """Patterns of which number n has the steps n, n + `period`, ...; the array is reused."""
        present = np.zeros(number)
        for t in range(len(self.lr)):
            mine = slice(t % period, t % period + 1)  # empty beyond the last pattern
            present[mine] = 1.0
            yield present
            present[mine] = 0.0

    def joint_square(self, period: int, length: int) -> float:
        """Returns the largest eigenvalue of the inner products of vectors w_e, or infinity if unknown.

        Of the steps in which a record can take part, `period` apart, each `length` are a block e.
        <w_e, w_f> is at least the inner product of any columns of |W| from the blocks e and f. If an
        earlier column is at least a later one, w_e is the first column of its block.
        """
        steps = len(self.lr)
        starts = np.arange(0, steps, period * length)
        scale = self.prefix_sum_scale()
        if len(starts) > _BLOCKS or not (self.non_increasing or length * period == 1):
            return math.inf
        if scale is not None:
            return largest_root(scale * scale * (steps - np.maximum.outer(starts, starts)))
        if len(starts) * steps > _ENTRIES:
            return math.inf
        ones = (1.0 * (starts == t) for t in range(steps))
        columns = np.sqrt(self.row_weight)[:, None] * np.array(list(self.means(ones)))
        return largest_root(columns.T @ columns)

    def shuffled(self, period: int) -> float:
        """Returns a bound on ||W m||^2 for a record in one step of every epoch of `period` steps.

        With U_e[t] = max of W[t, s] over the steps s <= t of epoch e, W m <= sum_e U_e row by row,
        whatever the permutations are. `full_columns` bounds the entries of a column in all rows.
        """
        if self.non_increasing:  # the earliest participation is the worst in every epoch
            return self.cyclic(period)
        columns, reached, before = self.full_columns(), np.empty(len(self.lr)), 0.0
        for start in range(0, len(self.lr), period):
            inside = np.maximum.accumulate(columns[start : start + period])
            reached[start : start + period] = before + inside
            before += inside[-1]
        return float(self.row_weight @ reached**2)

    def full_columns(self) -> np.ndarray:
        """Returns H_s, the change of the last mean per unit of gradient in step s, shape (T,).

        Before division by the noise scale of the row, the entries of a column of W only grow with the
        row. So H_s bounds them in every row.
        """
        lr, beta = self.lr, self.beta
        total, following = np.zeros(len(lr)), 0.0
        for s in range(len(lr) - 1, -1, -1):
            # sum over r >= s of lr_r [beta_r] prod_{j=s+1..r} beta_j
            carried = lr[s] * (beta[s] if self.nesterov else 1.0) + following
            total[s] = lr[s] + carried if self.nesterov else carried
            following = beta[s] * carried
        return total

    def column_norms(self) -> np.ndarray:
        """Returns the exact ||W[:, s]|| for every step s, shape (T,), in one backward pass.

        The squared norm of all rows from s on is a quadratic form P_s of the state (momentum, mean)
        after step s. It obeys P_s = row_weight_s e e' + F' P_{s+1} F, where e is the unit vector of the
        mean and F is one step of the recursion without a new gradient.
        """
        lr, beta = self.lr, self.beta
        norms = np.empty(len(lr))
        a = b = c = 0.0  # P = [[a, b], [b, c]] over (momentum, mean)
        for s in range(len(lr) - 1, -1, -1):
            c = c + self.row_weight[s]
            first = lr[s] * (1 + beta[s] if self.nesterov else 1.0)
            norms[s] = np.sqrt(a + 2 * b * first + c * first * first)
            # F sends (v, M) to (beta v, M + push v).
            push = lr[s] * beta[s] * (beta[s] if self.nesterov else 1.0)
            a, b = beta[s] ** 2 * a + 2 * beta[s] * push * b + push**2 * c, beta[s] * b + push * c
        return norms


@dataclasses.dataclass(frozen=True)
class Toeplitz:
    """A lower-triangular Toeplitz matrix, the W of a `Matrix` mechanism.

    Attributes:
        first: Magnitudes of the first column from the diagonal downwards; all others are 0.
        steps: Number of rows.
    """

    first: np.ndarray
    steps: int

    @classmethod
    def of(cls, run: Run) -> "Toeplitz":
        """Makes the response of a run whose mechanism has a strategy."""
        assert isinstance(run.mechanism, Matrix)
        return cls(np.abs(run.mechanism.strategy.first(run.steps)), run.steps)

    def cyclic(self, period: int) -> float:
        """Returns ||W m||^2 of the worst record that is in every `period`-th step.

        Offset 0 is the worst: a later start gives the same pattern, cut short.
        """
        # Entry t of C m is the sum of c_t, c_{t-b}, c_{t-2b}, ...: a running sum down the columns.
        response = np.cumsum(self._folded(period), axis=0).reshape(-1)[: self.steps]
        return float(np.sum(response**2))

    def _folded(self, period: int) -> np.ndarray:
        """The first column with zeros, in rows of `period`."""
        padded = np.zeros(-(-self.steps // period) * period)
        padded[: len(self.first)] = self.first
        return padded.reshape(-1, period)

    def shuffled(self, period: int) -> float:
        """Returns the sum of the largest inner products that columns of two epochs can have.

        In epoch e the record takes part in a step s >= e b, and two such steps of epochs e < e' are at
        least (e' - e - 1) b + 1 apart. The inner product of two columns of a non-increasing sequence
        falls both with the later step and with the distance of the steps.
        """
        c = self._falling()
        rows, total = -(-self.steps // period), 0.0
        for gap in range(rows):  # e' - e
            lag = 0 if gap == 0 else (gap - 1) * period + 1
            products = np.concatenate([[0.0], np.cumsum(c[: self.steps - lag] * c[lag:])])
            # The later column starts at row e' b at the earliest, so at most steps - e' b of its rows
            # are nonzero.
            left = self.steps - np.arange(gap, rows) * period
            twice = 1.0 if gap == 0 else 2.0
            total += twice * products[np.minimum(left, len(products) - 1)].sum()
        return float(total)

    def _falling(self) -> np.ndarray:
        """The smallest sequence above |c| that does not increase."""
        c = np.zeros(self.steps)
        c[: len(self.first)] = np.maximum.accumulate(self.first[::-1])[::-1]
        return c

    def joint_square(self, period: int, length: int) -> float:
        """Returns the same as `Dynamics.joint_square`, by a sequence that does not increase."""
        starts = np.arange(0, self.steps, period * length)
        if length == 1 and len(starts) > _BLOCKS:  # the largest sum of a row is a bound
            return float(np.sum(self._folded(period).sum(axis=0) ** 2))
        if len(starts) > _BLOCKS:
            return math.inf
        c = self._falling()
        if length == 1:
            c[: len(self.first)] = self.first
        products = np.zeros((len(starts), len(starts)))
        for k in range(len(starts)):
            lag = 0 if k == 0 else ((k - 1) * length + 1) * period  # the least one
            if lag >= len(self.first):
                break
            sums = np.cumsum(c[: self.steps - lag] * c[lag:])
            at = np.arange(len(starts) - k)
            products[at, at + k] = products[at + k, at] = sums[self.steps - starts[k:] - 1]
        return largest_root(products)

    def column_norms(self) -> np.ndarray:
        squares = np.zeros(self.steps)
        squares[: len(self.first)] = self.first**2
        return np.sqrt(np.cumsum(squares))[::-1]

    def prefix_sum_scale(self) -> float | None:
        constant = len(self.first) == self.steps and np.all(self.first == self.first[0])
        return float(self.first[0]) if constant else None
