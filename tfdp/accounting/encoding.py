"""Description of gradient encoding (codebook and noise family), a part of a discrete_sgd run."""

import dataclasses

import numpy as np
from scipy import special

from tfdp._validate import flag, fraction, one_of, positive, refuse, whole
from tfdp.accounting.numerics.noise_families import FAMILIES, GAUSSIAN, STUDENT_T
from tfdp.accounting.records import settle

# The family of the paper's experiments, also the default of the optimizer.
USUAL_NOISE, USUAL_DEGREES_OF_FREEDOM = STUDENT_T, 9.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoding:
    """The codebook and the noise family of a discrete_sgd run.

    Encoding cuts the entries of each gradient, sorted by magnitude, at the entries of one vector of
    the codebook. All lengths are in units of the clip norm. The scale of the noise is the run's
    `noise_multiplier`.

    Attributes:
        noise: Family of the noise: "gaussian", "laplace" or another of `noise_families.FAMILIES`.
        degrees_of_freedom: Degrees of freedom of Student's t; None for the other families.
        num_weights: Length of every vector, the number of trainable weights. None, together with
            `largest_entry`, stands for vectors of any length.
        largest_entry: With a number, the guarantee holds for every codebook of vectors of norm at
            most 1 with entries of at most this number. None stands for a codebook of one vector,
            the quantiles of N(0, 1) scaled to norm 1.
        private_codebook: Whether the vectors were fitted to private gradients. Nothing finite is
            proven then.

    Example:
        >>> from tfdp.accounting import Encoding
        >>> Encoding(num_weights=100, noise="laplace").codebook
        'one vector, the 100 quantiles of N(0, 1) scaled to norm 1'
    """

    noise: str = GAUSSIAN
    degrees_of_freedom: float | None = None
    num_weights: int | None = None
    largest_entry: float | None = None
    private_codebook: bool = False

    def __post_init__(self):
        one_of("noise", self.noise, FAMILIES)
        nu = self.degrees_of_freedom
        if self.noise == STUDENT_T:
            remedy = "Student's t needs them: pass for example 9."
            nu = positive("degrees_of_freedom", nu, remedy=remedy)
        elif nu is not None:
            refuse("degrees_of_freedom", f"None with {self.noise!r} noise", nu, "Remove it.")
        any_length = self.largest_entry is not None
        settle(
            self,
            degrees_of_freedom=nu,
            num_weights=whole("num_weights", self.num_weights, 1, optional=any_length),
            largest_entry=fraction(
                "largest_entry", self.largest_entry, one=True, optional=True,
                remedy="Pass it in units of the norm.",
            ),
            private_codebook=flag("private_codebook", self.private_codebook),
        )  # fmt: skip

    @property
    def family(self) -> str:
        """The family of the noise in words."""
        nu = self.degrees_of_freedom
        return self.noise + ("" if nu is None else f" with {nu:g} degrees of freedom")

    @property
    def codebook(self) -> str:
        """The codebook in words."""
        if self.largest_entry is not None:
            return (
                f"vectors of {self.num_weights or 'any number of'} entries, of norm at most 1 and with "
                f"entries of at most {self.largest_entry:.6g} (in clip norms)"
            )
        return f"one vector, the {self.num_weights} quantiles of N(0, 1) scaled to norm 1"

    @property
    def vector(self) -> np.ndarray | None:
        """The magnitudes of the only vector, in rising order; None if there may be others."""
        if self.largest_entry is not None:
            return None
        assert self.num_weights is not None  # checked above
        return normal_quantiles(self.num_weights)

    @property
    def bound(self) -> float:
        """The largest entry of all vectors."""
        vector = self.vector
        return (self.largest_entry or 0.0) if vector is None else float(vector[-1])


def normal_quantiles(number: int) -> np.ndarray:
    """Returns the magnitudes of N(0, 1) quantiles at (i + 1/2) / number, scaled to norm 1, rising."""
    if number == 1:
        return np.ones(1)  # the median itself would be 0
    # Both signs of a magnitude have one value, so that it counts twice and is computed once.
    half = -special.ndtri((np.arange(number // 2) + 0.5) / number)
    values = np.sort(np.concatenate([half, half, np.zeros(number % 2)]))
    return values / np.linalg.norm(values)
