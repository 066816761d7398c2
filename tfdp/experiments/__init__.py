"""Experiments: settings in, a trained model, its accuracy and its two guarantees out.

Public names are loaded on first use, so that `result_folder` works without importing TensorFlow.
"""

import importlib

_PUBLIC = {
    "MECHANISMS": "settings",
    "Experiment": "settings",
    "Result": "experiment",
    "ResultError": "partial_folder",
    "ResultFolder": "result_folder",
    "card": "report",
    "check": "result_folder",
    "print_table": "report",
    "record": "report",
    "run": "experiment",
    "run_into": "saving",
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
