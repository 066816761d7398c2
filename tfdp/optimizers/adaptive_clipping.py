"""Adaptive clipping: the clip norm follows a quantile of the gradient norms, within the same budget.

Andrew, Thakkar, McMahan and Ramaswamy 2021, "Differentially Private Learning with Adaptive Clipping",
Algorithm 1. With every lot, a second noisy query is released: the number of unclipped gradients,
sum_i (b_i - 1/2) + N(0, sigma_b^2), where b_i is 1 if the gradient of example i was within C_t. Then
C_{t+1} = C_t exp(-rate (fraction - quantile)), a function of what was released: C_t is public.

Formal guarantee: sum and count together are one Gaussian mechanism of the stated noise multiplier z
(their Theorem 1), because the noise on the sum is z_sum C_t with 1/z_sum^2 = 1/z^2 - 1/(2 sigma_b)^2.
Proof. Measure both queries in their noise. An example that is present contributes (v / z_sum,
(b - 1/2) / sigma_b) with |v| <= 1 and |b - 1/2| = 1/2; one that is absent contributes (0, 0).

* zero_out, and adding or removing: squared distance at most 1/z_sum^2 + 1/(2 sigma_b)^2 = 1/z^2.
* replace_one, and microbatches, whose clipped mean may point the opposite way: |v - v'| <= 2 and
  |b - b'| <= 1, so the squared distance is at most (2/z)^2: twice the distance, as without the count.

So both together are one vector of norm at most 1 for each example, with noise z. The proofs for DP-SGD
need nothing else, and hold for any C_t that is fixed before the step. Without the 1/2, an example would
change the count by 1, which needs twice the noise.
"""

import dataclasses
import math

import tensorflow as tf

from tfdp._validate import fraction, positive, refuse

# The default of sigma_b / z, which adds half a percent to the noise on gradients.
_COUNT_NOISE = 5.0
# C_t stays within this factor of its initial value, so that it fits into float32.
_LARGEST_CHANGE = 1e8


@dataclasses.dataclass(frozen=True)
class AdaptiveClipping:
    """The update of the clip norm, and the split of the noise between sum and count.

    Args:
        noise_multiplier: z >= 0, the noise multiplier of sum and count together.
        target_quantile: Fraction of gradients that should stay unclipped, in [0, 1].
        quantile_learning_rate: Rate > 0 of the geometric update of the clip norm.
        quantile_noise_multiplier: sigma_b, the standard deviation of the noise on the count, above
            z / 2. None takes 5 z.

    Raises:
        ValueError: If an argument is invalid.
    """

    noise_multiplier: float
    target_quantile: float = 0.5
    quantile_learning_rate: float = 0.2
    quantile_noise_multiplier: float | None = None

    def __post_init__(self):
        fraction("target_quantile", self.target_quantile, zero=True, one=True)
        positive("quantile_learning_rate", self.quantile_learning_rate)
        z, on_count = self.noise_multiplier, self.count_noise
        if not ((on_count > z / 2 or z == 0) and 0.0 <= on_count < math.inf):
            expected = f"a finite number above half the noise multiplier ({z:g} / 2)"
            remedy = (
                "Raise it: with less noise, the count alone would exceed the budget of the step."
            )
            refuse("quantile_noise_multiplier", expected, on_count, remedy)

    @property
    def count_noise(self) -> float:
        """sigma_b, the standard deviation of the noise on the count."""
        given = self.quantile_noise_multiplier
        return _COUNT_NOISE * self.noise_multiplier if given is None else given

    @property
    def sum_noise(self) -> float:
        """z_sum, the noise multiplier of the sum of gradients."""
        if self.noise_multiplier == 0:
            return 0.0
        z = self.noise_multiplier
        return z / math.sqrt(1.0 - (z / (2.0 * self.count_noise)) ** 2)

    def count(self, bounded) -> tf.Tensor:
        """Returns the un-noised sum of (b - 1/2) over the microbatches that are present.

        Args:
            bounded: The lot's `BoundedSum`.

        Returns:
            A float32 scalar.
        """
        present = tf.cast(bounded.present, tf.float32)
        return tf.reduce_sum(present * (0.5 - bounded.clipped))

    def next_clip_norm(self, clip_norm, noisy_count, divisor: int, first: float) -> tf.Tensor:
        """Returns the next clip norm C_{t+1}, a float32 scalar.

        Args:
            clip_norm: The current clip norm C_t, float32 scalar.
            noisy_count: The released count, float32 scalar.
            divisor: Number of microbatches in a nominal lot.
            first: The initial clip norm C_0.
        """
        fraction = 0.5 + noisy_count / float(divisor)
        # One step changes the clip norm by a factor of at most e, so that a rare large draw of the
        # noise cannot ruin the training.
        change = tf.clip_by_value(
            -self.quantile_learning_rate * (fraction - self.target_quantile), -1.0, 1.0
        )
        moved = clip_norm * tf.exp(change)
        return tf.clip_by_value(moved, first / _LARGEST_CHANGE, first * _LARGEST_CHANGE)


def adaptive_clipping_for(clipping: str, noise_multiplier, **settings) -> AdaptiveClipping | None:
    """Creates the adaptive clipping of an optimizer; returns None if its clip norm is constant.

    Args:
        clipping: Name of the clipping method.
        noise_multiplier: z, or a table over steps.
        **settings: Further arguments of `AdaptiveClipping`; None for those that were not given.

    Raises:
        ValueError: If the arguments conflict.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    if clipping != "adaptive":
        if given:
            raise ValueError(
                f"{sorted(given)} can only be used with clipping='adaptive'. Remove them."
            )
        return None
    if isinstance(noise_multiplier, tuple):
        raise ValueError(
            f"A table of {len(noise_multiplier)} noise multipliers cannot be combined with "
            "clipping='adaptive', whose count and sum share one number. Pass one noise multiplier."
        )
    return AdaptiveClipping(noise_multiplier, **given)
