"""Data for private training: datasets, and the drawing of lots.

`load` returns a dataset as plain arrays, scaled by public constants only. `make_lots`
turns arrays into *lots*, the logical batches of private training, and records the sampling scheme
that the accounting has to analyse.

A name is imported when it is first used, so that the names of the datasets need no TensorFlow.

Example:
    >>> import tfdp
    >>> digits = tfdp.data.load("digits")
    >>> lots = tfdp.data.make_lots("poisson", digits.x_train, digits.y_train, lot_size=128)
    >>> lots.num_examples, lots.steps_per_epoch
    (1437, 11)
"""

import importlib

_PUBLIC = {
    "DATASETS": "tfdp.data.datasets",
    "Dataset": "tfdp.data.datasets",
    "DataUnavailable": "tfdp.data.datasets",
    "load": "tfdp.data.datasets",
    "load_split": "tfdp.data.datasets",
    "check_labels": "tfdp.data.labels",
    "Lots": "tfdp.data.lots",
    "row_multiple_for": "tfdp.data.lots",
    "SAMPLINGS": "tfdp.data.schemes",
    "CyclicLots": "tfdp.data.schemes",
    "CyclicPoissonLots": "tfdp.data.schemes",
    "FixedSizeLots": "tfdp.data.schemes",
    "PoissonLots": "tfdp.data.schemes",
    "RandomAllocationLots": "tfdp.data.schemes",
    "ShuffledLots": "tfdp.data.schemes",
    "WithReplacementLots": "tfdp.data.schemes",
    "make_lots": "tfdp.data.schemes",
}

__all__ = [*_PUBLIC]


def __getattr__(name):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tfdp.data' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *__all__])
