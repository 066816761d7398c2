"""Data for private training: datasets, and the drawing of lots.

`load` and `public` return datasets as plain arrays, scaled by public constants only. `make_lots`
turns arrays into *lots*, the logical batches of private training, and records the sampling scheme
that the accounting has to analyse.

Example:
    >>> import tfdp
    >>> digits = tfdp.data.load("digits")
    >>> lots = tfdp.data.make_lots("poisson", digits.x_train, digits.y_train, lot_size=128)
    >>> lots.num_examples, lots.steps_per_epoch
    (1437, 11)
"""

from tfdp.data.datasets import DATASETS as DATASETS
from tfdp.data.datasets import Dataset as Dataset
from tfdp.data.datasets import DataUnavailable as DataUnavailable
from tfdp.data.datasets import load as load
from tfdp.data.datasets import load_split as load_split
from tfdp.data.datasets import public as public
from tfdp.data.labels import check_labels as check_labels
from tfdp.data.lots import Lots as Lots
from tfdp.data.lots import row_multiple_for as row_multiple_for
from tfdp.data.schemes import SAMPLINGS as SAMPLINGS
from tfdp.data.schemes import CyclicLots as CyclicLots
from tfdp.data.schemes import CyclicPoissonLots as CyclicPoissonLots
from tfdp.data.schemes import FixedSizeLots as FixedSizeLots
from tfdp.data.schemes import PoissonLots as PoissonLots
from tfdp.data.schemes import ShuffledLots as ShuffledLots
from tfdp.data.schemes import WithReplacementLots as WithReplacementLots
from tfdp.data.schemes import make_lots as make_lots
from tfdp.data.text import cut_bytes as cut_bytes
from tfdp.data.text import hash_tokens as hash_tokens
