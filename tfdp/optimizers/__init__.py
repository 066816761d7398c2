"""Private optimizers, to compile a private model with, instead of an optimizer of Keras.

`DPKerasSGDOptimizer` and `DPKerasAdamOptimizer` train by DP-SGD, the usual choice. The other classes
are other mechanisms: `MatrixDPSGDOptimizer` (noise correlated over steps), `DiscreteSGDOptimizer`,
`SIDPSGDOptimizer`, `DPDropoutOptimizer` and `SGLDOptimizer`.

Classes that are not listed are created on first use from the Keras optimizer of the same name, such as
`DPKerasLionOptimizer` from `keras.optimizers.Lion`. TensorFlow Privacy's names of vectorized optimizers
(`VectorizedDPKerasSGDOptimizer`) are aliases, because all optimizers of tfdp are vectorized.

Example:
    >>> import keras, tfdp
    >>> optimizer = tfdp.optimizers.DPKerasLionOptimizer(l2_norm_clip=1.0, noise_multiplier=1.1)
    >>> isinstance(optimizer, keras.optimizers.Lion)
    True
"""

from typing import TYPE_CHECKING

import keras

import tfdp._compat  # noqa: F401, raises for another backend before any of these modules is imported
from tfdp._lazy import importing

_MAKERS = {
    "DPKeras": "make_dp_optimizer_class",
    "Discrete": "make_discrete_optimizer_class",
    "MatrixDP": "make_matrix_optimizer_class",
    "VectorizedDPKeras": "make_dp_optimizer_class",
}


if TYPE_CHECKING:
    from tfdp.optimizers.discrete_sgd import DiscreteSGDOptimizer as DiscreteSGDOptimizer
    from tfdp.optimizers.discrete_sgd import (
        make_discrete_optimizer_class as make_discrete_optimizer_class,
    )
    from tfdp.optimizers.dp_dropout import DPDropoutOptimizer as DPDropoutOptimizer
    from tfdp.optimizers.dp_keras_optimizer import DPKerasOptimizer as DPKerasOptimizer
    from tfdp.optimizers.factory import DPKerasAdagradOptimizer as DPKerasAdagradOptimizer
    from tfdp.optimizers.factory import DPKerasAdamOptimizer as DPKerasAdamOptimizer
    from tfdp.optimizers.factory import DPKerasAdamWOptimizer as DPKerasAdamWOptimizer
    from tfdp.optimizers.factory import DPKerasNadamOptimizer as DPKerasNadamOptimizer
    from tfdp.optimizers.factory import DPKerasRMSpropOptimizer as DPKerasRMSpropOptimizer
    from tfdp.optimizers.factory import DPKerasSGDOptimizer as DPKerasSGDOptimizer
    from tfdp.optimizers.factory import make_dp_optimizer_class as make_dp_optimizer_class
    from tfdp.optimizers.matrix import MatrixDPSGDOptimizer as MatrixDPSGDOptimizer
    from tfdp.optimizers.matrix import make_matrix_optimizer_class as make_matrix_optimizer_class
    from tfdp.optimizers.mechanisms import MECHANISMS as MECHANISMS
    from tfdp.optimizers.noisy_sgd import NoisySGD as NoisySGD
    from tfdp.optimizers.sgld import SGLDOptimizer as SGLDOptimizer
    from tfdp.optimizers.si_dpsgd import SIDPSGDOptimizer as SIDPSGDOptimizer

    def __getattr__(name: str) -> type[DPKerasOptimizer]: ...  # the classes created on first use

else:
    _imported, __dir__, __all__ = importing(__name__)

    def __getattr__(name):
        for prefix, maker in _MAKERS.items():
            if name not in __all__ and name.startswith(prefix) and name.endswith("Optimizer"):
                base = getattr(keras.optimizers, name[len(prefix) : -len("Optimizer")], None)
                if isinstance(base, type) and base is not keras.optimizers.Optimizer:
                    return _imported(maker)(base)
        return _imported(name)
