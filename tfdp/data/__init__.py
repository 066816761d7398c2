"""Data for private training: datasets, and the drawing of lots.

`load` returns a dataset as plain arrays, scaled by public constants only. `make_lots`
draws *lots*, the logical batches of private training, from arrays or any other source of rows, and
records the sampling scheme that the accounting has to analyse.

A name is imported when it is first used, so that the names of the datasets need no TensorFlow.

Example:
    >>> import tfdp
    >>> digits = tfdp.data.load("digits")
    >>> lots = tfdp.data.make_lots("poisson", digits.x_train, digits.y_train, lot_size=128)
    >>> lots.num_examples, lots.steps_per_epoch
    (1437, 11)
"""

from tfdp._lazy import importing

_PUBLIC = {
    "DATASETS": "datasets",
    "Dataset": "datasets",
    "DataUnavailable": "prepared",
    "load": "datasets",
    "load_split": "datasets",
    "check_labels": "labels",
    "OncePerEpoch": "declared",
    "Lots": "lots",
    "make_lots": "making",
    "row_multiple_for": "lots",
    "split_people": "people",
    "SourceBatches": "batches",
    "cached": "reading",
    "read_dataset": "reading",
    "images_from_directory": "files",
    "texts_from_directory": "files",
    "from_csv": "files",
    "from_parquet": "files",
    "SCHEMES": "schemes",
    "Source": "sources",
    "as_source": "sources",
}

__all__ = [*_PUBLIC]
__getattr__, __dir__ = importing(__name__, _PUBLIC)
