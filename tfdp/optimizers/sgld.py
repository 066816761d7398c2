"""Stochastic gradient Langevin dynamics with private gradients: the baseline without dropout.

Welling and Teh 2011, with steps of size eta_t / N on a loss that is a mean over N examples:

    theta_{t+1} = theta_t - eta_t / 2 (gradient of the mean loss) + N(0, eta_t / N)

In the long run, the weights are draws from the posterior, with the prior that the weight regularizers
define. For privacy, the noise has to be at least that of the mechanism, so the larger of the two is
added. The dropout paper says only that it "uses SGLD to update the weights" of its baseline; this is
our reading. SGLD differs from `DPDropoutOptimizer` in its noise at small learning rates: the noise of a
private gradient shrinks with eta_t, and Langevin noise with its square root.

Formal guarantee: as DP-SGD with noise multiplier z, the only noise in the accounting. A step with more
noise is a step with the stated noise, plus independent noise as post-processing.
"""

from typing import Unpack

import keras
import tensorflow as tf

from tfdp._validate import whole
from tfdp.accounting.mechanisms import SGLD
from tfdp.optimizers.arguments import LangevinArguments, Rate
from tfdp.optimizers.langevin import LangevinOptimizer


@keras.saving.register_keras_serializable(package="tfdp")
class SGLDOptimizer(LangevinOptimizer):
    """Stochastic gradient Langevin dynamics with private gradients, the baseline of the dropout paper.

    A step is half the learning rate times the noisy mean gradient (Welling and Teh 2011, "Bayesian
    Learning via Stochastic Gradient Langevin Dynamics"). The noise is that of Langevin dynamics, or
    that of the noise multiplier if it is larger; only the noise multiplier is accounted. Use it to
    reproduce the paper; for other purposes, DP-SGD is the usual choice.

    Args:
        num_examples: Public number N of examples, which determines the noise of Langevin dynamics.
        **kwargs: Arguments of `LangevinOptimizer`.

    Raises:
        TypeError: If an argument is unknown.
        ValueError: If an argument is invalid.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> optimizer = tfdp.SGLDOptimizer(
        ...     learning_rate=0.1, num_examples=100, l2_norm_clip=3.0, noise_multiplier=2 * 3.23)
        >>> model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
        >>> model.compile(optimizer, "mse")
        >>> x = np.zeros((100, 2), "float32")
        >>> _ = model.fit(x, x[:, :1], batch_size=50, verbose=0)
        >>> model.privacy.current_run.mechanism.name, model.privacy.steps_taken
        ('sgld', 2)
    """

    mechanism = SGLD
    title = "SGLD (Langevin steps)"

    def __init__(
        self, learning_rate: Rate = 0.1, *, num_examples: int, **kwargs: Unpack[LangevinArguments]
    ):
        num_examples = whole("num_examples", num_examples, 1)
        super().__init__(learning_rate, **kwargs)
        self.num_examples = num_examples

    def _stddev(self, noise_multiplier, bounded, session):
        # The sum of the lot moves a weight by eta_t / (2 L), so Langevin noise with standard deviation
        # sqrt(eta_t / N) on the weight is noise with 2 L / sqrt(eta_t N) on the sum.
        rate = tf.cast(self.learning_rate, tf.float32)
        langevin = 2.0 * session.divisor * tf.math.rsqrt(rate * float(self.num_examples))
        private = super()._stddev(noise_multiplier, bounded, session)
        return tf.maximum(langevin, tf.cast(private, tf.float32))

    def get_config(self):
        return super().get_config() | {"num_examples": self.num_examples}
