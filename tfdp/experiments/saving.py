"""Runs an experiment and writes its whole result into a folder."""

import functools
import math
from collections.abc import Mapping

import keras
import tensorflow as tf

from tfdp.experiments.checkpoints import Checkpoints
from tfdp.experiments.experiment import Diverged, Result, run
from tfdp.experiments.report import card, record
from tfdp.experiments.result_folder import ResultError, ResultFolder
from tfdp.experiments.settings import Experiment
from tfdp.experiments.unfinished import contents_of, digests_of, settings_of
from tfdp.training.export import export


def run_into(
    folder: ResultFolder,
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
            seconds. After a crash, the same call goes on from the last one.
        notes: what run.json shall hold besides, by name, JSON-safe.

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
    place = folder.checkpoints(settings_of(experiment))
    checkpoints = Checkpoints(place, checkpoint_steps, checkpoint_seconds)
    # Before the training, as the files may be others at its end.
    digests = {
        "digests_of_settings": digests_of(experiment),
        "contents_of_settings": contents_of(experiment),
    }

    def check(model):
        folder.check_space(model_bytes(model))
        if digests_of(experiment) != digests["digests_of_settings"]:
            raise ResultError(
                "Expected the files that the settings name to stay as they are while they are read. "
                "Found that one was written anew. Run the same command again."
            )

    try:
        result = run(
            experiment,
            log_dir=folder.log_dir,
            verbose=verbose,
            before_training=check,
            checkpoints=checkpoints,
        )
    except Diverged:
        folder.abandon()  # it would diverge again
        raise
    except tf.errors.OpError as error:
        if folder.log_dir not in str(error):
            raise
        found = str(error).partition(folder.log_dir)[2].splitlines()[0]
        raise _not_written("TensorBoard's log", found, folder) from error
    except OSError as error:
        if not str(error.filename or "").startswith(folder.secrets()):
            raise
        raise _not_written("the state of the training", error.strerror, folder) from error
    folder.commit(
        {**(notes or {}), **record(result), **digests},
        card(result, command),
        functools.partial(export, result.model),
    )
    return result


def _not_written(what, found, folder) -> ResultError:
    kept = "its model is lost. Mend that, or choose another folder, and train again"
    if folder.holds_state:
        kept = "the state before it is kept. Mend that, and run the same command again"
    return ResultError(
        f"Expected to write {what} beside {folder.path}. Found: {found}. The training ended there; "
        f"{kept}."
    )


def model_bytes(model: keras.Model) -> int:
    """Returns the bytes of a model's weights, a lower bound on the size of its file."""
    return sum(math.prod(weight.shape) * tf.as_dtype(weight.dtype).size for weight in model.weights)
