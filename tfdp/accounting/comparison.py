"""Advice: what another mechanism would cost at the same proven epsilon."""

import dataclasses

from tfdp.accounting.run import Run


@dataclasses.dataclass(frozen=True)
class Advice:
    """A mechanism with weight noise against DP-SGD at the same proven epsilon, lots and steps.

    Attributes:
      epsilon: The proven epsilon that both share.
      noise_same_sampling: Noise multiplier of DP-SGD with the run's own sampling, or None.
      noise_poisson: Noise multiplier of DP-SGD with Poisson lots, or None.
      final_noise_ratio: Noise in the final weights, this mechanism over DP-SGD, same sampling.
      final_noise_ratio_poisson: The same, against Poisson lots.
      prefix_noise_ratio: Largest noise along the way (on the prefix sums), same sampling.
      sentence: All of it in words.
    """

    epsilon: float
    noise_same_sampling: float | None
    noise_poisson: float | None
    final_noise_ratio: float | None
    final_noise_ratio_poisson: float | None
    prefix_noise_ratio: float | None
    sentence: str


def advice(run: Run, delta: float, adjacency: str = "zero_out") -> Advice:
    """Compares a run with DP-SGD at the same proven epsilon, where its mechanism has such advice.

    Args:
      run: At least one step of a mechanism that has advice to give.
      delta: Probability in (0, 1).
      adjacency: Neighbouring relation.

    Returns:
      An `Advice`.

    Raises:
      ValueError: For another mechanism, or a run without steps.
    """
    found = run.mechanism.advice(run, delta, adjacency)
    if found is None:
        raise ValueError(
            "Expected a run of at least one step with a mechanism that has advice to give. Received "
            f"the mechanism {run.mechanism_name!r} and {run.steps} steps. Leave the advice out."
        )
    return found
