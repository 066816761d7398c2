"""Experiments: from settings to a trained model, its test accuracy and its two guarantees.

A name is imported when it is first used, so that settings and flags load without TensorFlow.

Example:
    >>> from tfdp.experiments import Experiment, run
    >>> experiment = Experiment(
    ...     mechanism="dpsgd", model="linear", sampling="cyclic", batch_size=479,
    ...     steps=3, noise_multiplier=4.0, seed=1)
    >>> result = run(experiment, verbose=0)
    >>> print(f"{result.proven.epsilon:.3f}")
    0.926
    >>> result.test_accuracy > 0.3
    True
"""

import importlib

_PUBLIC = {
    "Experiment": "settings",
    "run": "experiment",
    "run_into": "saving",
    "attack_experiment": "audited",
    "audit_experiment": "audited",
    "RunFolder": "run_folder",
    "read_record": "run_folder",
}

__all__ = [*_PUBLIC]


def __getattr__(name):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tfdp.experiments' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tfdp.experiments.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *__all__])
