"""Rules for normalizations (by example or by public examples) and PReLU: one factor per feature."""

import keras
import tensorflow as tf

from tfdp.gradients.rules import register
from tfdp.gradients.rules.base import Rule, UnsupportedModelError, replaced
from tfdp.gradients.rules.per_example_gradient import Instantiated
from tfdp.layers import PrivateBatchNormalization, PublicBatchNormalization


class _AffineRule(Rule):
    """output = gamma * normalized + beta; the rule records the output and saves `normalized`."""

    def variables(self):
        return [v for v in (self.layer.gamma, self.layer.beta) if v is not None]

    def axes(self, rank):
        """Returns the axes of the output along which the variables run."""
        raise NotImplementedError

    def plain(self):
        """Returns a context in which the layer's own `call` only normalizes."""
        raise NotImplementedError

    def normalized(self, inputs):
        """Returns the inputs normalized, without gamma and beta."""
        with self.plain():
            return type(self.layer).call(self.layer, inputs)

    def call(self, record, inputs):
        gamma, beta = self.layer.gamma, self.layer.beta
        normalized = self.normalized(inputs)
        rank = normalized.shape.rank
        axes = self.axes(rank)
        shape = [normalized.shape[i] if i in axes else 1 for i in range(rank)]
        # As in Keras' layers, the variables and the affine map stay in float32.
        outputs = tf.cast(normalized, tf.float32)
        if gamma is not None:
            outputs *= tf.reshape(tf.convert_to_tensor(gamma), shape)
        if beta is not None:
            outputs += tf.reshape(tf.convert_to_tensor(beta), shape)
        outputs = tf.cast(outputs, normalized.dtype)
        return record(outputs, normalized=normalized)

    def gradients(self, calls):
        (call,) = calls
        gradient = tf.cast(call.gradient, tf.float32)
        rank = gradient.shape.rank
        others = [i for i in range(1, rank) if i not in self.axes(rank)]
        found = []
        if self.layer.gamma is not None:
            product = gradient * tf.cast(call["normalized"], tf.float32)
            found.append((self.layer.gamma, Instantiated(tf.reduce_sum(product, axis=others))))
        if self.layer.beta is not None:
            found.append((self.layer.beta, Instantiated(tf.reduce_sum(gradient, axis=others))))
        return found


@register(keras.layers.LayerNormalization)
class LayerNormalizationRule(_AffineRule):
    """The variables run along the normalized axes, as in Keras' layer."""

    def refusal(self):
        return "uses the deprecated rms_scaling" if self.layer.rms_scaling else None

    def axes(self, rank):
        return sorted(axis % rank for axis in self.layer.axis)

    def plain(self):
        return replaced(self.layer, gamma=None, beta=None)


@register(keras.layers.GroupNormalization)
class GroupNormalizationRule(_AffineRule):
    """The variables run along the channel axis."""

    def axes(self, rank):
        return [self.layer.axis % rank]

    def plain(self):
        return replaced(self.layer, scale=False, center=False)

    def normalized(self, inputs):
        rank = inputs.shape.rank
        if self.axes(rank) != [rank - 1] or not inputs.shape[1:].is_fully_defined():
            return super().normalized(inputs)
        groups, channels = self.layer.groups, inputs.shape[-1]
        split = tf.reshape(
            inputs, [-1, inputs.shape[1:-1].num_elements(), groups, channels // groups]
        )
        normalized = _normalized_groups(tf.cast(split, tf.float32), self.layer.epsilon)
        return tf.cast(
            tf.reshape(normalized, [-1, *inputs.shape[1:]]),
            keras.backend.standardize_dtype(inputs.dtype),
        )


def _normalized_groups(values, epsilon):
    """Normalizes [rows, positions, groups, channels] over positions and channels.

    Mean and variance are sums over one axis after the other, which take a quarter of the time of a sum
    over both on a CPU, and so do those of the gradient (measured).
    """
    count = values.shape[1] * values.shape[3]

    def mean(values):
        total = tf.reduce_sum(tf.reduce_sum(values, axis=1), axis=-1)
        return (total / count)[:, tf.newaxis, :, tf.newaxis]

    @tf.custom_gradient
    def normalize(values):
        centered = values - mean(values)
        inverse = tf.math.rsqrt(mean(tf.square(centered)) + epsilon)
        normalized = centered * inverse

        def gradient(upstream):
            along = mean(upstream * normalized)
            return inverse * (upstream - mean(upstream) - normalized * along)

        return normalized, gradient

    return normalize(values)


@register(PublicBatchNormalization)
class PublicBatchNormalizationRule(_AffineRule):
    """The variables run along the axis of the features.

    The moments of the public examples are constants here; `rules.moments` adds the gradient that flows
    through the moments into the layer before.
    """

    def axes(self, rank):
        return [self.layer.axis % rank]

    def plain(self):
        return replaced(self.layer, gamma=None, beta=None)


@register(PrivateBatchNormalization)
class PrivateBatchNormalizationRule(_AffineRule):
    """The gradient of the running statistics comes from the inputs alone, not from the loss."""

    def variables(self):
        return [*super().variables(), self.layer.mean_weight, self.layer.variance_weight]

    def axes(self, rank):
        return [self.layer.axis % rank]

    def plain(self):
        return replaced(self.layer, gamma=None, beta=None)

    def call(self, record, inputs, training=False):
        del training  # statistics="batch", where it matters, is not for this engine
        mean, variance = self.layer.pulls(inputs)
        return super().call(
            lambda output, **saved: record(output, mean=mean, variance=variance, **saved), inputs
        )

    def gradients(self, calls):
        (call,) = calls
        statistics = (self.layer.mean_weight, self.layer.variance_weight)
        pulls = (Instantiated(call["mean"]), Instantiated(call["variance"]))
        return [*super().gradients(calls), *zip(statistics, pulls, strict=True)]


@register(keras.layers.RMSNormalization)
class RMSNormalizationRule(Rule):
    """output = scale * normalized."""

    def variables(self):
        return [self.layer.scale]

    def call(self, record, inputs):
        layer = self.layer
        rank, scale = inputs.shape.rank, tf.convert_to_tensor(layer.scale)
        axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
        if sorted(axis % rank for axis in axes) != [*range(rank - scale.shape.rank, rank)]:
            # Keras multiplies by the scale along the last axes, whichever axes it normalizes.
            raise UnsupportedModelError("normalizes other axes than the last")
        normalized = keras.ops.rms_normalization(inputs, axis=layer.axis, epsilon=layer.epsilon)
        return record(normalized * tf.cast(scale, normalized.dtype), normalized=normalized)

    def gradients(self, calls):
        (call,) = calls
        product = tf.cast(call.gradient, tf.float32) * tf.cast(call["normalized"], tf.float32)
        others = [*range(1, product.shape.rank - self.layer.scale.shape.rank)]
        return [(self.layer.scale, Instantiated(tf.reduce_sum(product, axis=others)))]


@register(keras.layers.PReLU)
class PReLURule(Rule):
    """output = relu(x) - alpha * relu(-x)."""

    def variables(self):
        return [self.layer.alpha]

    def call(self, record, inputs):
        negative = -tf.nn.relu(-inputs)
        outputs = tf.nn.relu(inputs) + tf.convert_to_tensor(self.layer.alpha) * negative
        return record(outputs, negative=negative)

    def gradients(self, calls):
        (call,) = calls
        product = tf.cast(call.gradient, tf.float32) * tf.cast(call["negative"], tf.float32)
        shape = self.layer.alpha.shape
        shared = [i + 1 for i, n in enumerate(shape) if n == 1]
        total = tf.reduce_sum(product, axis=shared, keepdims=True)
        return [(self.layer.alpha, Instantiated(total))]
