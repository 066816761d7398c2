"""Runs an experiment and writes its whole result into a folder."""

import dataclasses
import functools
from collections.abc import Mapping

import tensorflow as tf
from tensorboard.plugins.hparams import api

from tfdp.experiments.backups import Checkpoints
from tfdp.experiments.experiment import Diverged, Result, run
from tfdp.experiments.finished import digests_of, settings_of
from tfdp.experiments.report import card, record
from tfdp.experiments.result_folder import ResultError
from tfdp.experiments.run_folder import RunFolder
from tfdp.experiments.settings import Experiment
from tfdp.training.export import export


def run_into(
    folder: RunFolder,
    experiment: Experiment,
    verbose: int | str = "auto",
    command: str | None = None,
    *,
    checkpoint_steps: int | None = None,
    checkpoint_seconds: float = 10.0,
    notes: Mapping | None = None,
) -> Result:
    """Runs an experiment and commits its log, release, record and model card to an open folder.

    Args:
        folder: the entered folder of the result.
        experiment: the settings.
        verbose: as in `keras.Model.fit`.
        command: the command that makes this result, for the model card; None leaves it out.
        checkpoint_steps, checkpoint_seconds: a state is written after so many steps, or, for None,
            seconds; without privacy, after each epoch. After a crash, the same call resumes from it.
        notes: further content of run.json, by name, JSON-safe.

    Returns:
        The result, as `run` returns it.

    Raises:
        ResultError: the unfinished training in the folder has other settings, or a file could not be
            written.
        ValueError, DataUnavailable, FloatingPointError: as in `run`.

    Example:
        >>> import os
        >>> from tfdp.experiments import Experiment, RunFolder, run_into
        >>> experiment = Experiment(mechanism="dpsgd", model="linear", sampling="cyclic",
        ...                         batch_size=479, steps=3, noise_multiplier=4.0, seed=1)
        >>> with RunFolder("runs/a") as folder:
        ...     result = run_into(folder, experiment, verbose=0)
        >>> sorted(os.listdir("runs/a"))
        ['model.keras', 'model_card.md', 'run.json', 'tensorboard']
    """
    try:
        result = run(
            experiment,
            log_dir=folder.log_dir,
            verbose=verbose,
            before_training=lambda: folder.begin(settings_of(experiment)),
            checkpoints=Checkpoints(folder.backup, checkpoint_steps, checkpoint_seconds),
        )
    except Diverged:
        folder.discard()  # it would diverge again
        raise
    except (tf.errors.OpError, OSError) as error:
        if folder.unfinished not in str(error):
            raise
        raise ResultError(
            f"A file of the training could not be written: {error}. The last state is kept: mend that, "
            "and run the same command again to resume it."
        ) from error
    result = dataclasses.replace(result, restarts=folder.restarts)
    _write_hparams(folder.log_dir, result)
    content = {**(notes or {}), **record(result), "digests_of_settings": digests_of(experiment)}
    folder.commit(content, card(result, command), functools.partial(export, result.model))
    return result


def _write_hparams(log_dir, result) -> None:
    """Lets TensorBoard compare trainings by their settings, test accuracy and epsilons."""
    figures = {"test_accuracy": result.test_accuracy}
    figures |= {f"privacy/final_{g.kind}": g.epsilon for g in (result.claimed, result.proven)}
    with tf.summary.create_file_writer(log_dir).as_default():
        settings = result.experiment.recorded().items()
        api.hparams({name: value for name, value in settings if value is not None})
        for name, value in figures.items():
            tf.summary.scalar(name, value, step=result.run.steps)
