"""The step and the schedule shared by the optimizers of the differentially private dropout paper.

"Differentially Private Dropout", Algorithm 1, written for a loss to minimize:

    theta_{t+1} = theta_t - eta_t / 2 (clipped gradient + noise),  eta_t = eta_0 / t^gamma

The gradients of the examples are clipped and summed, noise is added to the sum, and the result is
divided by the public lot size. Taken literally, the paper's algorithm clips the gradient of the whole
lot: this is `num_microbatches=1` with lots of a fixed size, with noise that is L times larger relative
to the gradient.
"""

from typing import Unpack

import keras
import numpy as np
import tensorflow as tf

from tfdp._validate import finite, one_of, positive, refuse, whole
from tfdp.accounting.mechanisms import READINGS
from tfdp.optimizers.arguments import Rate, StepArguments
from tfdp.optimizers.dp_keras_optimizer import DPKerasOptimizer


@keras.saving.register_keras_serializable(package="tfdp")
class PowerDecay(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate schedule eta_0 / t^gamma, where t = 1, 2, ... counts rounds.

    Args:
        initial: eta_0 > 0.
        exponent: Gamma >= 0.
        steps_per_round: Number of steps in a round, at least 1.

    Raises:
        ValueError: If an argument is invalid.
    """

    def __init__(self, initial: float, exponent: float, steps_per_round: int = 1):
        super().__init__()
        # The errors use the names of the optimizers' arguments.
        self.initial = positive("learning_rate", initial)
        self.exponent = finite("learning_rate_exponent", exponent, 0)
        self.steps_per_round = whole("steps_per_epoch", steps_per_round, 1)

    def __call__(self, step):
        rounds = 1 + tf.cast(step, tf.int64) // self.steps_per_round
        return self.initial * tf.cast(rounds, tf.float32) ** -self.exponent

    def get_config(self):
        return {
            "initial": self.initial,
            "exponent": self.exponent,
            "steps_per_round": self.steps_per_round,
        }


class LangevinOptimizer(DPKerasOptimizer, keras.optimizers.SGD):
    """Base class of the optimizers of the dropout paper: half steps along noisy gradients.

    Args:
        learning_rate: eta_0, a float; or eta_t itself, a `LearningRateSchedule` or a function without
            arguments.
        learning_rate_exponent: Gamma >= 0 in eta_t = eta_0 / t^gamma; None takes the paper's 1, or 0
            if eta_t is given.
        steps_per_epoch: Number of steps after which t increases by one; 1 counts steps. (The paper
            updates the rate "per round" and calls T both the number of passes over the data and the
            number of steps.)
        clipping: "each_layer", the default: each layer is clipped at C, as in the paper, so that the
            whole gradient is within C sqrt(layers), which the accounting includes. Or "global",
            "per_layer", "automatic" or "adaptive", as in `DPKerasOptimizer`.
        composition: The reading of the paper's recipe that the claimed epsilon follows: "ac",
            "zcdp", "zcdp_a", "zcdp_c", "ac_as_printed" or "zcdp_as_printed";
            `tfdp.accounting.mechanisms` has their formulas in `READINGS`. None takes the default of
            the mechanism.
        noise_multiplier: z >= 0, the standard deviation of the noise on the sum, in units of C. It is
            twice the paper's sigma, whose noise is N(0, 4 C^2 sigma^2). Or a sequence with one number
            for each step, which limits the number of steps.
        **kwargs: Arguments of `DPKerasOptimizer` and `keras.optimizers.SGD`.

    Raises:
        ValueError: If an argument is invalid.
    """

    mean_factor = 0.5

    accounted = (*DPKerasOptimizer.accounted, "composition")

    def __init__(
        self,
        learning_rate: Rate = 0.1,
        learning_rate_exponent: float | None = None,
        steps_per_epoch: int = 1,
        clipping: str = "each_layer",
        composition: str | None = None,
        **kwargs: Unpack[StepArguments],
    ):
        one_of("composition", composition, READINGS, optional=True)
        if not callable(learning_rate):  # neither a schedule nor a function
            exponent = 1.0 if learning_rate_exponent is None else learning_rate_exponent
            learning_rate = PowerDecay(learning_rate, exponent, steps_per_epoch)
        elif learning_rate_exponent:
            expected = "0 or None with a learning rate that already has a schedule"
            refuse(
                "learning_rate_exponent", expected, learning_rate_exponent, "Remove one of the two."
            )
        super().__init__(learning_rate=learning_rate, clipping=clipping, **kwargs)
        self.composition = composition

    @property
    def sigma(self) -> float:
        """The paper's noise scale sigma: half the noise multiplier (the first entry of a table)."""
        return float(np.ravel(self.noise_multiplier)[0]) / 2.0

    def mechanism_fields(self, variables) -> dict:
        return super().mechanism_fields(variables) | {"composition": self.composition}

    def get_config(self):
        return super().get_config() | {"composition": self.composition}
