"""Makes the data and the network of an experiment ready for training."""

import dataclasses

import keras

from tfdp import data, models
from tfdp.data.datasets import kind_of
from tfdp.experiments import words
from tfdp.experiments.public_data import public_examples
from tfdp.experiments.settings import PRIVATE_BATCH, WORD_MODELS, Experiment, check_model
from tfdp.experiments.start import begin
from tfdp.layers import NoisyWeights

# With --normalization=private_batch: the weight of a lot in the running statistics (alpha), and their
# share of the clipped vector.
_MOVING_RATE, _SHARE = 0.02, 0.2


def load(experiment: Experiment) -> data.Dataset:
    """Loads the data of an experiment; texts become rows of ids.

    Raises:
        ValueError: the model does not take such data, or labels are no class indices.
        DataUnavailable: the data set cannot be loaded.
    """
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
        x_train=words.hash_tokens(dataset.x_train, length),
        x_test=words.hash_tokens(dataset.x_test, length),
        input_shape=(length,),
    )


def build(experiment: Experiment, dataset: data.Dataset) -> tuple[keras.Model, tuple[str, ...]]:
    """Builds the network of an experiment with its initial weights and frozen layers.

    Returns:
        (the network, sentences about the data and the network for the record and the model card).

    Raises:
        ValueError: the settings do not fit the network, or the initial weights are refused.
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
            f"A record is a row, and not a text: {dataset.preprocessing} A text that has several rows "
            "is protected less than a record."
        )
    if experiment.model in WORD_MODELS:
        words.set_embeddings(model, experiment)
        notes.append(words.note(experiment))
    notes += begin(experiment, model)
    return _with_weight_noise(model, experiment), tuple(notes)


def _with_weight_noise(model, experiment):
    """Returns a model that computes with noisy weights; `model` itself without `weight_noise`."""
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
    # A step multiplies a gradient by the learning rate, and the layer has it multiplied by its share.
    return {
        "share": _SHARE,
        "rate": _MOVING_RATE / (experiment.learning_rate * _SHARE),
        "statistics": "batch" if experiment.statistics == "batch" else "running",
    }
