"""Turns the texts of a data set into rows of ids, and puts the vectors of the words into a network."""

import dataclasses
import functools
import os
from collections.abc import Callable

import keras
import numpy as np

from tfdp import data
from tfdp.experiments.files import digest, paths
from tfdp.experiments.rules import WORD_MODELS
from tfdp.experiments.settings import Experiment
from tfdp.experiments.vocabulary import (
    UNKNOWN,
    hash_tokens,
    look_up_tokens,
    read_vectors,
)

_BUCKETS = 10_000
_WIDTH = 100
# The name of the table of vectors in every network of `WORD_MODELS`.
TABLE = "embedding"


@dataclasses.dataclass(frozen=True)
class Words:
    """What the ids of words stand for, and the vectors that a network has for them.

    Attributes:
        size: the number of ids.
        width: the length of the vectors.
        trainable: whether the vectors are trained.
        rows: function (texts) -> int32 ids of shape (texts, sequence length).
        table: float32 public vectors of shape (size, width); None where they are drawn at random.
        note: sentences about the vocabulary and the vectors.
    """

    size: int
    width: int
    trainable: bool
    rows: Callable
    table: np.ndarray | None
    note: str


def words_of(experiment: Experiment) -> Words:
    """Reads the public files of an experiment with texts; nothing of it depends on the texts.

    Raises:
        ValueError: a file cannot be read, or its vectors have a width that the model does not take.
    """
    length, width = experiment.sequence_length, WORD_MODELS[experiment.model]
    if path := paths(experiment).get("embeddings"):
        listed, vectors = read_vectors(path)
        if width not in (None, vectors.shape[1]):
            raise ValueError(
                f"Expected vectors of {width} numbers with --model={experiment.model}. Found "
                f"{vectors.shape[1]} in {path}. Use another file, or another --model."
            )
        table = np.pad(vectors, ((UNKNOWN + 1, 0), (0, 0)))  # zeros for padding and other words
        rows = functools.partial(look_up_tokens, words=listed, length=length)
        note = (
            f"The vocabulary is {len(listed):,} words of {os.path.basename(path)} (SHA-256 "
            f"{digest(path)[:16]}), which is declared to come from public text; all other words have "
            "one id. The vectors of words are those of the file, frozen; that of padding and of other "
            "words is zero."
        )
        size, width = table.shape
    else:
        table, size, width = None, _BUCKETS, width or _WIDTH
        rows = functools.partial(hash_tokens, num_buckets=size, length=length)
        note = (
            f"Words have one of {size - 1:,} ids by a fixed public hash (CRC-32). Their vectors, "
            f"{width} random numbers each, are {experiment.embeddings}."
        )
    note += f" Of every text, the first {length} words and marks are used."
    return Words(size, width, experiment.embeddings == "trained", rows, table, note)


def in_words(dataset: data.Dataset, words: Words) -> data.Dataset:
    """Returns the data set with rows of ids in place of texts."""
    x_train, x_test = words.rows(dataset.x_train), words.rows(dataset.x_test)
    shape = x_train.shape[1:]
    return dataclasses.replace(dataset, x_train=x_train, x_test=x_test, input_shape=shape)


def with_words(model: keras.Model, words: Words) -> keras.Model:
    """Returns a copy of a freshly drawn network with a table of vectors for these words.

    Args:
        model: a network of `WORD_MODELS`, whose table is the layer "embedding".
        words: the words.
    """

    def exchanged(layer):
        config = _without_shapes(layer.get_config())
        if layer.name == TABLE:
            config |= {"input_dim": words.size, "output_dim": words.width}
            config |= {"trainable": words.trainable}
            if not words.trainable:
                # Frozen vectors have the scale of PyTorch's, as the papers' models do.
                drawn = keras.initializers.RandomNormal(stddev=1.0)
                config |= {"embeddings_initializer": drawn}
        return type(layer).from_config(config)

    made = keras.models.clone_model(model, clone_function=exchanged)
    if words.table is not None:
        made.get_layer(TABLE).embeddings.assign(words.table)
    return made


def _without_shapes(config):
    """Returns a configuration from which inner layers are not built at once, for another width."""
    if isinstance(config, dict):
        return {k: _without_shapes(v) for k, v in config.items() if k != "build_config"}
    if isinstance(config, list):
        return [_without_shapes(each) for each in config]
    return config
