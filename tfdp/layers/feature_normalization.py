"""What the public and the private batch normalization have in common."""

import keras
import tensorflow as tf

from tfdp._validate import flag, positive


class FeatureNormalization(keras.layers.Layer):
    """Base of layers that normalize each feature and then apply a learned factor and offset.

    Args:
        axis: the axis of the features; not 0, the examples.
        epsilon: constant > 0 that is added to the variance.
        center, scale: whether the layer learns an offset, and whether it learns a factor.
        **kwargs: as for any Keras layer.

    Raises:
        ValueError: an argument is invalid.
    """

    def __init__(self, axis, epsilon, center, scale, **kwargs):
        super().__init__(**kwargs)
        if isinstance(axis, bool) or not (isinstance(axis, int) and axis != 0):
            raise ValueError(
                "Invalid value received for argument `axis`. Expected one axis other than 0, the "
                f"examples. Received: {axis!r}"
            )
        self.supports_masking = True  # so that Keras calls `compute_mask`, which refuses masks
        self.axis = axis
        self.epsilon = positive("epsilon", epsilon)
        self.center = flag("center", center)
        self.scale = flag("scale", scale)

    def build(self, input_shape):
        if not self.axis % len(input_shape):
            raise ValueError(
                f"Layer '{self.name}' normalizes along axis {self.axis}, which is that of the "
                f"examples. Expected another axis of inputs of shape {tuple(input_shape)}."
            )
        shape = (input_shape[self.axis],)
        self.gamma = self.beta = None
        if self.scale:
            self.gamma = self.add_weight(name="gamma", shape=shape, initializer="ones")
        if self.center:
            self.beta = self.add_weight(name="beta", shape=shape, initializer="zeros")

    def compute_output_shape(self, input_shape):
        return input_shape

    def compute_mask(self, inputs, previous_mask=None):
        if previous_mask is not None:
            raise ValueError(
                f"Layer '{self.name}' ({type(self).__name__}) received a mask, and would count "
                "masked positions. Expected inputs without a mask; use LayerNormalization."
            )

    def broadcast(self, rank: int) -> list[int]:
        """Returns the shape in which a value for each feature meets inputs of a rank."""
        shape = [1] * rank
        shape[self.axis] = -1
        return shape

    def scaled(self, outputs: tf.Tensor) -> tf.Tensor:
        """Applies factor and offset to normalized values, float32 [rows, ...]."""
        shape = self.broadcast(outputs.shape.rank)
        if self.gamma is not None:
            outputs *= tf.reshape(tf.cast(self.gamma, tf.float32), shape)
        if self.beta is not None:
            outputs += tf.reshape(tf.cast(self.beta, tf.float32), shape)
        return outputs

    def positions(self, rank: int) -> list[int]:
        """Returns the axes of the positions in inputs of a rank: neither examples nor features."""
        return [axis for axis in range(1, rank) if axis != self.axis % rank]

    def get_config(self):
        names = ("axis", "epsilon", "center", "scale")
        return super().get_config() | {name: getattr(self, name) for name in names}
