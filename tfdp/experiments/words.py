"""Turns the texts of a data set into rows of ids, and puts the vectors of the words into a network."""

import dataclasses
import functools
import os
from collections.abc import Callable

import keras
import numpy as np

from tfdp import data
from tfdp.experiments.files import digest
from tfdp.experiments.rules import DRAWN_EMBEDDINGS, WORD_MODELS
from tfdp.experiments.settings import Experiment
from tfdp.experiments.vocabulary import (
    UNKNOWN,
    hash_tokens,
    look_up_tokens,
    read_vectors,
    read_words,
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
        notes: sentences about the vocabulary and the vectors.
    """

    size: int
    width: int
    trainable: bool
    rows: Callable
    table: np.ndarray | None
    notes: tuple[str, ...]


def words_of(experiment: Experiment) -> Words:
    """Reads the public files of an experiment with texts; nothing of it depends on the texts.

    Raises:
        ValueError: a file cannot be read, or its vectors have a width that the model does not take.
    """
    length, limit = experiment.sequence_length, experiment.vocabulary_size
    width = experiment.embedding_width or WORD_MODELS[experiment.model] or _WIDTH
    table = listed = None
    if experiment.embeddings not in DRAWN_EMBEDDINGS:
        path = os.path.expanduser(experiment.embeddings)
        listed, table = _vectors_of(experiment, path)
        width = table.shape[1]
        vectors = (
            f"The vectors of words are those of {_named(path)}, frozen; that of padding and of other "
            "words is zero."
        )
    elif experiment.embeddings == "frozen":
        vectors = f"The vectors of words are random, {width} numbers each, and frozen."
    else:
        vectors = f"The vectors of words, {width} numbers each, are trained with the network."
    if experiment.vocabulary is not None:
        path = os.path.expanduser(experiment.vocabulary)
        listed = read_words(path, limit)
    if listed is None:
        size = limit or _BUCKETS
        rows = functools.partial(hash_tokens, num_buckets=size, length=length)
        note = f"Words have one of {size - 1:,} ids by a fixed public hash (CRC-32)."
    else:
        size = UNKNOWN + 1 + len(listed)
        rows = functools.partial(look_up_tokens, words=listed, length=length)
        note = (
            f"The vocabulary is {len(listed):,} words of {_named(path)}, which is declared to come "
            "from public text; all other words have one id."
        )
    note += f" Of every text, the first {length} words and marks are used."
    return Words(size, width, experiment.embeddings == "trained", rows, table, (note, vectors))


def _vectors_of(experiment, path) -> tuple[tuple[str, ...], np.ndarray]:
    """The words of a file and a table of vectors, with zeros for padding and for other words."""
    listed, vectors = read_vectors(path, experiment.vocabulary_size)
    needed = WORD_MODELS[experiment.model]
    if needed not in (None, vectors.shape[1]):
        raise ValueError(
            f"Expected vectors of {needed} numbers with --model={experiment.model}. Found "
            f"{vectors.shape[1]} in {path}. Use another file, or another --model."
        )
    return listed, np.pad(vectors, ((UNKNOWN + 1, 0), (0, 0)))


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


def _named(path: str) -> str:
    return f"{os.path.basename(path)} (SHA-256 {digest(path)[:16]})"
