"""Runs an experiment and writes its whole result into a folder."""

import functools
import math

import keras
import tensorflow as tf

from tfdp.experiments.experiment import Result, run
from tfdp.experiments.report import card, record
from tfdp.experiments.result_folder import ResultError, ResultFolder
from tfdp.experiments.settings import Experiment
from tfdp.training.export import export


def run_into(
    folder: ResultFolder,
    experiment: Experiment,
    verbose: int | str = "auto",
    command: str | None = None,
) -> Result:
    """Runs an experiment and commits its log, release, record and model card to an open folder.

    Args:
        folder: the entered folder of the result.
        experiment: the settings.
        verbose: as in `keras.Model.fit`.
        command: the command that makes this result, for the model card; None leaves it out.

    Returns:
        The result, as `run` returns it.

    Raises:
        ResultError: the disk has no room for the result (before training), or the result or the log
            could not be written.
        ValueError, DataUnavailable, FloatingPointError: as in `run`.

    Example:
        >>> import os
        >>> from tfdp.experiments import Experiment, ResultFolder, run_into
        >>> experiment = Experiment(mechanism="dpsgd", model="linear", sampling="cyclic",
        ...                         batch_size=479, steps=3, noise_multiplier=4.0, seed=1)
        >>> with ResultFolder("runs/a") as folder:
        ...     result = run_into(folder, experiment, verbose=0)
        >>> sorted(os.listdir("runs/a"))
        ['model.keras', 'model_card.md', 'run.json', 'tensorboard']
    """
    try:
        result = run(
            experiment,
            log_dir=folder.log_dir,
            verbose=verbose,
            before_training=lambda model: folder.check_space(model_bytes(model)),
        )
    except tf.errors.OpError as error:
        if folder.log_dir not in str(error):
            raise
        found = str(error).partition(folder.log_dir)[2].splitlines()[0]
        raise ResultError(
            f"Expected to write TensorBoard's log to {folder.log_dir}. Found: {found}. The training "
            "ended there, and its model is lost. Make room, or choose another folder, and train again."
        ) from error
    folder.commit(record(result), card(result, command), functools.partial(export, result.model))
    return result


def model_bytes(model: keras.Model) -> int:
    """Returns the bytes of a model's weights, a lower bound on the size of its file."""
    return sum(math.prod(weight.shape) * tf.as_dtype(weight.dtype).size for weight in model.weights)
