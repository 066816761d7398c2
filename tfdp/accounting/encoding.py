"""Description of gradient encoding (codebook and noise families), a part of a discrete_sgd run."""

import dataclasses
import itertools
from typing import Any

import numpy as np
from scipy import special

from tfdp._validate import flag, fraction, one_of, positive, whole
from tfdp.accounting import records
from tfdp.accounting.numerics.noise_families import FAMILIES, GAUSSIAN, STUDENT_T

Family = tuple[str, float | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoding:
    """Codebook and noise families of discrete_sgd; all lengths are in units of the clip norm.

    An encoded gradient lies in a box: sorted by magnitude, its entries are at most those of one
    vector of the codebook. The scale of the noise is the run's `noise_multiplier`.

    Attributes:
      noise: Family of the noise, one of `noise_families.FAMILIES`, or a table with one family for
        each step.
      degrees_of_freedom: Degrees of freedom of Student's t, above 0; None for the other families. If
        one of `noise` and `degrees_of_freedom` is given as a table over steps, both become tables; a
        single number then applies to all steps with Student's t.
      num_weights: Number of weights, which is the length of every vector; None, together with
        `largest_entry`, describes vectors of every length.
      codebook: Vectors as tuples of numbers, whose signs do not matter, or None.
      largest_entry: If given (and `codebook` is None), the description covers every codebook of
        vectors of norm at most 1 with entries of at most this number. If both are None, the codebook
        is the single vector of `normal_quantiles`.
      private_codebook: Whether the vectors were fitted to private gradients.

    Example:
      >>> from tfdp.accounting import Encoding
      >>> encoding = Encoding(num_weights=2, codebook=((0.6, 0.8), (1.0, 0.0)), noise="laplace")
      >>> encoding.describe()
      '2 given vectors of 2 entries'
      >>> print(f"{encoding.norm:.3f}")
      1.000
    """

    noise: str | tuple[str, ...] = GAUSSIAN
    degrees_of_freedom: float | tuple[float | None, ...] | None = None
    num_weights: int | None
    codebook: tuple[tuple[float, ...], ...] | None = None
    largest_entry: float | None = None
    private_codebook: bool = False

    def __post_init__(self):
        noise, nu = _families(self.noise, self.degrees_of_freedom)
        object.__setattr__(self, "noise", noise)
        object.__setattr__(self, "degrees_of_freedom", nu)
        any_length = self.largest_entry is not None
        count = whole("num_weights", self.num_weights, 1, optional=any_length)
        object.__setattr__(self, "num_weights", count)
        if self.codebook is not None:
            object.__setattr__(self, "codebook", self._vectors())
        if self.largest_entry is not None:
            if self.codebook is not None:
                raise ValueError(
                    "Expected codebook or largest_entry. Received both. Leave one out."
                )
            remedy = "Pass it in units of the norm."
            largest = fraction("largest_entry", self.largest_entry, one=True, remedy=remedy)
            object.__setattr__(self, "largest_entry", largest)
        private = flag("private_codebook", self.private_codebook)
        object.__setattr__(self, "private_codebook", private)

    def _vectors(self) -> tuple[tuple[float, ...], ...]:
        try:
            vectors = np.asarray(self.codebook, float)
        except (TypeError, ValueError):
            vectors = np.empty(0)
        shape = (len(vectors), self.num_weights) if vectors.ndim else None
        if not vectors.size or vectors.shape != shape or not np.all(np.isfinite(vectors)):
            raise ValueError(
                f"Expected codebook to hold at least one vector of {self.num_weights} finite "
                "numbers. Received something else. Pass a tuple of tuples."
            )
        return tuple(map(tuple, vectors.tolist()))

    @property
    def norm(self) -> float:
        """Largest L2 norm of a vector of the codebook."""
        if self.codebook is None:
            return 1.0
        return max(float(np.linalg.norm(v)) for v in self.codebook)

    def magnitudes(self) -> list[np.ndarray]:
        """The corners of the boxes; empty if only the norm and the largest entry are known."""
        if self.codebook is not None:
            return [np.abs(np.array(vector)) for vector in self.codebook]
        if self.largest_entry is not None:
            return []
        return [normal_quantiles(self.num_weights)]

    def describe(self) -> str:
        """Describes the codebook in words."""
        if self.codebook is not None:
            return f"{len(self.codebook)} given vectors of {self.num_weights} entries"
        if self.largest_entry is not None:
            return (
                f"vectors of {self.num_weights or 'any number of'} entries, of norm at most 1 and with "
                f"entries of at most {self.largest_entry:.6g} (in clip norms)"
            )
        return f"one vector, the {self.num_weights} quantiles of N(0, 1) scaled to norm 1"

    # -- families over steps -----------------------------------------------------------------------

    def described_steps(self) -> int | None:
        """Number of steps that the table of families covers, or None for one family."""
        return len(self.noise) if isinstance(self.noise, tuple) else None

    def check(self, steps: int) -> None:
        """Raises ValueError if the table of families has fewer than `steps` entries."""
        length = self.described_steps()
        if length is not None and length < steps:
            raise ValueError(
                f"Expected noise to name a family for each of the {steps} steps. Received {length} "
                "names. Pass one family or the whole table."
            )

    def runs_of_families(self, steps: int) -> list[tuple[Family, int]]:
        """Families of the first `steps` steps, run-length encoded.

        Returns:
          Pairs ((family, degrees of freedom), number of consecutive steps), in order of the steps.
        """
        if not isinstance(self.noise, tuple):
            return [((self.noise, self.degrees_of_freedom), steps)]
        table = zip(self.noise[:steps], self.degrees_of_freedom[:steps], strict=True)
        return [(family, len(list(same))) for family, same in itertools.groupby(table)]

    def families(self, steps: int) -> list[Family]:
        """The distinct pairs (family, degrees of freedom) of the first `steps` steps."""
        return list(dict.fromkeys(family for family, _ in self.runs_of_families(steps)))

    def of_family(self, family: str, degrees_of_freedom: float | None) -> "Encoding":
        """Returns a copy with the same codebook and one family of noise for all steps."""
        return dataclasses.replace(self, noise=family, degrees_of_freedom=degrees_of_freedom)

    def past(self, steps: int) -> tuple:
        """The codebook and the families up to `steps`; equal if the same steps were executed."""
        plain = self.of_family(GAUSSIAN, None)
        return plain, *self.runs_of_families(steps)

    # -- reading and writing -----------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe fields; a table of families becomes its run-length encoding."""
        fields = dataclasses.asdict(self)
        for name in ("noise", "degrees_of_freedom"):
            if isinstance(fields[name], tuple):
                fields[name] = records.run_lengths(fields[name])
        return fields

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Encoding":
        """Inverse of `to_dict`, also for fields that were written to JSON and read again."""
        fields = dict(fields)
        for name in ("noise", "degrees_of_freedom"):
            if isinstance(fields.get(name), dict):
                fields[name] = records.from_run_lengths(fields[name])
        if fields.get("codebook") is not None:
            fields["codebook"] = tuple(tuple(vector) for vector in fields["codebook"])
        return cls(**fields)


def _families(noise, degrees_of_freedom):
    """Validates families and degrees of freedom; returns both plain, or both as equally long tables."""
    table = isinstance(noise, tuple | list)
    if not table and not isinstance(degrees_of_freedom, tuple | list):
        return noise, _degrees(noise, degrees_of_freedom)
    names = tuple(noise) if table else (noise,) * len(degrees_of_freedom)
    if not isinstance(degrees_of_freedom, tuple | list):
        degrees_of_freedom = [degrees_of_freedom if name == STUDENT_T else None for name in names]
    if len(names) != len(degrees_of_freedom):
        raise ValueError(
            f"Expected degrees_of_freedom for each of the {len(names)} steps of the table of noise. "
            f"Received {len(degrees_of_freedom)} values. Pass one table of each, equally long."
        )
    return names, tuple(_degrees(n, nu) for n, nu in zip(names, degrees_of_freedom, strict=True))


def _degrees(noise: str, nu: float | None) -> float | None:
    """Validates one family and its degrees of freedom, which it returns."""
    one_of("noise", noise, FAMILIES)
    if noise != STUDENT_T:
        if nu is not None:
            raise ValueError(
                f"Expected degrees_of_freedom with student_t noise only. Received {nu!r} with "
                f"{noise!r}. Leave it out."
            )
        return None
    return positive("degrees_of_freedom", nu, remedy="Student's t needs them: pass for example 9.")


def normal_quantiles(number: int) -> np.ndarray:
    """Magnitudes of the N(0, 1) quantiles at (i + 1/2) / number, scaled to norm 1, in rising order."""
    if number == 1:
        return np.ones(1)  # the median itself would be 0
    values = np.sort(np.abs(special.ndtri((np.arange(number) + 0.5) / number)))
    return values / np.linalg.norm(values)
