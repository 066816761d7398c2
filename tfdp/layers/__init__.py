"""Keras layers: batch normalization for private training, a normalized LSTM, and noisy weights.

`keras.layers.BatchNormalization` mixes the examples of a lot, so it cannot be trained privately.
`PublicBatchNormalization` takes its statistics from public examples (`tfdp.fix` puts it into a model),
and `PrivateBatchNormalization` learns them with noise. `NormalizedLSTM` has layer normalization in its
steps. The noisy layers add noise to weights, for experiments; they give no privacy.

Example:
    >>> import keras, numpy as np, tfdp
    >>> model = keras.Sequential([keras.Input((2,)), tfdp.layers.NoisyDense(3, noise_stddev=0.1)])
    >>> model(np.ones((5, 2), "float32")).shape
    TensorShape([5, 3])
"""

from typing import TYPE_CHECKING

import tfdp._compat  # noqa: F401, raises for another backend before any of these modules is imported
from tfdp._lazy import importing

if TYPE_CHECKING:
    from tfdp.layers.noisy import NoisyConv as NoisyConv
    from tfdp.layers.noisy import NoisyConv1D as NoisyConv1D
    from tfdp.layers.noisy import NoisyConv2D as NoisyConv2D
    from tfdp.layers.noisy import NoisyConv3D as NoisyConv3D
    from tfdp.layers.noisy import NoisyDense as NoisyDense
    from tfdp.layers.noisy_weights import NoisyWeights as NoisyWeights
    from tfdp.layers.normalized_lstm import NormalizedLSTM as NormalizedLSTM
    from tfdp.layers.normalized_lstm import NormalizedLSTMCell as NormalizedLSTMCell
    from tfdp.layers.private_statistics import (
        PrivateBatchNormalization as PrivateBatchNormalization,
    )
    from tfdp.layers.public import PublicBatchNormalization as PublicBatchNormalization
    from tfdp.layers.public import PublicExamples as PublicExamples
else:
    __getattr__, __dir__, __all__ = importing(__name__)
