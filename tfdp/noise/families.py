"""Non-Gaussian noise: sampling, and distribution functions.

The families, their parameters and densities are those of `accounting.numerics.noise_families`, so that
the noise that is drawn is the noise that is accounted. The scale need not be the standard deviation.
"""

import dataclasses
import math

import tensorflow as tf

from tfdp.noise.gaussian import NoiseSource


@dataclasses.dataclass(frozen=True)
class NoiseFamily:
    """A family of noise distributions, such as Laplace or Student's t, with a symmetric density.

    `DiscreteSGDOptimizer` adds such noise. The scale of a draw is the standard deviation only for
    Gaussian noise; `standard_deviation` converts it.

    Args:
        name: "gaussian", "student_t", "laplace", "sech", "variance_gamma" or "cauchy".
        degrees_of_freedom: Degrees of freedom of student_t, above 0; not used by the other
            families.

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

    def sample(
        self, source: NoiseSource, draw: int | tf.Tensor, scale: float, shapes: list
    ) -> list[tf.Tensor]:
        """Draws independent float32 tensors of noise, in the order of `shapes`.

        Every draw is an exact function of uniform numbers, without rejection. So the amount of random
        numbers that it consumes does not depend on their values.

        Args:
            source: Source of the random numbers.
            draw: Number of the draw, as in `NoiseSource.gaussians`.
            scale: Scale >= 0 of the noise, a float or a scalar tensor; the float zero gives zeros.
            shapes: Fully defined shapes.

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
        nu, sign = self.degrees_of_freedom, _sign(u[1] <= 0.5, u.dtype)
        # P(|x| > a) is (4 / pi) atan(exp(-a)) for sech and (2 / pi) atan(1 / a) for Cauchy.
        draws = {
            # Bailey (1994): the Box-Muller transform with a power instead of the logarithm.
            "student_t": lambda: (
                tf.sqrt(nu * tf.math.expm1(-2.0 / nu * tf.math.log(u[0])))
                * tf.cos(2.0 * math.pi * u[1])
            ),
            # lambda = 2: a difference of two exponentials, twice
            "variance_gamma": lambda: _laplace(u[0]) + _laplace(u[1]),
            "laplace": lambda: -sign * tf.math.log(u[0]),
            "sech": lambda: -sign * tf.math.log(tf.math.tan(math.pi / 4 * u[0])),
            "cauchy": lambda: sign / tf.math.tan(math.pi / 2 * u[0]),
        }
        return draws[self.name]()

    def standard_deviation(self, scale):
        """Returns the standard deviation of noise of a scale, or the scale itself for heavy tails.

        Noise with heavy tails (cauchy, and student_t with up to 2 degrees of freedom) has no finite
        standard deviation.

        Args:
            scale: Scale of the noise, a float or a tensor.
        """
        nu = self.degrees_of_freedom
        heavy = self.name == "cauchy" or (nu is not None and nu <= 2.0)
        if self.name == "student_t" and not heavy:
            return scale * math.sqrt(nu / (nu - 2.0))
        factors = {"laplace": math.sqrt(2.0), "sech": math.pi / 2, "variance_gamma": 2.0}
        return scale * factors.get(self.name, 1.0)

    def cumulative(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the cumulative distribution function at scale 1, in the dtype of `x`."""
        size = tf.abs(x)
        tails = {
            "gaussian": lambda: tf.math.erfc(size / math.sqrt(2.0)) / 2,
            "laplace": lambda: tf.exp(-size) / 2,
            "sech": lambda: 2 / math.pi * tf.atan(tf.exp(-size)),
            "variance_gamma": lambda: (2 + size) * tf.exp(-size) / 4,
            "cauchy": lambda: tf.atan2(tf.ones_like(size), size) / math.pi,
            "student_t": lambda: self._student_tail(size),
        }
        tail = tails[self.name]()
        return tf.where(x > 0, 1 - tail, tail)

    def _student_tail(self, size):
        nu = float(self.degrees_of_freedom)
        square = size * size
        # The incomplete beta function gives the mass of both tails, or of the middle if that is
        # smaller.
        middle = square < 1.0
        ones = tf.ones_like(size)
        half, other = 0.5 * ones, 0.5 * nu * ones
        part = tf.math.betainc(
            tf.where(middle, half, other),
            tf.where(middle, other, half),
            tf.where(middle, square, nu * ones) / (nu + square),
        )
        return tf.where(middle, (1 - part) / 2, part / 2)


def _sign(positive, dtype):
    return 2 * tf.cast(positive, dtype) - 1


def _laplace(u):
    """Makes Laplace noise from one uniform number in (0, 1], whose leading bit is the sign."""
    upper = u > 0.5
    rest = tf.where(upper, 2 * u - 1, 2 * u)
    return -_sign(upper, u.dtype) * tf.math.log(rest)
