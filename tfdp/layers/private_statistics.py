"""Batch normalization that learns its running statistics privately, as weights.

Source: "Differentially Private Training with Batch Normalization", equations 9 and 10, which move the
running mean and the running variance of each feature towards the moments of the lot:

    mean <- (1 - alpha) mean + alpha mean_lot
    variance <- (1 - alpha) variance + alpha variance_lot

Equation 9 is mean <- mean - alpha (mean - mean_lot), and mean - mean_lot is the average over the lot of
mean - m_i, where m_i is the mean of example i. So it is a gradient descent step with
mean - m_i as the gradient of example i. `PrivateBatchNormalization` makes the running statistics
trainable weights with exactly this gradient, for every loss. Equation 10 is the same for the squared
deviations from the running mean. Private training clips, sums and adds noise to weights and statistics
together, as one vector.

The moments of an example are taken over its positions (of an image or a sequence): m_i is the mean of
its inputs, truncated to [-truncation, truncation], and v_i the mean of their squared differences from
the running mean. With s the `share`, the gradients of the two statistics are
s (mean - m_i) / truncation and s (variance - v_i) / truncation^2. An SGD step with learning rate eta
moves both statistics as in equations 9 and 10, with alpha = eta * share * rate, if the lot has its
nominal size and no gradient is clipped.

Formal guarantee: the contribution of an example to a step depends only on that example and on the
weights, including the statistics, and its norm is at most the clip norm C. The proof of DP-SGD does
not need the bounded vector to be a gradient. So the weights and statistics of all steps together
have the guarantee of DP-SGD with the same noise, and normalizing by the statistics, in
training and in testing, is post-processing. The paper's sensitivities C'/L and
C'^2 (3/L - 3/L^2 + 1/L^3) are not used: each of them bounds one statistic of one feature, and C/L
bounds everything together.
"""

import keras
import tensorflow as tf

from tfdp._compat.float32_products import weighted_sum
from tfdp._validate import one_of, positive
from tfdp.layers.feature_normalization import FeatureNormalization
from tfdp.layers.lot_statistics import present_rows


@keras.saving.register_keras_serializable(package="tfdp")
class PrivateBatchNormalization(FeatureNormalization):
    """Batch normalization whose running mean and variance are learned privately, with noise.

    It replaces `keras.layers.BatchNormalization` in a private model, if there are no public examples
    for `PublicBatchNormalization`. `frozen` returns an equivalent Keras layer after training. The
    layer can also be trained without privacy.

    With statistics="running", the layer normalizes by its running statistics both in training and
    in testing, so that no example changes the gradient of another. With statistics="batch",
    training follows the paper: the layer normalizes by the moments of the lot, and the running
    statistics are for testing. One example then changes the gradients of all others, which the
    proven guarantee includes: for lots of L examples, the sensitivity is 2L - 1 instead of 1, and
    infinite for Poisson lots.

    The running statistics are trainable weights. An SGD step with learning rate eta moves them towards
    the moments of the lot, mean <- (1 - alpha) mean + alpha mean_lot, with alpha = eta * share * rate,
    and the variance in the same way. This holds if the lot has its nominal size and no gradient is
    clipped: examples with clipped gradients have less weight in the statistics. Momentum and adaptive
    rules (Adam) keep the guarantee, but move the statistics in another way. For a given alpha, the
    noise on the mean is proportional to truncation / share, and the noise on the variance to
    truncation^2 / share.

    Source: "Differentially Private Training with Batch Normalization", equations 9 and 10.

    Args:
        axis: The axis of the features.
        truncation: C' > 0, in units of the inputs. The statistics are those of inputs truncated to
            [-truncation, truncation]; the outputs are computed from the inputs as they are.
        share: Factor > 0 of the statistics in the clipped vector. A larger one gives more of the
            privacy budget to the statistics and less to the weights.
        rate: Factor > 0 on the steps of the statistics.
        statistics: The statistics used for normalization in training: "running" or "batch".
        floor: Lower limit > 0 on the running variance in normalization, since noise may make the
            running variance negative.
        epsilon: Constant > 0 that is added to the variance.
        center, scale: Whether the layer learns an offset and a factor, respectively.
        **kwargs: Arguments of `keras.layers.Layer`.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> layer = tfdp.layers.PrivateBatchNormalization(truncation=4.0, share=0.5, rate=2.0)
        >>> model = keras.Sequential([keras.Input((1,)), layer])
        >>> model.compile(keras.optimizers.SGD(1.0), "mse")  # alpha is 1 * 0.5 * 2
        >>> x = np.array([[1.0], [3.0]], "float32")
        >>> _ = model.fit(x, np.zeros((2, 1)), batch_size=2, verbose=0)
        >>> print(layer.running_mean.numpy())
        [2.]
        >>> print(layer.running_variance.numpy())  # around the running mean before, which was 0
        [5.]
    """

    def __init__(
        self,
        axis: int = -1,
        truncation: float = 3.0,
        share: float = 0.2,
        rate: float = 0.2,
        statistics: str = "running",
        floor: float = 0.01,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        **kwargs,
    ):
        super().__init__(axis, epsilon, center, scale, **kwargs)
        self.truncation = positive("truncation", truncation)
        self.share = positive("share", share)
        self.rate = positive("rate", rate)
        self.statistics = one_of("statistics", statistics, ("running", "batch"))
        self.floor = positive("floor", floor)

    def build(self, input_shape):
        super().build(input_shape)
        self._rank = len(input_shape)
        shape = (input_shape[self.axis],)
        # All weights get noise of the same scale, so the units of the statistics are adapted to it.
        self.mean_weight = self.add_weight(
            name="mean_weight", shape=shape, dtype="float32", initializer="zeros", autocast=False
        )
        self.variance_weight = self.add_weight(
            name="variance_weight",
            shape=shape,
            dtype="float32",
            initializer=keras.initializers.Constant(1.0 / self.units[1]),
            autocast=False,
        )

    @property
    def units(self) -> tuple[float, float]:
        """The factors from the weights to the mean and the variance."""
        return self.rate * self.truncation, self.rate * self.truncation**2

    @property
    def running_mean(self) -> tf.Tensor:
        """The running mean of each feature, float32 [features]."""
        return self.units[0] * tf.convert_to_tensor(self.mean_weight)

    @property
    def running_variance(self) -> tf.Tensor:
        """The running variance of each feature, float32 [features]; noise may make it negative."""
        return self.units[1] * tf.convert_to_tensor(self.variance_weight)

    @property
    def uses_lot_statistics(self) -> bool:
        """Whether an example changes the outputs of others in its lot during training."""
        return self.statistics == "batch"

    def call(self, inputs, training=False):
        x = tf.cast(inputs, tf.float32)
        present = present_rows(tf.shape(x)[0])
        share = present / tf.reduce_sum(present)
        if training and self.uses_lot_statistics:
            mean, variance = self._lot_moments(x, share)
        else:
            shape = self.broadcast(x.shape.rank)
            variance = tf.maximum(tf.stop_gradient(self.running_variance), self.floor)
            mean = tf.reshape(tf.stop_gradient(self.running_mean), shape)
            variance = tf.reshape(variance, shape)
        outputs = self._pulled((x - mean) * tf.math.rsqrt(variance + self.epsilon), x, share)
        return tf.cast(self.scaled(outputs), inputs.dtype)

    def _lot_moments(self, x, share):
        weights = tf.reshape(share, [-1] + [1] * (x.shape.rank - 1))
        positions = self.positions(x.shape.rank)

        def mean_of(values):
            values = tf.reduce_sum(weights * values, axis=0, keepdims=True)
            return tf.reduce_mean(values, positions, keepdims=True) if positions else values

        mean = mean_of(x)
        return mean, mean_of(tf.square(x - mean))

    def _pulled(self, outputs, x, share):
        """Returns `outputs`, and adds the gradients of the statistics, averaged over rows like a loss.

        In private training a batch is one row, except with the statistics of a lot.
        """

        @tf.custom_gradient
        def pulled(outputs, mean_weight, variance_weight):
            def gradient(upstream):
                pulls = self.pulls(x, self.units[0] * mean_weight, self.units[1] * variance_weight)
                return upstream, *[weighted_sum(share, pull) for pull in pulls]

            return tf.identity(outputs), gradient

        weights = (self.mean_weight, self.variance_weight)
        return pulled(outputs, *map(tf.convert_to_tensor, weights))

    def pulls(self, x, mean, variance) -> list[tf.Tensor]:
        """Returns the gradients of the two statistics for each example.

        Args:
            x: float32 [rows, ...], the inputs of the layer.
            mean, variance: float32 [features], the statistics.

        Returns:
            Two tensors, float32 [rows, features]: for the weights of the mean and of the variance.
        """
        limit = self.truncation
        truncated = tf.clip_by_value(x, -limit, limit)
        # Noise may move the mean out of the range of truncated inputs, where the squared deviations
        # would have no bound.
        center = tf.clip_by_value(mean, -limit, limit)
        squares = tf.square(truncated - tf.reshape(center, self.broadcast(x.shape.rank)))
        positions = self.positions(x.shape.rank)
        if positions:
            truncated = tf.reduce_mean(truncated, positions)
            squares = tf.reduce_mean(squares, positions)
        return [
            self.share / limit * (mean - truncated),
            self.share / limit**2 * (variance - squares),
        ]

    def frozen(self) -> keras.layers.BatchNormalization:
        """Returns an equivalent `keras.layers.BatchNormalization` with `trainable=False`.

        A model with this layer can be loaded without tfdp.

        Example:
            >>> import keras, numpy as np, tfdp
            >>> layer = tfdp.layers.PrivateBatchNormalization()
            >>> x = np.array([[1.0, 2.0]], "float32")
            >>> np.allclose(layer(x), layer.frozen()(x))
            True
        """
        made = keras.layers.BatchNormalization(
            axis=self.axis,
            epsilon=self.epsilon,
            center=self.center,
            scale=self.scale,
            trainable=False,
            name=self.name,
            dtype=self.dtype_policy,
        )
        shape = [None] * self._rank
        shape[self.axis] = self.mean_weight.shape[0]
        made.build(tuple(shape))
        variance = tf.maximum(self.running_variance, self.floor)
        values = (self.gamma, self.beta, self.running_mean, variance)
        made.set_weights([value for value in values if value is not None])
        return made

    def get_config(self):
        names = ("truncation", "share", "rate", "statistics", "floor")
        return super().get_config() | {name: getattr(self, name) for name in names}
