"""Advice: compares the noise of a run with that of another mechanism at the same proven epsilon."""

import dataclasses

from tfdp.accounting.run import Run, check_run


@dataclasses.dataclass(frozen=True)
class Advice:
    """Comparison of a mechanism with weight noise and DP-SGD at equal epsilon, lot size and steps.

    A number is None if DP-SGD has no finite guarantee, or if it was not computed.

    Attributes:
      epsilon: The proven epsilon of both mechanisms.
      noise_same_sampling: Noise multiplier of DP-SGD with the run's own sampling, or None.
      noise_poisson: Noise multiplier of DP-SGD with Poisson lots, or None.
      final_noise_ratio: Noise in the final weights of this mechanism, over that of DP-SGD with the
        run's own sampling.
      final_noise_ratio_poisson: The same ratio for DP-SGD with Poisson lots.
      prefix_noise_ratio: Largest weight noise of any step of this mechanism, over the noise in the
        final weights of DP-SGD with the run's own sampling.
      sentence: The comparison in words.

    Example:
      >>> from tfdp.accounting import Run, advice
      >>> run = Run(mechanism="si_dpsgd", sampling="cyclic", num_examples=100, lot_size=100, steps=4,
      ...           noise_multiplier=4.0, learning_rates=0.1)
      >>> found = advice(run, delta=1e-3)
      >>> print(f"{found.final_noise_ratio:.2f}")  # SI-DPSGD's weights carry more noise
      1.37
      >>> "DP-SGD" in found.sentence
      True
    """

    epsilon: float
    noise_same_sampling: float | None
    noise_poisson: float | None
    final_noise_ratio: float | None
    final_noise_ratio_poisson: float | None
    prefix_noise_ratio: float | None
    sentence: str


def advice(run: Run, delta: float, adjacency: str = "zero_out") -> Advice:
    """Compares a run with DP-SGD at the same proven epsilon, if its mechanism implements `advice`.

    Args:
      run: Run of at least one step whose mechanism implements `advice`, such as SI-DPSGD.
      delta: Probability in (0, 1).
      adjacency: Neighbouring relation.

    Returns:
      An `Advice`.

    Raises:
      ValueError: For any other mechanism, or a run without steps.

    Example:
      >>> from tfdp.accounting import Run, advice
      >>> run = Run(mechanism="si_dpsgd", sampling="cyclic", num_examples=100, lot_size=100, steps=4,
      ...           noise_multiplier=4.0, learning_rates=0.1)
      >>> found = advice(run, delta=1e-3)
      >>> print(f"{found.noise_same_sampling:.3f}")  # DP-SGD's noise multiplier at the same epsilon
      1.461
    """
    found = check_run(run).mechanism.advice(run, delta, adjacency)
    if found is None:
        raise ValueError(
            "Expected a run of at least one step with a mechanism that has advice to give. Received "
            f"the mechanism {run.mechanism_name!r} and {run.steps} steps. Leave the advice out."
        )
    return found
