"""Differentially private dropout (DPD): noise on the weights, interpreted as Gaussian dropout.

Multiplying a weight theta by N(1, alpha) adds N(0, alpha theta^2) to it. So additive noise N(0, 4 C^2
sigma^2), independent of the weights, is dropout with the rate alpha = 4 C^2 sigma^2 / theta^2 of each
weight (section 4.2 of the paper). The rate is computed from the noise, and never the noise from the
rate: noise that depended on the weights would have no guarantee.
"""

import keras
import numpy as np

from tfdp.accounting.mechanisms import DPDropout
from tfdp.optimizers.langevin import LangevinOptimizer


@keras.saving.register_keras_serializable(package="tfdp")
class DPDropoutOptimizer(LangevinOptimizer):
    """Differentially private dropout: DP-SGD with half steps, whose noise is read as dropout.

    Use it to reproduce the paper; for other purposes, DP-SGD is the usual choice. `scalars` returns
    the rates of the dropout that is equivalent to the noise.

    Source: Ermis and Cemgil, "Differentially Private Dropout", Algorithm 1.

    Args:
        **kwargs: Arguments of `LangevinOptimizer`.

    Raises:
        TypeError: If an argument is unknown.
        ValueError: If an argument is invalid.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> optimizer = tfdp.DPDropoutOptimizer(
        ...     learning_rate=0.1, l2_norm_clip=3.0, noise_multiplier=2 * 3.23, composition="zcdp")
        >>> dense = keras.layers.Dense(1, name="dense")
        >>> model = tfdp.make_private(keras.Sequential([keras.Input((2,)), dense], name="model"))
        >>> model.compile(optimizer, "mse")
        >>> x = np.zeros((100, 2), "float32")
        >>> _ = model.fit(x, x[:, :1], batch_size=50, verbose=0)
        >>> sorted(optimizer.scalars(model.trainable_variables))  # rates of the equivalent dropout
        ['dropout_alpha/model/dense']
    """

    mechanism = DPDropout
    title = "DP dropout (Langevin steps)"

    def scalars(self, variables) -> dict:
        """Returns the dropout rate of each layer that is equivalent to the noise.

        `dropout_alpha/<layer>` is the paper's 4 C^2 sigma^2 / theta^2, with the mean of theta^2 over
        the weights of the layer, and the noise on the sum of gradients. The rates depend only on
        released weights and public noise, so they reveal nothing more.

        Args:
            variables: The trainable variables.
        """
        noise = 2.0 * float(self.bound(variables).l2_norm_clip) * self.sigma
        layers: dict[str, list[np.ndarray]] = {}
        for variable in variables:
            layer = variable.path.rpartition("/")[0] or variable.path
            layers.setdefault(layer, []).append(np.ravel(variable.numpy()).astype(float))
        rates = {}
        for layer, weights in layers.items():
            mean = float(np.mean(np.square(np.concatenate(weights))))
            rates[f"dropout_alpha/{layer}"] = noise**2 / mean if mean else np.inf if noise else 0.0
        return super().scalars(variables) | rates
