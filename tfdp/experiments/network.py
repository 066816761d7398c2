"""Loads the data of an experiment, and builds its network."""

import dataclasses
import re
import zlib
from collections.abc import Collection

import keras
import numpy as np

from tfdp import data, models
from tfdp.experiments import own_data
from tfdp.experiments.own_data import kind_of
from tfdp.experiments.public_data import public_examples
from tfdp.experiments.settings import PRIVATE_BATCH, WORD_MODELS, Experiment, check_model
from tfdp.experiments.start import begin
from tfdp.layers import NoisyWeights
from tfdp.models import NUM_TOKENS

_TOKEN = re.compile(r"\w+|[^\w\s]")
# With --normalization=private_batch: the weight of a lot in the running statistics (alpha), and the
# share of these statistics in the clipped vector.
_MOVING_RATE, _SHARE = 0.02, 0.2


def load(experiment: Experiment) -> data.Dataset:
    """Loads the data of an experiment, and converts texts to rows of ids.

    Raises:
        ValueError: If the model does not support such data, or labels are not class indices.
        DataUnavailable: If the data set cannot be loaded.
    """
    if own_data.is_own(experiment.dataset):
        dataset = own_data.load(experiment)
    else:
        dataset = data.load(
            experiment.dataset, train_split=experiment.train_split, test_split=experiment.test_split
        )
    data.check_labels(dataset.y_train, dataset.num_classes)
    if dataset.input_shape != ():
        check_model(experiment, kind_of(experiment.dataset) or "images")
        return dataset
    check_model(experiment, "texts")
    length = experiment.sequence_length
    return dataclasses.replace(
        dataset,
        x_train=hash_tokens(dataset.x_train, length),
        x_test=hash_tokens(dataset.x_test, length),
        input_shape=(length,),
    )


def hash_tokens(texts: Collection[str], length: int, num_buckets: int = NUM_TOKENS) -> np.ndarray:
    """Converts texts to rows of token ids by a public hash.

    Nothing is learned from the private texts. A vocabulary built from them would be a separate
    release: a rare word in it reveals that somebody wrote the word. A hash depends only on the word.

    Words are lower-cased. Every punctuation mark is a separate token. The hash is CRC-32, which is
    equal on every machine and in every run (unlike Python's `hash`).

    Args:
        texts: The texts.
        length: Number of tokens in a row. Longer texts are cut, and shorter ones are padded with 0 at
            the end.
        num_buckets: Number of ids, at least 2, including id 0 for padding.

    Returns:
        An int32 array of shape (number of texts, length) with values in `[0, num_buckets)`.
    """
    rows = np.zeros((len(texts), length), np.int32)
    for row, text in zip(rows, texts, strict=True):
        for column, token in enumerate(_TOKEN.findall(str(text).lower())[:length]):
            row[column] = 1 + zlib.crc32(token.encode()) % (num_buckets - 1)
    return rows


def build(experiment: Experiment, dataset: data.Dataset) -> tuple[keras.Model, tuple[str, ...]]:
    """Builds the network of an experiment with its initial weights and frozen layers.

    Returns:
        The network, and sentences about the data and the network for the record and the model card.

    Raises:
        ValueError: If the settings do not fit the network, or the initial weights are not allowed.
    """
    public = None
    if experiment.takes_public_data:
        public = public_examples(
            experiment.dataset, experiment.public_examples, source=experiment.public_data
        )
    model = models.build(
        experiment.model,
        dataset.input_shape,
        dataset.num_classes,
        normalization=experiment.normalization,
        activation=experiment.activation,
        normalize_output=experiment.normalize_output,
        public_data=public,
        statistics=experiment.statistics,
        private_statistics=_private_statistics(experiment),
        width=experiment.width,
    )
    notes = []
    if kind_of(experiment.dataset) == "rows":
        notes.append(
            f"A record is a row, not a text: {dataset.preprocessing} A text with several rows is "
            "protected less than a record."
        )
    if own_data.is_own(experiment.dataset):
        notes.append(f"Data: {dataset.source}. {dataset.preprocessing}")
    if experiment.model in WORD_MODELS:
        _set_embeddings(model, experiment)
        notes.append(_about_words(experiment))
    notes += begin(experiment, model)
    return _with_weight_noise(model, experiment), tuple(notes)


def _with_weight_noise(model, experiment):
    """Returns a model that computes with noisy weights, or `model` itself without `weight_noise`."""
    if not experiment.weight_noise:
        return model
    noisy = NoisyWeights(
        model,
        experiment.weight_noise,
        experiment.noisy_weights,
        seed=experiment.seed,  # it is public: the training is not private
        name="noisy_weights",
    )
    (given,) = model.inputs
    inputs = keras.Input(given.shape[1:], dtype=given.dtype)
    return keras.Sequential([inputs, noisy], name=model.name)


def _private_statistics(experiment):
    """Returns the arguments of `PrivateBatchNormalization`, or None for another normalization."""
    if experiment.normalization != PRIVATE_BATCH:
        return None
    # A step multiplies a gradient by the learning rate, and the layer multiplies it by its share.
    return {
        "share": _SHARE,
        "rate": _MOVING_RATE / (experiment.learning_rate * _SHARE),
        "statistics": "batch" if experiment.statistics == "batch" else "running",
    }


def _set_embeddings(model: keras.Model, experiment: Experiment) -> None:
    """Freezes the word vectors of a fresh network, if the experiment says so.

    Frozen vectors have PyTorch's scale, as in the papers' models.
    """
    layer = model.get_layer("embedding")
    layer.trainable = experiment.embeddings == "trained"
    if not layer.trainable:
        layer.embeddings.assign(keras.random.normal(layer.embeddings.shape))


def _about_words(experiment: Experiment) -> str:
    """Returns the sentence about words for the record and the model card."""
    return (
        f"Words have one of {NUM_TOKENS - 1:,} ids by a fixed public hash (CRC-32). Their vectors are "
        f"random numbers, {experiment.embeddings}. Of every text, the first "
        f"{experiment.sequence_length} words and marks are used."
    )
