"""Figure 1 (c, f) of the dropout paper: the noise that its two recipes give for an epsilon.

This module imports neither TensorFlow nor Keras.
"""

from tfdp import accounting


def compute(
    *,
    composition: str,
    epsilon: float,
    delta: float,
    num_examples: int,
    lot_size: int,
    epochs: int,
    clip_groups: int,
) -> dict:
    """Computes the sigma that the paper's recipe gives, and what is proven of it.

    Args:
        composition: the reading of the recipe, one of `accounting.mechanisms.dp_dropout.READINGS`.
        epsilon, delta: the claimed guarantee.
        num_examples, lot_size, epochs: the training, in Poisson lots.
        clip_groups: the number of layers that are clipped one by one.

    Returns:
        "sigma" (half of tfdp's noise multiplier), "claimed" and "proven" (epsilons).
    """
    run = accounting.describe(
        "dp_dropout",
        "poisson",
        num_examples=num_examples,
        lot_size=lot_size,
        epochs=epochs,
        noise_multiplier=1.0,
        composition=composition,
        clip_groups=clip_groups,
    )
    noise = accounting.noise_for(epsilon, delta, run, "claimed")
    run = run.with_noise(noise)
    return {
        "sigma": noise / 2,
        "claimed": accounting.claimed(run, delta).epsilon,
        "proven": accounting.proven(run, delta).epsilon,
    }
