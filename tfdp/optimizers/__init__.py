"""Private optimizers: one per mechanism, with the update rule of any Keras optimizer.

Classes that are not listed are made on first use from Keras' optimizer of the same name, such as
`DPKerasLionOptimizer` from `keras.optimizers.Lion`. TensorFlow Privacy's names of vectorized optimizers
(`VectorizedDPKerasSGDOptimizer`) mean the same classes: all of tfdp's are vectorized.

Example:
    >>> import keras, tfdp
    >>> optimizer = tfdp.optimizers.DPKerasLionOptimizer(l2_norm_clip=1.0, noise_multiplier=1.1)
    >>> isinstance(optimizer, keras.optimizers.Lion)
    True
"""

import keras

from tfdp.optimizers.discrete_sgd import (
    DiscreteOptimizer,
    DiscreteSGDOptimizer,
    make_discrete_optimizer_class,
)
from tfdp.optimizers.dp_dropout import DPDropoutOptimizer
from tfdp.optimizers.dp_keras_optimizer import DPKerasOptimizer
from tfdp.optimizers.factory import (
    DPKerasAdagradOptimizer,
    DPKerasAdamOptimizer,
    DPKerasAdamWOptimizer,
    DPKerasNadamOptimizer,
    DPKerasRMSpropOptimizer,
    DPKerasSGDOptimizer,
    make_dp_optimizer_class,
)
from tfdp.optimizers.matrix import (
    MatrixDPOptimizer,
    MatrixDPSGDOptimizer,
    make_matrix_optimizer_class,
)
from tfdp.optimizers.noisy_sgd import NoisySGD
from tfdp.optimizers.sgld import SGLDOptimizer
from tfdp.optimizers.si_dpsgd import SIDPSGDOptimizer

__all__ = [
    "MECHANISMS",
    "DPDropoutOptimizer",
    "DPKerasAdagradOptimizer",
    "DPKerasAdamOptimizer",
    "DPKerasAdamWOptimizer",
    "DPKerasNadamOptimizer",
    "DPKerasOptimizer",
    "DPKerasRMSpropOptimizer",
    "DPKerasSGDOptimizer",
    "DiscreteSGDOptimizer",
    "MatrixDPSGDOptimizer",
    "NoisySGD",
    "SGLDOptimizer",
    "SIDPSGDOptimizer",
    "make_discrete_optimizer_class",
    "make_dp_optimizer_class",
    "make_matrix_optimizer_class",
]

# Private mechanisms by name. Each entry maps a Keras optimizer class (the update rule) to the private
# optimizer class; mechanisms with an update rule of their own ignore the argument.
MECHANISMS = {
    DPKerasOptimizer.mechanism.name: make_dp_optimizer_class,
    SIDPSGDOptimizer.mechanism.name: lambda base: SIDPSGDOptimizer,
    MatrixDPOptimizer.mechanism.name: make_matrix_optimizer_class,
    DPDropoutOptimizer.mechanism.name: lambda base: DPDropoutOptimizer,
    SGLDOptimizer.mechanism.name: lambda base: SGLDOptimizer,
    DiscreteOptimizer.mechanism.name: make_discrete_optimizer_class,
}

_PREFIXES = {
    "DPKeras": make_dp_optimizer_class,
    "Discrete": make_discrete_optimizer_class,
    "MatrixDP": make_matrix_optimizer_class,
    "VectorizedDPKeras": make_dp_optimizer_class,
}


def __getattr__(name):
    for prefix, make in _PREFIXES.items():
        if name.startswith(prefix) and name.endswith("Optimizer"):
            base = getattr(keras.optimizers, name[len(prefix) : -len("Optimizer")], None)
            if isinstance(base, type) and base is not keras.optimizers.Optimizer:
                return make(base)
    raise AttributeError(f"module 'tfdp.optimizers' has no attribute {name!r}")
