"""The gate that lets an auditor put canaries with a gradient of their own into any model.

A canary is a training example whose gradient has one direction that no other example has: a reserved
weight. The gate stands behind a model's output. It passes the output on unchanged and decides where the
gradient of a row goes: for ordinary rows to the model, for canaries to their reserved weight only, and
for null records nowhere.
"""

import keras
import tensorflow as tf

# Larger than any clip norm over any gradient of a loss that is not zero in float32, for clip norms and
# losses of usual size, and small enough for its square to be a finite float32.
_GAIN = 1e9


@keras.saving.register_keras_serializable(package="tfdp")
class CanaryGate(keras.layers.Layer):
    """Passes `output` on; sends the gradient of canaries to `value` and that of null records nowhere.

    The gradient with respect to `value` is -1e9 times the sum of the magnitudes of the gradient with
    respect to `output`: of the same sign for every loss, above every clip norm, and zero where the loss
    of a row counts zero.

    `call(output, value, number)` takes the output of a model, float [rows, ...]; the reserved weight of
    each row, float [rows, 1, 1]; and the number of the canary in each row, int [rows, 1]. It returns
    `output`.

    Args:
        canaries: how many there are. Rows with a smaller number are canaries, rows with this number
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
