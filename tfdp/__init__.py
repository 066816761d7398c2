"""tfdp: differentially private deep learning for Keras 3 on TensorFlow.

Every run has two guarantees: what the paper behind the mechanism *claims*, and what is *proven* for
what was really sampled, computed and released. README.md gives a tour.

Public names are loaded on first use, so that `tfdp.accounting` works without importing TensorFlow.

Example:
    >>> import keras, numpy as np, tfdp
    >>> model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    >>> model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.1), "mse")
    >>> x = np.zeros((100, 2), "float32")
    >>> _ = model.fit(x, x[:, :1], batch_size=10, verbose=0)
    >>> print(model.privacy.spent(delta=1e-4))
    proven epsilon: 1.82... at delta = 0.0001, for one record replaced by a record that contributes
    nothing (zero_out).
"""

import importlib

from tfdp import _registration

__version__ = "0.1.0"

_PUBLIC = {
    "from_preset": "tfdp.training.dp_model",
    "make_private": "tfdp.training.dp_model",
    "make_private_with_epsilon": "tfdp.training.calibrated",
    "PrivacyBudget": "tfdp.accounting",
    "DPKerasOptimizer": "tfdp.optimizers",
    "DPKerasSGDOptimizer": "tfdp.optimizers",
    "DPKerasAdamOptimizer": "tfdp.optimizers",
    "DPDropoutOptimizer": "tfdp.optimizers",
    "SGLDOptimizer": "tfdp.optimizers",
    "SIDPSGDOptimizer": "tfdp.optimizers",
    "MatrixDPSGDOptimizer": "tfdp.optimizers",
    "DiscreteSGDOptimizer": "tfdp.optimizers",
    "VectorizedDPKerasAdagradOptimizer": "tfdp.optimizers",
    "VectorizedDPKerasAdamOptimizer": "tfdp.optimizers",
    "VectorizedDPKerasSGDOptimizer": "tfdp.optimizers",
    "make_dp_optimizer_class": "tfdp.optimizers",
    "per_example_gradients": "tfdp.gradients",
    "compute_dp_sgd_privacy": "tfdp.accounting",
    "compute_dp_sgd_privacy_statement": "tfdp.accounting",
    "export": "tfdp.training.export",
    "fix": "tfdp.training.repair",
}
_ROOMS = (
    "accounting",
    "auditing",
    "callbacks",
    "data",
    "gradients",
    "layers",
    "models",
    "noise",
    "optimizers",
)

__all__ = [*_PUBLIC, *_ROOMS]


# TensorFlow Privacy's names of what is called otherwise here.
_SYNONYMS = {
    "make_keras_generic_optimizer_class": "make_dp_optimizer_class",
    "make_keras_optimizer_class": "make_dp_optimizer_class",
    "make_vectorized_keras_optimizer_class": "make_dp_optimizer_class",
}
_MAKE_PRIVATE = (
    ": use model = tfdp.make_private(model) of any keras.Model, also of a class of your own, and "
    "compile it with tfdp.DPKerasSGDOptimizer or the like."
)


def __getattr__(name):
    if name in _SYNONYMS:
        value = __getattr__(_SYNONYMS[name])
    elif name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
    elif name in _ROOMS:
        value = importlib.import_module(f"tfdp.{name}")
    elif name.endswith("Optimizer") and not name.startswith("_"):
        value = getattr(importlib.import_module("tfdp.optimizers"), name)
    else:
        from tfdp._validate import did_you_mean  # which imports NumPy

        asks = name in ("DPModel", "DPSequential", "PrivacyEngine")
        remedy = _MAKE_PRIVATE if asks else f".{did_you_mean(name, __all__)}"
        raise AttributeError(f"module 'tfdp' has no attribute {name!r}{remedy}")
    globals()[name] = value
    return value


def __dir__():
    return [*__all__, "__version__"]


_registration.register_with_keras()
