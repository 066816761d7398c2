"""Makes the data and the network of an experiment ready for training."""

import keras

from tfdp import data, models
from tfdp.data.datasets import kind_of
from tfdp.experiments.public_data import public_examples
from tfdp.experiments.rules import PRIVATE_BATCH, check_model
from tfdp.experiments.settings import Experiment
from tfdp.experiments.start import begin
from tfdp.experiments.weight_noise import with_weight_noise
from tfdp.experiments.words import Words, in_words, with_words, words_of


def load(experiment: Experiment) -> tuple[data.Dataset, Words | None]:
    """Loads the data of an experiment; texts become rows of ids, and their words are returned as well.

    Raises:
        ValueError: the model does not take such data, or labels are no class indices.
        DataUnavailable: the data set cannot be loaded.
    """
    dataset = data.load(
        experiment.dataset,
        experiment.data_dir,
        train_split=experiment.train_split,
        test_split=experiment.test_split,
    )
    data.check_labels(dataset.y_train, dataset.num_classes)
    if dataset.input_shape != ():
        check_model(experiment, kind_of(experiment.dataset) or "images")
        return dataset, None
    check_model(experiment, "texts")
    words = words_of(experiment)
    return in_words(dataset, words), words


def build(
    experiment: Experiment, dataset: data.Dataset, words: Words | None
) -> tuple[keras.Model, tuple[dict, ...], tuple[str, ...]]:
    """Builds the network of an experiment with its initial weights and frozen layers.

    Args:
        experiment: the settings.
        dataset: what `load` returned.
        words: the words of texts, or None.

    Returns:
        (the network, the earlier trainings of its weights as in `start.begin`, sentences about the data
        and the network for the record and the model card).

    Raises:
        ValueError: the settings do not fit the network, or the initial weights are refused.
    """
    model = models.build(
        experiment.model,
        dataset.input_shape,
        dataset.num_classes,
        normalization=experiment.normalization,
        activation=experiment.activation,
        normalize_output=experiment.normalize_output,
        public_data=_public_data(experiment),
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
    if words is not None:
        model = with_words(model, words)
        notes.append(words.note)
    trained_on, more = begin(experiment, model)
    return with_weight_noise(model, experiment), trained_on, (*notes, *more)


def _public_data(experiment):
    """Returns the public examples whose statistics normalization uses, or None."""
    if not experiment.takes_public_data:
        return None
    return public_examples(
        experiment.dataset,
        experiment.public_examples,
        experiment.data_dir,
        source=experiment.public_data,
    )


def _private_statistics(experiment):
    """Returns the arguments of `PrivateBatchNormalization`, or None for another normalization."""
    if experiment.normalization != PRIVATE_BATCH:
        return None
    # A step multiplies a gradient by the learning rate, and the layer has it multiplied by its share.
    factor = experiment.learning_rate * experiment.statistics_share
    return {
        "truncation": experiment.truncation,
        "share": experiment.statistics_share,
        "rate": experiment.moving_rate / factor,
        "statistics": "batch" if experiment.statistics == "batch" else "running",
    }
