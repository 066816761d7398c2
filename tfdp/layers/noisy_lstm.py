"""An LSTM with noisy weights (SI-DPSGD, section 3), for models that mix noisy and plain layers."""

import keras
import tensorflow as tf

from tfdp.layers.noisy import _ARGUMENTS, _WeightNoise


@keras.saving.register_keras_serializable(package="tfdp")
class NoisyLSTM(_WeightNoise, keras.layers.LSTM):
    __doc__ = f"""`keras.layers.LSTM` with both of its kernels drawn from N(mu, noise_stddev^2).

    A lot meets one draw, which is the same at all of its time steps. (The code of the paper's authors
    draws anew at every step.)
{_ARGUMENTS}
    Example:
        >>> import keras, numpy as np, tfdp
        >>> layer = tfdp.layers.NoisyLSTM(3, noise_stddev=0.1)
        >>> x = np.ones((2, 5, 4), "float32")
        >>> one = layer(x, training=True)
        >>> other = layer(x, training=True)  # with the next draw of the kernels
        >>> np.array_equal(one, other), np.array_equal(layer(x), layer(x))
        (False, True)
    """

    # Unlike dense layers, recurrent ones leave it to the base class to save what is in `weights`.
    save_own_variables = keras.layers.Layer.save_own_variables
    load_own_variables = keras.layers.Layer.load_own_variables

    def call(self, sequences, initial_state=None, mask=None, training=False):
        cell = self.cell
        kernel, recurrent = map(tf.convert_to_tensor, (cell.kernel, cell.recurrent_kernel))
        drawn = self._drawn(tf.concat([kernel, recurrent], 0), training)
        kernel, recurrent = tf.split(drawn, [kernel.shape[0], recurrent.shape[0]])
        # The layer reads its weights by their variables, and a scope gives these other values. What
        # the layer writes in there (seeds of dropout) is lost unless it is written again outside.
        others = [
            v for v in cell.variables if v is not cell.kernel and v is not cell.recurrent_kernel
        ]
        values = [tf.convert_to_tensor(v) for v in others]
        mapping = [
            (cell.kernel, kernel),
            (cell.recurrent_kernel, recurrent),
            *zip(others, values, strict=True),
        ]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            outputs = super().call(
                sequences, initial_state=initial_state, mask=mask, training=training
            )
        for variable, value in zip(others, values, strict=True):
            new = scope.get_current_value(variable)
            if new is not value:
                variable.assign(new)
        return outputs
