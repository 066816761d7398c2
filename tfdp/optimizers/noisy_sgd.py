"""SGD with noise in its updates, without a guarantee (SI-DPSGD, section 3).

This is the paper's second way to add noise to weights, besides `tfdp.layers.NoisyWeights`.
It is not a mechanism of differential privacy: no gradient is bounded.
"""

import secrets
from typing import Unpack

import keras
import tensorflow as tf

from tfdp._validate import finite, whole
from tfdp.optimizers.arguments import REFUSED, KerasArguments, Rate, describe_arguments

_WORD = 2**32


@keras.saving.register_keras_serializable(package="tfdp")
class NoisySGD(keras.optimizers.SGD):
    """Keras' SGD with Gaussian noise on the gradients, for experiments without privacy.

    An update is w <- w - learning_rate * (g + update_noise * n). Use it to see how well a network
    tolerates noise (SI-DPSGD, section 3). It gives no privacy, because no gradient is clipped. Each
    step and each weight have independent noise, and momentum averages the noisy gradients.

    Args:
        update_noise: Standard deviation of the noise on every entry of the gradient; at least 0.
        seed: Seed of the noise, an integer from 0 to 2**32 - 1; None takes one from the operating
            system.
        **kwargs: Arguments of `keras.optimizers.SGD`.

    Raises:
        ValueError: If `update_noise` is negative, infinite or NaN, or `seed` is out of range.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
        >>> model.compile(tfdp.optimizers.NoisySGD(1.0, update_noise=0.5), "mse")
        >>> before = model.get_weights()[0]
        >>> x, y = np.zeros((4, 2), "float32"), np.zeros((4, 1), "float32")  # no gradient, only noise
        >>> history = model.fit(x, y, epochs=1, verbose=0)
        >>> bool(np.all(model.get_weights()[0] != before))
        True
    """

    def __init__(
        self,
        learning_rate: Rate = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        *,
        update_noise: float = 0.0,
        seed: int | None = None,
        **kwargs: Unpack[KerasArguments],
    ):
        update_noise = finite("update_noise", update_noise, 0)
        seed = whole("seed", seed, 0, _WORD - 1, optional=True)
        super().__init__(learning_rate, momentum, nesterov, **kwargs)
        self.update_noise = update_noise
        self.seed = seed
        self._word = secrets.randbits(32) if seed is None else seed

    def apply(self, grads, trainable_variables=None):
        step = tf.cast(tf.convert_to_tensor(self.iterations), tf.int64)
        noisy = []
        for number, gradient in enumerate(grads):
            if gradient is not None:
                gradient = tf.convert_to_tensor(gradient)
                # The bits above the seed number the weights.
                seed = tf.stack([tf.constant(self._word + number * _WORD, tf.int64), step])
                noise = tf.random.stateless_normal(tf.shape(gradient), seed)
                gradient += tf.cast(self.update_noise * noise, gradient.dtype)
            noisy.append(gradient)
        return super().apply(noisy, trainable_variables)

    def get_config(self):
        return {**super().get_config(), "update_noise": self.update_noise, "seed": self.seed}


describe_arguments(NoisySGD, REFUSED)
