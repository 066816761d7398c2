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

import tfdp._compat  # noqa: F401, refuses another backend before any of these modules is imported
from tfdp._lazy import importing

_PUBLIC = {
    "MECHANISMS": "mechanisms",
    "DPDropoutOptimizer": "dp_dropout",
    "DPKerasAdagradOptimizer": "factory",
    "DPKerasAdamOptimizer": "factory",
    "DPKerasAdamWOptimizer": "factory",
    "DPKerasNadamOptimizer": "factory",
    "DPKerasOptimizer": "dp_keras_optimizer",
    "DPKerasRMSpropOptimizer": "factory",
    "DPKerasSGDOptimizer": "factory",
    "DiscreteSGDOptimizer": "discrete_sgd",
    "MatrixDPSGDOptimizer": "matrix",
    "NoisySGD": "noisy_sgd",
    "SGLDOptimizer": "sgld",
    "SIDPSGDOptimizer": "si_dpsgd",
    "make_discrete_optimizer_class": "discrete_sgd",
    "make_dp_optimizer_class": "factory",
    "make_matrix_optimizer_class": "matrix",
}
_MAKERS = {
    "DPKeras": "make_dp_optimizer_class",
    "Discrete": "make_discrete_optimizer_class",
    "MatrixDP": "make_matrix_optimizer_class",
    "VectorizedDPKeras": "make_dp_optimizer_class",
}

__all__ = [*_PUBLIC]
_imported, __dir__ = importing(__name__, _PUBLIC)


def __getattr__(name):
    for prefix, maker in _MAKERS.items():
        if name not in _PUBLIC and name.startswith(prefix) and name.endswith("Optimizer"):
            base = getattr(keras.optimizers, name[len(prefix) : -len("Optimizer")], None)
            if isinstance(base, type) and base is not keras.optimizers.Optimizer:
                return _imported(maker)(base)
    return _imported(name)
