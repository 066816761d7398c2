"""Dense and convolutional layers with noisy weights (SI-DPSGD, section 3).

A layer uses a kernel that is drawn from N(mu, sigma^2): mu is learned, sigma is constant.
By the reparametrization trick, w = mu + sigma * n, the gradient at the drawn kernel is the gradient
with respect to mu.

These layers show that normalized networks tolerate noise. They are not a mechanism of differential
privacy: nothing here bounds the contribution of an example, and mu is among the weights.
"""

import math
import secrets

import keras
import tensorflow as tf

from tfdp._compat.keras import kernel_of, layers_of
from tfdp._validate import finite, flag, whole

_WORD = 2**32


def standard_normal(shape, seed) -> tf.Tensor:
    """Returns float32 numbers from N(0, 1) that depend on the seed alone, with and without XLA.

    Args:
        shape: Shape of the numbers.
        seed: int64 tensor [2].
    """
    # tf.random.stateless_normal gives different numbers for a seed under XLA, so a compiled and an
    # eager call would get different draws. Random words are the same in both.
    words = tf.random.stateless_uniform(
        (2, *shape), seed=seed, minval=None, maxval=None, dtype=tf.uint32, alg="philox"
    )
    # Box-Muller, on uniform numbers of 24 bits in (0, 1], so that the logarithm is finite.
    uniform = (tf.cast(tf.bitwise.right_shift(words, 8), tf.float32) + 0.5) * 2.0**-24
    radius = tf.sqrt(-2.0 * tf.math.log(uniform[0]))
    return radius * tf.cos(2.0 * math.pi * uniform[1])


class DrawnNoise(keras.layers.Layer):
    """Base class of layers that draw noise for their weights, once per lot.

    The noise depends only on the variable `weight_noise_state`, a seed and a counter. So every example
    of a lot gets the same draw (also in `tf.vectorized_map`), norm and gradient use the same weights,
    and a loaded model computes the same outputs as the saved one.
    """

    def set_noise(self, noise_stddev, seed) -> None:
        """Validates and stores the standard deviation of the noise and the seed, or None."""
        self.noise_stddev = finite("noise_stddev", noise_stddev, 0)
        self.seed = whole("seed", seed, 0, _WORD - 1, optional=True)

    def add_noise_state(self) -> None:
        """Creates the state, before the first draw."""
        # The seed does not come from Keras' global seed: two layers, or two runs, must not have the
        # same noise.
        word = secrets.randbits(32) if self.seed is None else self.seed
        self.weight_noise_state = self.add_weight(
            name="weight_noise_state",
            shape=(2,),
            dtype="int64",  # TensorFlow sends no uint32 to other machines
            initializer=lambda shape, dtype: tf.constant([word, 0], dtype),
            trainable=False,
            autocast=False,
        )

    def advance_noise(self):
        """Advances to the next draw, as every call with `training=True` does."""
        self.weight_noise_state.assign(self.weight_noise_state + tf.constant([0, 1], tf.int64))

    def draw_noise(self, shape, number: int = 0) -> tf.Tensor:
        """Returns the float32 noise of the current draw, without changing the state.

        Args:
            shape: Shape of the noise.
            number: Index of the weight in the layer; each has independent noise.
        """
        state = tf.cast(keras.ops.convert_to_tensor(self.weight_noise_state), tf.int64)
        # The seed has 32 bits; the bits above number the weights.
        seed = state + tf.constant([number * _WORD, 0], tf.int64)
        return self.noise_stddev * standard_normal(shape, seed)


class _NoisyKernel(DrawnNoise):
    """Mixin that calls a Keras layer, the next base class, with a drawn kernel."""

    def __init__(
        self,
        *args,
        noise_stddev: float,
        noise_at_inference: bool = True,
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.set_noise(noise_stddev, seed)
        self.noise_at_inference = flag("noise_at_inference", noise_at_inference)

    def build(self, input_shape):
        super().build(input_shape)
        self.add_noise_state()

    def call(self, inputs, training=None):
        if not (training or self.noise_at_inference):
            return super().call(inputs)
        kernel = keras.ops.convert_to_tensor(self.kernel)
        drawn = kernel + tf.cast(self.draw_noise(kernel.shape), kernel.dtype)
        # The scope hides one that is already open, so it also needs the bias.
        mapping = [(kernel_of(self), drawn)]
        if self.use_bias:
            mapping.append((self.bias, keras.ops.convert_to_tensor(self.bias)))
        with keras.StatelessScope(state_mapping=mapping):
            outputs = super().call(inputs)
        if training:
            self.advance_noise()
        return outputs

    def save_own_variables(self, store):
        super().save_own_variables(store)  # kernel and bias only
        store["weight_noise_state"] = self.weight_noise_state.numpy()

    def load_own_variables(self, store):
        super().load_own_variables(store)
        self.weight_noise_state.assign(store["weight_noise_state"])

    def get_config(self):
        names = ("noise_stddev", "noise_at_inference", "seed")
        return super().get_config() | {name: getattr(self, name) for name in names}


_ARGUMENTS = """
    Every call with `training=True` draws new noise, the same for all rows. Use the layer to see how
    well a network tolerates noisy weights (SI-DPSGD, section 3). It gives no privacy. The bias has no
    noise, because the paper adds noise to the weight matrix only.

    Args:
        *args: Arguments of the Keras layer.
        noise_stddev: Sigma, the standard deviation of the noise on every weight of the kernel, in
            units of the weights; at least 0.
        noise_at_inference: Whether inference uses noise (the default), as in the paper's experiments,
            or the mean. The noise at inference is constant until training resumes. It belongs to the
            current state, which is saved with the weights.
        seed: Seed of the noise, an integer from 0 to 2**32 - 1; None takes one from the operating
            system.
        **kwargs: Arguments of the Keras layer.

    Raises:
        ValueError: If `noise_stddev` is negative, infinite or NaN, or `seed` is out of range.
"""


@keras.saving.register_keras_serializable(package="tfdp")
class NoisyDense(_NoisyKernel, keras.layers.Dense):
    __doc__ = f"""`keras.layers.Dense` whose kernel is drawn around a trainable mean.
{_ARGUMENTS}
    Example:
        >>> import keras, numpy as np, tfdp
        >>> layer = tfdp.layers.NoisyDense(3, noise_stddev=0.1)
        >>> x = np.ones((5, 2), "float32")
        >>> one = layer(x, training=True)
        >>> other = layer(x, training=True)  # with the next draw of the kernel
        >>> np.array_equal(one, other), np.array_equal(layer(x), layer(x))
        (False, True)
    """


@keras.saving.register_keras_serializable(package="tfdp")
class NoisyConv1D(_NoisyKernel, keras.layers.Conv1D):
    __doc__ = f"""`keras.layers.Conv1D` whose kernel is drawn around a trainable mean.
{_ARGUMENTS}
    Example:
        >>> import keras, numpy as np, tfdp
        >>> layer = tfdp.layers.NoisyConv1D(4, 3, noise_stddev=0.1, kernel_initializer="zeros")
        >>> outputs = layer(np.ones((1, 8, 1), "float32"))
        >>> outputs.shape, bool(np.any(outputs != 0.0))  # the kernel is noise alone
        (TensorShape([1, 6, 4]), True)
    """


@keras.saving.register_keras_serializable(package="tfdp")
class NoisyConv2D(_NoisyKernel, keras.layers.Conv2D):
    __doc__ = f"""`keras.layers.Conv2D` whose kernel is drawn around a trainable mean.
{_ARGUMENTS}
    Example:
        >>> import keras, numpy as np, tfdp
        >>> layer = tfdp.layers.NoisyConv2D(4, 3, noise_stddev=0.1, kernel_initializer="zeros")
        >>> outputs = layer(np.ones((1, 8, 8, 1), "float32"))
        >>> outputs.shape, bool(np.any(outputs != 0.0))  # the kernel is noise alone
        (TensorShape([1, 6, 6, 4]), True)
    """


@keras.saving.register_keras_serializable(package="tfdp")
class NoisyConv3D(_NoisyKernel, keras.layers.Conv3D):
    __doc__ = f"""`keras.layers.Conv3D` whose kernel is drawn around a trainable mean.
{_ARGUMENTS}
    Example:
        >>> import keras, numpy as np, tfdp
        >>> layer = tfdp.layers.NoisyConv3D(4, 3, noise_stddev=0.1, kernel_initializer="zeros")
        >>> outputs = layer(np.ones((1, 8, 8, 8, 1), "float32"))
        >>> outputs.shape, bool(np.any(outputs != 0.0))  # the kernel is noise alone
        (TensorShape([1, 6, 6, 6, 4]), True)
    """


NoisyConv = NoisyConv2D  # the default is for images


def noisy_layers(model) -> list:
    """Returns all noisy layers of a model, including nested ones."""
    layers = layers_of(model, itself=True)
    return [layer for layer in layers if isinstance(layer, _NoisyKernel)]
