"""Layers with noisy weights, normalization by public or private statistics, and a normalized LSTM.

Example:
    >>> import keras, numpy as np, tfdp
    >>> model = keras.Sequential([keras.Input((2,)), tfdp.layers.NoisyDense(3, noise_stddev=0.1)])
    >>> model(np.ones((5, 2), "float32")).shape
    TensorShape([5, 3])
"""

import tfdp._compat  # noqa: F401, refuses another backend before any of these modules is imported
from tfdp._lazy import importing

_PUBLIC = {
    "NoisyConv": "noisy",
    "NoisyConv1D": "noisy",
    "NoisyConv2D": "noisy",
    "NoisyConv3D": "noisy",
    "NoisyDense": "noisy",
    "NoisyWeights": "noisy_weights",
    "NormalizedLSTM": "normalized_lstm",
    "NormalizedLSTMCell": "normalized_lstm",
    "PrivateBatchNormalization": "private_statistics",
    "PublicBatchNormalization": "public",
    "PublicExamples": "public",
}

__all__ = [*_PUBLIC]
__getattr__, __dir__ = importing(__name__, _PUBLIC)
