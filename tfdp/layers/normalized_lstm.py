"""An LSTM with layer normalization inside its steps (Ba et al. 2016, "Layer Normalization").

With W x and U h the contributions of the inputs and the states to the four gates, a step is

    i, f, g, o = LN(W x) + LN(U h)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    h = sigmoid(o) * tanh(LN(c))

where LN normalizes a vector over all of its entries, and each of the three LN has its own scale and
offset (equations 20 to 22). There is no other bias.
"""

import keras
from keras import ops

from tfdp._validate import flag, positive, whole

NORMS = ("input", "recurrent", "carry")


@keras.saving.register_keras_serializable(package="tfdp")
class NormalizedLSTMCell(keras.layers.Layer):
    """The cell of a `NormalizedLSTM`, which computes one step, for `keras.layers.RNN`.

    Args:
        units: The number of units.
        affine: Whether each normalization has a learned scale and a learned offset.
        epsilon: Constant > 0 that is added to the variances. The default is PyTorch's.
        **kwargs: Arguments of `keras.layers.Layer`.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> layer = keras.layers.RNN(tfdp.layers.NormalizedLSTMCell(3))
        >>> layer(np.ones((2, 5, 4), "float32")).shape
        TensorShape([2, 3])
    """

    # The dropout rates of Keras' cells; this cell has no dropout.
    dropout = recurrent_dropout = 0.0

    def __init__(self, units: int, affine: bool = True, epsilon: float = 1e-5, **kwargs):
        super().__init__(**kwargs)
        self.units = whole("units", units, 1)
        self.affine = flag("affine", affine)
        self.epsilon = positive("epsilon", epsilon)
        self.state_size = [self.units, self.units]
        self.output_size = self.units

    def build(self, input_shape):
        gates = 4 * self.units
        self.kernel = self.add_weight(
            name="kernel", shape=(input_shape[-1], gates), initializer="glorot_uniform"
        )
        self.recurrent_kernel = self.add_weight(
            name="recurrent_kernel", shape=(self.units, gates), initializer="orthogonal"
        )
        if not self.affine:
            return
        for name, width in zip(NORMS, (gates, gates, self.units), strict=True):
            for kind, initializer in (("scale", "ones"), ("offset", "zeros")):
                full = f"{name}_{kind}"
                made = self.add_weight(name=full, shape=(width,), initializer=initializer)
                setattr(self, full, made)

    def call(self, inputs, states, training=False):
        del training
        hidden, carry = states
        gates = self._normalized(ops.matmul(inputs, self.kernel), "input")
        gates += self._normalized(ops.matmul(hidden, self.recurrent_kernel), "recurrent")
        i, f, candidate, o = ops.split(gates, 4, axis=-1)
        carry = ops.sigmoid(f) * carry + ops.sigmoid(i) * ops.tanh(candidate)
        hidden = ops.sigmoid(o) * ops.tanh(self._normalized(carry, "carry"))
        return hidden, [hidden, carry]

    def _normalized(self, x, name):
        mean, variance = ops.moments(x, axes=[-1], keepdims=True)
        x = (x - mean) * ops.rsqrt(variance + self.epsilon)
        if not self.affine:
            return x
        return x * getattr(self, f"{name}_scale") + getattr(self, f"{name}_offset")

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "affine": self.affine,
            "epsilon": self.epsilon,
        }


@keras.saving.register_keras_serializable(package="tfdp")
class NormalizedLSTM(keras.layers.RNN):
    """An LSTM with layer normalization inside its steps.

    It normalizes the sums of its gates and its cell state over the units of each example. The steps of
    an example depend on this example alone, so the layer can be trained privately. Its activations are
    those of an LSTM, tanh and sigmoid; it has no bias and no dropout.

    Inputs are [rows, steps, features]. Outputs are [rows, units], or [rows, steps, units] with
    `return_sequences=True`.

    Source: Ba et al. 2016, "Layer Normalization", equations 20 to 22; "LN-BiLSTM" in SI-DPSGD, Table 3.

    Args:
        units: The number of units.
        affine: Whether each normalization has a learned scale and a learned offset.
        epsilon: Constant > 0 that is added to the variances. The default is PyTorch's.
        **kwargs: Arguments of `keras.layers.RNN`, such as `return_sequences`.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> layer = keras.layers.Bidirectional(tfdp.layers.NormalizedLSTM(3))
        >>> layer(np.ones((2, 5, 4), "float32")).shape
        TensorShape([2, 6])
        >>> layer.count_params() == 2 * (4 * 12 + 3 * 12 + 2 * 12 + 2 * 12 + 2 * 3)
        True
    """

    def __init__(self, units: int, affine: bool = True, epsilon: float = 1e-5, **kwargs):
        cell = NormalizedLSTMCell(units, affine, epsilon, dtype=kwargs.get("dtype"), name="cell")
        super().__init__(cell, **kwargs)

    def get_config(self):
        config = super().get_config()
        del config["cell"]
        return {
            **config,
            "units": self.cell.units,
            "affine": self.cell.affine,
            "epsilon": self.cell.epsilon,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**config)
