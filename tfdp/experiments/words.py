"""Turns texts into rows of word ids by a public hash, and sets the vectors of the words.

Nothing is learned from the private texts. A vocabulary built from them would be a release of its own:
a rare word in it reveals that somebody wrote the word. A hash depends on the word alone.
"""

import re
import zlib
from collections.abc import Sequence

import keras
import numpy as np

from tfdp.experiments.settings import Experiment
from tfdp.models import NUM_TOKENS

_TOKEN = re.compile(r"\w+|[^\w\s]")


def hash_tokens(texts: Sequence[str], length: int, num_buckets: int = NUM_TOKENS) -> np.ndarray:
    """Turns texts into rows of token ids by hashing.

    Words are lower-cased; every punctuation mark is a token of its own. The hash is CRC-32, which
    is the same on every machine and in every run (Python's own `hash` is not).

    Args:
        texts: the texts.
        length: tokens per row; longer texts are cut, shorter ones padded with 0 at the end.
        num_buckets: size of the id space, at least 2, including id 0, which is kept for padding.

    Returns:
        int32 array of shape (number of texts, length) with values in `[0, num_buckets)`.
    """
    rows = np.zeros((len(texts), length), np.int32)
    for row, text in zip(rows, texts, strict=True):
        for column, token in enumerate(_TOKEN.findall(str(text).lower())[:length]):
            row[column] = 1 + zlib.crc32(token.encode()) % (num_buckets - 1)
    return rows


def set_embeddings(model: keras.Model, experiment: Experiment) -> None:
    """Freezes the vectors of a freshly drawn network of words, if the experiment says so.

    Frozen ones have the scale of PyTorch's, as those of the papers' models.
    """
    layer = model.get_layer("embedding")
    layer.trainable = experiment.embeddings == "trained"
    if not layer.trainable:
        layer.embeddings.assign(keras.random.normal(layer.embeddings.shape))


def note(experiment: Experiment) -> str:
    """Returns the sentence about the words for the record and the model card."""
    return (
        f"Words have one of {NUM_TOKENS - 1:,} ids by a fixed public hash (CRC-32). Their vectors are "
        f"random numbers, {experiment.embeddings}. Of every text, the first "
        f"{experiment.sequence_length} words and marks are used."
    )
