"""`run_into`, which trains an experiment and writes its complete result into a folder."""

import functools
import importlib.util
from pathlib import Path

import tensorflow as tf
from tensorboard.plugins.hparams import api

from tfdp.experiments.experiment import Result, run
from tfdp.experiments.report import card, record
from tfdp.experiments.run_folder import PICTURE, RunFolder
from tfdp.training.export import export


def run_into(
    folder: RunFolder, verbose: int | str = "auto", checkpoint_every: int | None = None
) -> Result:
    """Trains the experiment of a folder, and writes the release, run.json, model card and log into it.

    This is what `train.py` does. A training that a crash interrupted is resumed.

    Args:
        folder: A `RunFolder` that was entered, with the settings.
        verbose: As in `keras.Model.fit`.
        checkpoint_every: Number of steps between two writes of the state, as in `run`.

    Returns:
        The `Result`, as from `run`.

    Raises:
        ResultError: If a file could not be written.
        ValueError, DataUnavailable, FloatingPointError: As in `run`.

    Example:
        >>> import os
        >>> from tfdp.experiments import Experiment, RunFolder, run_into
        >>> experiment = Experiment(mechanism="dpsgd", model="linear", sampling="cyclic",
        ...                         batch_size=479, steps=3, noise_multiplier=4.0, seed=1)
        >>> with RunFolder("runs/a", experiment) as folder:
        ...     result = run_into(folder, verbose=0)
        >>> {"model.keras", "model_card.md", "run.json", "tensorboard"} <= {*os.listdir("runs/a")}
        True
    """
    try:
        result = run(folder.experiment, verbose, folder=folder, checkpoint_every=checkpoint_every)
        _write_hparams(folder.log_dir, result)
    except FloatingPointError:
        folder.discard()  # it would diverge again
        raise
    except (tf.errors.OpError, OSError) as error:
        if folder.unfinished not in str(error):
            raise
        raise folder.not_written(error) from error
    picture = result.experiment.private and importlib.util.find_spec("matplotlib") is not None
    folder.commit(record(result), card(result, picture), functools.partial(_save, result, picture))
    return result


def _save(result: Result, picture: bool, path: str) -> None:
    """Writes the release, and the picture of the spent privacy, without un-noised values."""
    export(result.release, path)
    if picture:
        of = result.experiment
        figure = result.model.privacy.plot(of.delta, of.adjacency, clipping=False)
        figure.savefig(Path(path).with_name(PICTURE), dpi=150)


def _write_hparams(log_dir, result) -> None:
    """Writes settings, test accuracy and epsilons, so that TensorBoard can compare trainings."""
    figures = {"test_accuracy": result.test_accuracy}
    figures |= {f"privacy/final_{g.kind}": g.epsilon for g in (result.claimed, result.proven)}
    with tf.summary.create_file_writer(log_dir).as_default():
        settings = result.experiment.recorded().items()
        api.hparams({name: value for name, value in settings if value is not None})
        for name, value in figures.items():
            tf.summary.scalar(name, value, step=result.run.steps)
