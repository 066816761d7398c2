"""Noise on the weights of a whole network, in training and in testing (SI-DPSGD, section 3).

The network uses weights that are drawn from N(mu, sigma^2): the means mu are learned, sigma is
constant. By the reparametrization trick, w = mu + sigma * n, the gradient at the drawn weights is the
gradient with respect to mu.

This shows that normalized networks tolerate noise (Tables 1 to 3 of the paper). It is not a mechanism
of differential privacy: nothing here bounds the contribution of an example, and mu is one of the
weights.
"""

import keras
import tensorflow as tf

from tfdp._validate import one_of
from tfdp.layers.noisy import DrawnNoise

WHICH = ("all", "kernels")
_KERNELS = ("kernel", "recurrent_kernel", "embeddings", "depthwise_kernel", "pointwise_kernel")


@keras.saving.register_keras_serializable(package="tfdp")
class NoisyWeights(DrawnNoise):
    """Runs a network with Gaussian noise of constant standard deviation on its trainable weights.

    Use it to see how well a network tolerates noisy weights (SI-DPSGD, section 3). It gives no
    privacy. It works for every network, without noisy variants of its layers.

    A call, and so a lot, has one draw: all examples, and all time steps of a recurrent layer, use the
    same weights. A call with `training=True` advances to the next draw; inference uses the current
    one, which is saved with the weights. To estimate the expected accuracy of noisy weights, average
    over draws by calling `advance_noise`. The network's own state, such as the moving statistics of
    batch normalization, is updated as without noise.

    Args:
        network: A built keras.Model.
        noise_stddev: Sigma, the standard deviation of the noise, in units of the weights; at least 0.
        which: The weights with noise: "all" trainable ones, or "kernels", which excludes biases and
            the scales and offsets of normalizations. (Section 3 of the paper discusses matrices of
            weights.)
        seed: Seed of the noise, an integer from 0 to 2**32 - 1; None takes one from the operating
            system.
        **kwargs: Arguments of `keras.layers.Layer`.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> network = tfdp.models.build("lenet5", (28, 28, 1), 10, normalization="layer")
        >>> noisy = tfdp.layers.NoisyWeights(network, noise_stddev=0.1)
        >>> model = keras.Sequential([keras.Input((28, 28, 1)), noisy])
        >>> x = np.ones((2, 28, 28, 1), "float32")
        >>> one, again = model(x), model(x)
        >>> noisy.advance_noise()
        >>> np.array_equal(one, again), np.array_equal(one, model(x))
        (True, False)
    """

    def __init__(
        self,
        network: keras.Layer,
        noise_stddev: float,
        which: str = "all",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        one_of("which", which, WHICH)
        self.network = network
        self.which = which
        self.set_noise(noise_stddev, seed)
        self.add_noise_state()
        self.built = True

    def compute_output_shape(self, input_shape):
        return self.network.compute_output_shape(input_shape)

    def drawn_weights(self) -> list[tf.Tensor]:
        """Returns the network's trainable weights with the noise of the current draw.

        The order is that of `network.trainable_variables`.
        """
        drawn = []
        for number, variable in enumerate(self.network.trainable_variables):
            value = keras.ops.convert_to_tensor(variable)
            if self.which == "all" or variable.name in _KERNELS:
                noise = self.draw_noise(variable.shape, number)
                value += tf.cast(noise, value.dtype)
            drawn.append(value)
        return drawn

    def call(self, inputs, training=False):
        network = self.network
        kept = [keras.ops.convert_to_tensor(v) for v in network.non_trainable_variables]
        mapping = [
            *zip(network.trainable_variables, self.drawn_weights(), strict=True),
            *zip(network.non_trainable_variables, kept, strict=True),
        ]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            outputs = network(inputs, training=training)
        for variable, value in zip(network.non_trainable_variables, kept, strict=True):
            new = scope.get_current_value(variable)
            if new is not value:
                variable.assign(new)
        if training:
            self.advance_noise()
        return outputs

    def get_config(self):
        return {
            **super().get_config(),
            "network": keras.saving.serialize_keras_object(self.network),
            "noise_stddev": self.noise_stddev,
            "which": self.which,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config):
        network = keras.saving.deserialize_keras_object(config["network"])
        return cls(**{**config, "network": network})
