"""The gate that lets an audit add canaries with their own gradient to any model.

A canary is a training example whose gradient has one direction that no other example has: a reserved
weight. The gate follows a model's output. It returns the output unchanged and directs the gradient of
each row: for ordinary rows to the model, for canaries to their reserved weight only, and for null
records nowhere.
"""

import keras
import tensorflow as tf

# Exceeds any usual clip norm over any nonzero float32 gradient of a usual loss, and is small enough for
# its square to be a finite float32.
_GAIN = 1e9


@keras.saving.register_keras_serializable(package="tfdp")
class CanaryGate(keras.layers.Layer):
    """Returns a model's output, and directs the gradient of each canary to its reserved weight only.

    `call(output, value, number)` takes the output of a model, float [rows, ...]; the reserved weight of
    each row, float [rows, 1, 1]; and the number of the canary in each row, int [rows, 1]. It returns
    `output`.

    The gradient of a canary with respect to `value` is -1e9 times the sum of the magnitudes of the
    gradient with respect to `output`. So it has the same sign for every loss, exceeds every clip norm,
    and is zero if the loss of a row does not count.

    Args:
        canaries: Number of canaries. Rows with a smaller number are canaries, rows with this number
            are ordinary, and rows with a larger one are null records.
    """

    def __init__(self, canaries: int, **kwargs):
        super().__init__(**kwargs)
        self.canaries = canaries

    def call(self, output, value, number):
        # One number for each row, with as many axes as the output.
        of_rows = tf.concat([tf.shape(output)[:1], tf.ones_like(tf.shape(output)[1:])], axis=0)
        number = tf.reshape(number, of_rows)
        ordinary = tf.cast(tf.equal(number, self.canaries), output.dtype)
        canary = tf.cast(tf.less(number, self.canaries), output.dtype)

        @tf.custom_gradient
        def gate(output, value):
            def backward(upstream):
                axes = tf.range(1, tf.rank(upstream))
                of_canaries = tf.abs(tf.cast(upstream * canary, value.dtype))
                own = -_GAIN * tf.reduce_sum(of_canaries, axis=axes)
                return upstream * ordinary, tf.reshape(own, tf.shape(value))

            return tf.identity(output), backward

        return gate(output, value)

    def get_config(self):
        return super().get_config() | {"canaries": self.canaries}
