"""An experiment whose result goes into a folder, whole."""

import functools
import math

import keras
import tensorflow as tf

from tfdp.experiments.experiment import Result, run
from tfdp.experiments.report import card, record
from tfdp.experiments.result_folder import ResultError, ResultFolder
from tfdp.experiments.settings import Experiment
from tfdp.training.export import export


def run_into(folder: ResultFolder, experiment: Experiment, verbose: int | str = "auto") -> Result:
    """`run`, with the log, the release, the record and the model card in an open folder.

    Example:

    ```python
    with ResultFolder("runs/a") as folder:
        result = run_into(folder, experiment)
    ```

    Args:
        folder: where the result goes; it is committed.
        experiment: the settings.
        verbose: as in `keras.Model.fit`.

    Raises:
        ResultError: the result does not fit on the disk (before training), or it or the log could
            not be written.
        ValueError, DataUnavailable, FloatingPointError: as in `run`.
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
    folder.commit(record(result), card(result), functools.partial(export, result.model))
    return result


def model_bytes(model: keras.Model) -> int:
    """How many bytes the weights of a model take in a file, at least."""
    return sum(math.prod(weight.shape) * tf.as_dtype(weight.dtype).size for weight in model.weights)
