"""Reads and downloads data sets of `tensorflow_datasets`, and checks their splits."""

import itertools
import os
import threading
import urllib.error
import urllib.request

import numpy as np
from absl import logging

# Seconds to wait for an answer from the host of a download.
_PROBE_SECONDS = 10


class DataUnavailable(RuntimeError):
    """Error for a data set or split that is not on this machine and cannot be downloaded.

    Example:
        >>> import tfdp
        >>> tfdp.data.load_split("digits", "validation")
        Traceback (most recent call last):
        ...
        tfdp.data.prepared.DataUnavailable: The dataset 'digits' in scikit-learn has no split
        'validation' (it has: test, train). ...
    """


def builder_of(name: str, data_dir: str | None):
    """Returns the builder of a data set. Reads no example and downloads nothing."""
    import tensorflow_datasets as tfds  # imported here, so that "digits" does not need it

    data_dir = data_dir or os.environ.get("TFDS_DATA_DIR") or None
    return tfds.builder(name, data_dir=data_dir)


def prepared(name: str, data_dir: str | None, host: str):
    """Returns the builder of a data set, and downloads the data first if they are not prepared."""
    builder = builder_of(name, data_dir)
    if not builder.info.splits:
        _download(builder, host)
    return builder


def read(builder, split: str) -> dict[str, np.ndarray]:
    """Reads one split as arrays."""
    import tensorflow_datasets as tfds

    check_split(builder, split)
    return tfds.as_numpy(builder.as_dataset(split=split, batch_size=-1))


def check_split(builder, split: str) -> None:
    """Raises an error if a split does not exist, is empty or repeats an example."""
    if split.partition("[")[0] not in builder.info.splits:
        raise no_split(builder.name, split, builder.info.splits, builder.data_dir)
    try:
        count = builder.info.splits[split].num_examples
    except (AssertionError, ValueError) as error:
        found = " ".join(str(error).split())
        raise ValueError(
            f"Expected a split such as 'train', 'test[:6000]' or 'train[80%:]'. Received {split!r}: "
            f"{found}"
        ) from error
    if not count:
        raise ValueError(f"The split {split!r} has no examples. Use another split.")
    parts = builder.info.splits[split].file_instructions
    if any(_share(one, other) for one, other in itertools.combinations(parts, 2)):
        raise ValueError(
            f"The split {split!r} repeats some examples, which the accounting would count once. Use "
            "parts that do not overlap."
        )


def check_apart(builder, name: str, train_split: str, test_split: str) -> None:
    """Raises an error if splits share examples, which would inflate the test accuracy."""
    for split in (train_split, test_split):
        check_split(builder, split)
    first, second = (builder.info.splits[split] for split in (train_split, test_split))
    for mine, other in itertools.product(first.file_instructions, second.file_instructions):
        if _share(mine, other):
            raise ValueError(
                f"The training split {train_split!r} and the test split {test_split!r} of {name!r} "
                "share examples. Use parts that do not overlap, such as "
                "--train_split=test[:6000] --test_split=test[6000:]."
            )


def _share(one, other) -> bool:
    """Whether two instructions read a common example."""
    end = min(_end(one), _end(other))
    return one.filename == other.filename and end > max(one.skip, other.skip)


def _end(instruction) -> int:
    """Returns the position after the last example of a file that an instruction reads."""
    if instruction.take < 0:
        return instruction.examples_in_shard
    return instruction.skip + instruction.take


def _download(builder, host: str) -> None:
    logging.info("%s is not prepared in %s; downloading it.", builder.name, builder.data_dir)
    try:
        _probe(host)
        builder.download_and_prepare()
    except Exception as error:
        # The remedy is the same for every failure, and the cause is chained.
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataUnavailable(
            f"The dataset {builder.name!r} is not prepared in {builder.data_dir} and could not be "
            f"downloaded ({cause}). Set the environment variable TFDS_DATA_DIR to its folder, "
            "or use the built-in default --dataset=digits."
        ) from error


def _probe(host: str) -> None:
    """Raises an error if the host does not answer, because a download would hang without a network."""
    outcome: list[Exception] = []

    def ask():
        try:
            urllib.request.urlopen(host, timeout=_PROBE_SECONDS).close()
        except urllib.error.HTTPError:
            pass  # an error status is an answer, too
        except Exception as error:
            outcome.append(error)

    # The request runs in a thread, because resolving a host name has no timeout.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PROBE_SECONDS)
    if thread.is_alive():
        raise TimeoutError(f"no answer from {host} within {_PROBE_SECONDS} seconds")
    if outcome:
        raise outcome[0]


def no_split(name: str, split: str, splits, where) -> DataUnavailable:
    return DataUnavailable(
        f"The dataset {name!r} in {where} has no split {split!r} (it has: "
        f"{', '.join(sorted(splits))}). Use one of these with --train_split and --test_split, set the "
        "environment variable TFDS_DATA_DIR to a folder that has the split, or use the built-in "
        "default --dataset=digits."
    )
