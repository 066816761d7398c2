"""Data for private training: ready-made data sets, sources of examples, and lots.

* `load` returns a data set by its name, as arrays that were scaled by public constants only.
* `as_source` and `from_csv`, `from_parquet`, `images_from_directory` and `texts_from_directory` read
  your own data.
* `make_lots` draws *lots*, the logical batches of private training, from arrays or a source. It records
  the sampling scheme, which the accounting needs.

`fit` of a private model makes lots itself from arrays and sources. Call `make_lots` to choose the
sampling in detail, or to augment examples.

Example:
    >>> import tfdp
    >>> digits = tfdp.data.load("digits")
    >>> lots = tfdp.data.make_lots("poisson", digits.x_train, digits.y_train, lot_size=128)
    >>> lots.num_examples, lots.steps_per_epoch
    (1437, 11)
"""

from typing import TYPE_CHECKING

from tfdp._lazy import importing

if TYPE_CHECKING:
    from tfdp.data.batches import SourceBatches as SourceBatches
    from tfdp.data.datasets import DATASETS as DATASETS
    from tfdp.data.datasets import Dataset as Dataset
    from tfdp.data.datasets import load as load
    from tfdp.data.datasets import load_split as load_split
    from tfdp.data.declared import OncePerEpoch as OncePerEpoch
    from tfdp.data.files import from_csv as from_csv
    from tfdp.data.files import from_parquet as from_parquet
    from tfdp.data.files import images_from_directory as images_from_directory
    from tfdp.data.files import texts_from_directory as texts_from_directory
    from tfdp.data.labels import check_labels as check_labels
    from tfdp.data.lots import Lots as Lots
    from tfdp.data.lots import row_multiple_for as row_multiple_for
    from tfdp.data.making import make_lots as make_lots
    from tfdp.data.people import split_people as split_people
    from tfdp.data.prepared import DataUnavailable as DataUnavailable
    from tfdp.data.reading import cached as cached
    from tfdp.data.reading import read_dataset as read_dataset
    from tfdp.data.schemes import SCHEMES as SCHEMES
    from tfdp.data.sources import Source as Source
    from tfdp.data.sources import as_source as as_source
else:
    __getattr__, __dir__, __all__ = importing(__name__)
