"""tfdp: differentially private deep learning for Keras 3 on TensorFlow.

Every run has two guarantees: what the paper behind the mechanism *claims*, and what is *proven* for
what was really sampled, computed and released. README.md gives a tour.

Public names are loaded on first use, so that `tfdp.accounting` works without importing TensorFlow.
"""

import importlib

__version__ = "0.1.0"

_PUBLIC = {
    "DPModel": "tfdp.training.dp_model",
    "DPSequential": "tfdp.training.dp_model",
    "make_private": "tfdp.training.dp_model",
    "PrivacyBudget": "tfdp.accounting",
    "DPKerasOptimizer": "tfdp.optimizers",
    "DPKerasSGDOptimizer": "tfdp.optimizers",
    "DPKerasAdamOptimizer": "tfdp.optimizers",
    "DPDropoutOptimizer": "tfdp.optimizers",
    "SGLDOptimizer": "tfdp.optimizers",
    "SIDPSGDOptimizer": "tfdp.optimizers",
    "MatrixDPSGDOptimizer": "tfdp.optimizers",
    "DiscreteSGDOptimizer": "tfdp.optimizers",
    "make_dp_optimizer_class": "tfdp.optimizers",
    "compute_dp_sgd_privacy": "tfdp.accounting",
    "compute_dp_sgd_privacy_statement": "tfdp.accounting",
    "export": "tfdp.training.export",
    "fix": "tfdp.training.repair",
}
_ROOMS = (
    "accounting",
    "callbacks",
    "data",
    "gradients",
    "layers",
    "models",
    "noise",
    "optimizers",
)

__all__ = [*_PUBLIC, *_ROOMS]


def __getattr__(name):
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
    elif name in _ROOMS:
        value = importlib.import_module(f"tfdp.{name}")
    else:
        raise AttributeError(f"module 'tfdp' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *__all__])
