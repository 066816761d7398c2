"""Base class of the public and the private batch normalization."""

import keras
import tensorflow as tf

from tfdp._validate import flag, positive


class FeatureNormalization(keras.layers.Layer):
    """Base class of layers that normalize each feature and apply a learned factor and offset.

    Args:
        axis: The axis of the features; not 0, the axis of the examples.
        epsilon: Constant > 0 that is added to the variance.
        center, scale: Whether the layer learns an offset and a factor, respectively.
        **kwargs: Arguments of `keras.layers.Layer`.

    Raises:
        ValueError: If an argument is invalid.
    """

    def __init__(
        self,
        axis: int = -1,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.axis = axis
        self.epsilon = positive("epsilon", epsilon)
        self.center = flag("center", center)
        self.scale = flag("scale", scale)

    def build(self, input_shape):
        if not self.axis % len(input_shape):
            raise ValueError(
                f"Layer '{self.name}' normalizes along axis {self.axis}, the axis of the examples. "
                f"Choose another axis of inputs of shape {tuple(input_shape)}."
            )
        shape = (input_shape[self.axis],)
        self.gamma = self.add_weight(shape, "ones", name="gamma") if self.scale else None
        self.beta = self.add_weight(shape, "zeros", name="beta") if self.center else None

    def compute_output_shape(self, input_shape):
        return input_shape

    def broadcast(self, rank: int) -> list[int]:
        """Returns the shape that broadcasts a value for each feature to inputs of a rank."""
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
