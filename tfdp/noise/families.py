"""Noise with other densities than the Gaussian: drawing it, and its distribution.

The families, their parameters and densities are those of `accounting.numerics.noise_families`, so that
the noise that is drawn is the noise that is accounted. The scale need not be the standard deviation.
"""

import dataclasses
import math

import tensorflow as tf

from tfdp._validate import one_of, positive
from tfdp.accounting.numerics import noise_families as table
from tfdp.noise.gaussian import NoiseSource


@dataclasses.dataclass(frozen=True)
class NoiseFamily:
    """A family of noise whose density is symmetric and falls away from 0.

    Args:
        name: one of `accounting.numerics.noise_families.FAMILIES`.
        degrees_of_freedom: degrees of freedom of student_t, above 0; None for the other families.

    Raises:
        ValueError: an argument is invalid.

    Example:
        >>> from tfdp.noise import NoiseFamily, NoiseSource
        >>> family = NoiseFamily("student_t", degrees_of_freedom=9.0)
        >>> print(f"{family.standard_deviation(1.0):.3f}")  # sqrt(9 / 7)
        1.134
        >>> (noise,) = family.sample(NoiseSource(seed=0), 0, 1.0, [(10000,)])
        >>> print(f"{noise.numpy().std():.1f}")
        1.1
    """

    name: str = "gaussian"
    degrees_of_freedom: float | None = None

    def __post_init__(self):
        one_of("noise", self.name, table.FAMILIES)
        nu = self.degrees_of_freedom
        if self.name == "student_t":
            positive("degrees_of_freedom", nu, remedy="Student's t needs them: pass for example 9.")
        elif nu is not None:
            raise ValueError(
                "Invalid value received for argument `degrees_of_freedom`. Expected None: only "
                f"student_t has degrees of freedom. Received: {nu!r} with {self.name!r}"
            )

    def sample(
        self, source: NoiseSource, draw: int | tf.Tensor, scale: float, shapes: list
    ) -> list[tf.Tensor]:
        """Draws independent float32 tensors, in order: `scale` times noise of scale 1.

        Every draw is the image of uniform numbers under an exact map. No draw is rejected, so the
        amount of random numbers that a draw consumes does not depend on their values.

        Args:
            source: source of the random numbers.
            draw: number of the draw, as in `NoiseSource.gaussians`.
            scale: scale >= 0, a float or a scalar tensor; the float zero gives zeros.
            shapes: fully defined shapes.

        Returns:
            One float32 tensor for each shape.
        """
        if self.name == "gaussian" or (not tf.is_tensor(scale) and scale == 0.0):
            return source.gaussians(draw, scale, shapes)
        scale = tf.cast(scale, tf.float64)
        return [
            tf.cast(scale * self._from_uniforms(u), tf.float32)
            for u in source.uniforms(draw, shapes)
        ]

    def _from_uniforms(self, u):
        if self.name == "student_t":
            # Bailey (1994): the Box-Muller transform with a power in place of the logarithm.
            nu = float(self.degrees_of_freedom)
            radius = tf.sqrt(nu * tf.math.expm1(-2.0 / nu * tf.math.log(u[0])))
            return radius * tf.cos(2.0 * math.pi * u[1])
        if self.name == "variance_gamma":  # lambda = 2: a difference of two exponentials, twice
            return _laplace(_halves(u[0])) + _laplace(_halves(u[1]))
        sign = _sign(u[1] <= 0.5, u.dtype)
        if self.name == "laplace":
            return -sign * tf.math.log(u[0])
        # P(|x| > a) is (4 / pi) atan(exp(-a)) for sech and (2 / pi) atan(1 / a) for Cauchy.
        if self.name == "sech":
            return -sign * tf.math.log(tf.math.tan(math.pi / 4 * u[0]))
        return sign / tf.math.tan(math.pi / 2 * u[0])

    def standard_deviation(self, scale):
        """Standard deviation at a scale; the scale itself if the family has none (heavy tails)."""
        nu = self.degrees_of_freedom
        heavy = self.name == "cauchy" or (nu is not None and nu <= 2.0)
        if self.name == "student_t" and not heavy:
            return scale * math.sqrt(nu / (nu - 2.0))
        factors = {"laplace": math.sqrt(2.0), "sech": math.pi / 2, "variance_gamma": 2.0}
        return scale * factors.get(self.name, 1.0)

    def cumulative(self, x: tf.Tensor) -> tf.Tensor:
        """Distribution function at scale 1, in the dtype of `x`."""
        size = tf.abs(x)
        if self.name == "gaussian":
            tail = tf.math.erfc(size / math.sqrt(2.0)) / 2
        elif self.name == "laplace":
            tail = tf.exp(-size) / 2
        elif self.name == "sech":
            tail = 2 / math.pi * tf.atan(tf.exp(-size))
        elif self.name == "variance_gamma":
            tail = (2 + size) * tf.exp(-size) / 4
        elif self.name == "cauchy":
            tail = tf.atan2(tf.ones_like(size), size) / math.pi
        else:
            tail = self._student_tail(size)
        return tf.where(x > 0, 1 - tail, tail)

    def _student_tail(self, size):
        nu = float(self.degrees_of_freedom)
        square = size * size
        # The incomplete beta function gives the mass of both tails, or of the middle where the middle
        # is the smaller part.
        middle = square < 1.0
        ones = tf.ones_like(size)
        half, other = 0.5 * ones, 0.5 * nu * ones
        part = tf.math.betainc(
            tf.where(middle, half, other),
            tf.where(middle, other, half),
            tf.where(middle, square, nu * ones) / (nu + square),
        )
        return tf.where(middle, (1 - part) / 2, part / 2)


def _halves(u):
    """Splits one uniform number in (0, 1] into another one and a sign (from its leading bit)."""
    upper = u > 0.5
    rest = tf.where(upper, 2 * u - 1, 2 * u)
    return rest, _sign(upper, u.dtype)


def _sign(positive, dtype):
    return 2 * tf.cast(positive, dtype) - 1


def _laplace(rest_and_sign):
    rest, sign = rest_and_sign
    return -sign * tf.math.log(rest)
