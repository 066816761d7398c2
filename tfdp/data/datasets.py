"""Loads datasets by name, as arrays scaled by public constants.

Nothing here depends on statistics of the private data: a mean or a variance taken from it would be
a release that the accounting does not include.
"""

import dataclasses
import os
import threading
import urllib.error
import urllib.request

import numpy as np
from absl import logging

from tfdp._validate import one_of, text, whole
from tfdp.data.strokes import strokes
from tfdp.data.text import cut_bytes

# Seconds to wait for an answer from the host of a download.
_PROBE_SECONDS = 10


class DataUnavailable(RuntimeError):
    """The data is not prepared on this machine and cannot be downloaded.

    Example:
        >>> import tfdp
        >>> tfdp.data.load_split("digits", "validation")
        Traceback (most recent call last):
        ...
        tfdp.data.datasets.DataUnavailable: The dataset 'digits' in scikit-learn has no split
        'validation' (it has: test, train): ...
    """


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A dataset, ready to train on.

    Attributes:
        name: the name under which the dataset was loaded.
        x_train: training inputs; images are float32 NHWC in [-1, 1], texts an array of `str`, rows
            of characters int32 byte values.
        y_train: training labels, int32, shape (examples,); of a language model (examples, tokens).
        x_test: test inputs, like `x_train`.
        y_test: test labels, like `y_train`.
        num_classes: number of classes.
        input_shape: shape of one example; () for texts.
        source: where the data comes from.
        preprocessing: one sentence that describes the preprocessing.

    Example:
        >>> import tfdp
        >>> digits = tfdp.data.load("digits")
        >>> digits.num_classes, digits.input_shape, len(digits.y_train), len(digits.y_test)
        (10, (8, 8, 1), 1437, 360)
        >>> digits.preprocessing
        'Pixels are divided by 16, then shifted and scaled from [0, 1] to [-1, 1].'
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    num_classes: int
    input_shape: tuple[int, ...]
    source: str
    preprocessing: str


@dataclasses.dataclass(frozen=True)
class _Spec:
    """Public facts about a dataset of `tensorflow_datasets`."""

    input_shape: tuple[int, ...]
    num_classes: int
    host: str  # where the builder downloads from
    train_split: str = "train"
    test_split: str = "test"
    text: tuple[str, ...] = ()  # the features that make up a text; none for images
    builder: str | None = None  # the name in tensorflow_datasets, where it is another
    row: int = 0  # how many bytes of text make up an example; 0 where an example is a whole text

    @property
    def preprocessing(self) -> str:
        if self.row:
            return (
                f"Every text is cut into rows of {self.row} bytes, and what is left of it is dropped. "
                "A row is one example: each byte but the last is an input, the next byte its target."
            )
        if self.text:
            return "Texts as they are, with " + " and ".join(self.text) + " joined by a space."
        return "Pixels are divided by 255, then shifted and scaled from [0, 1] to [-1, 1]."


DATASETS: dict[str, _Spec | None] = {
    # A small corpus of news for a language model: the test split, cut into two parts.
    "ag_news_characters": _Spec(
        (79,),
        256,
        "https://drive.google.com",
        train_split="test[:6600]",
        test_split="test[6600:]",
        text=("title", "description"),
        builder="ag_news_subset",
        row=80,
    ),
    "ag_news_subset": _Spec((), 4, "https://drive.google.com", text=("title", "description")),
    "cifar10": _Spec((32, 32, 3), 10, "https://www.cs.toronto.edu"),
    "cifar100": _Spec((32, 32, 3), 100, "https://www.cs.toronto.edu"),
    "digits": None,  # embedded in scikit-learn
    # The labels of GLUE's test split are withheld; its validation split is the usual test set.
    "glue/sst2": _Spec(
        (), 2, "https://dl.fbaipublicfiles.com", test_split="validation", text=("sentence",)
    ),
    "kmnist": _Spec((28, 28, 1), 10, "http://codh.rois.ac.jp"),
    # As many texts as TensorFlow Privacy's language model takes, of the 30 million that there are.
    "lm1b_characters": _Spec(
        (79,),
        256,
        "http://www.statmt.org",
        train_split="train[:45000]",
        test_split="test[:10000]",
        text=("text",),
        builder="lm1b",
        row=80,
    ),
    "mnist": _Spec((28, 28, 1), 10, "https://storage.googleapis.com"),
}


def has_rows_of_text(name: str) -> bool:
    """Whether the examples of a dataset are rows of bytes, whose labels are the next bytes."""
    return bool(_spec(name) and _spec(name).row)


def trainable_datasets() -> tuple[str, ...]:
    """Returns the names of the datasets whose examples are images or rows of text, not whole texts."""
    whole_texts = {name for name, spec in DATASETS.items() if spec and spec.text and not spec.row}
    return tuple(sorted(DATASETS.keys() - whole_texts))


def input_shape(name: str) -> tuple[int, ...]:
    """Returns the shape of one example of a dataset; () for texts."""
    spec = _spec(name)
    return (8, 8, 1) if spec is None else spec.input_shape


# The source of public examples for each private dataset. KMNIST and CIFAR-100 (their test splits) are
# those of SI-DPSGD, section 5; "strokes" is drawn at random and needs no download.
PUBLIC = {"mnist": "kmnist", "cifar10": "cifar100", "digits": "strokes"}


def load(name: str, data_dir: str | None = None) -> Dataset:
    """Loads a dataset, and downloads it first if it is not prepared on this machine.

    Args:
        name: a key of `DATASETS`. "digits" needs neither files nor a network.
        data_dir: folder in which `tensorflow_datasets` keeps prepared data; by default the value of
            the environment variable TFDS_DATA_DIR, and without that ~/tensorflow_datasets.

    Returns:
        The `Dataset`.

    Raises:
        ValueError: the name is unknown.
        DataUnavailable: the data (or one of its splits) is not prepared and cannot be downloaded.

    Example:
        >>> import tfdp
        >>> digits = tfdp.data.load("digits")
        >>> digits.x_train.shape, digits.x_train.min(), digits.x_train.max()
        ((1437, 8, 8, 1), np.float32(-1.0), np.float32(1.0))
    """
    spec = _spec(name)
    if spec is None:
        return _digits()
    train = load_split(name, spec.train_split, data_dir)
    test = load_split(name, spec.test_split, data_dir)
    return Dataset(
        name,
        *train,
        *test,
        num_classes=spec.num_classes,
        input_shape=spec.input_shape,
        source=f"tensorflow_datasets: {spec.builder or name}, {spec.train_split} and {spec.test_split}",
        preprocessing=spec.preprocessing,
    )


def load_split(name: str, split: str, data_dir: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Loads one split, for datasets of which not every split is available.

    Args:
        name: a key of `DATASETS`.
        split: "train", "test" or another split that the dataset has, or a part of one as in
            `tensorflow_datasets` ("test[:1000]"). Of rows of characters, "train" and "test" are the
            parts that `load` takes.
        data_dir: see `load`.

    Returns:
        (inputs, int32 labels), as in `Dataset`.

    Raises:
        ValueError: the name is unknown.
        DataUnavailable: the split does not exist, or is not prepared and cannot be downloaded.

    Example:
        >>> import tfdp
        >>> x, y = tfdp.data.load_split("digits", "test")
        >>> x.shape, y.shape, y.dtype
        ((360, 8, 8, 1), (360,), dtype('int32'))
    """
    spec = _spec(name)
    split = text("split", split)
    if spec is None:
        data = _digits()
        splits = {"train": (data.x_train, data.y_train), "test": (data.x_test, data.y_test)}
        if split not in splits:
            raise _no_split(name, split, splits, "scikit-learn")
        return splits[split]
    if spec.row:  # both parts may be from one split, which then must not be taken for one of them
        split = {"train": spec.train_split, "test": spec.test_split}.get(split, split)
    examples = _read(spec.builder or name, split, data_dir, spec.host)
    if not spec.text:
        return _to_unit_ball(examples["image"], 255), examples["label"].astype(np.int32)
    texts = [b" ".join(parts) for parts in zip(*(examples[f] for f in spec.text), strict=True)]
    if spec.row:
        rows = cut_bytes(texts, spec.row)
        return rows[:, :-1], rows[:, 1:]
    return np.array([text.decode("utf-8") for text in texts]), examples["label"].astype(np.int32)


def public(
    name: str,
    count: int,
    data_dir: str | None = None,
    seed: int = 0,
    source: str | None = None,
) -> np.ndarray:
    """Draws public examples that resemble a private dataset and are disjoint from it.

    The examples are from KMNIST for MNIST and from CIFAR-100 for CIFAR-10, as in SI-DPSGD, section 5,
    and random strokes for the digits. Nothing about the draw is private, so its seed has a fixed
    default.

    Args:
        name: the private dataset, a key of `PUBLIC`.
        count: number of examples, at least 1.
        data_dir: see `load`.
        seed: seed of the draw.
        source: "kmnist", "cifar100" or "strokes"; None takes the source in `PUBLIC`.

    Returns:
        float32 array of shape (count, height, width, channels), preprocessed like the private data.

    Raises:
        ValueError: the dataset has no public counterpart, the source has images of another shape, or
            the count is below 1 or too large.
        DataUnavailable: see `load`.

    Example:
        >>> import tfdp
        >>> strokes = tfdp.data.public("digits", 30)
        >>> strokes.shape, bool(strokes.min() >= -1.0)
        ((30, 8, 8, 1), True)
    """
    one_of("name", name, sorted(PUBLIC), remedy="Use one that has a public counterpart.")
    source = PUBLIC[name] if source is None else source
    seed = whole("seed", seed, 0)
    shape = input_shape(name)
    fits = ["strokes"]
    fits += [n for n in ("kmnist", "cifar100") if _spec(n).input_shape == shape]
    one_of("source", source, fits, remedy=f"Use a source of images like those of {name!r}.")
    if source == "strokes":
        return strokes(whole("count", count, 1), shape, seed)
    inputs, _ = load_split(source, "test", data_dir)
    count = whole("count", count, 1, len(inputs))
    return inputs[np.random.default_rng(seed).choice(len(inputs), count, replace=False)]


def _spec(name: str) -> _Spec | None:
    return DATASETS[one_of("name", name, sorted(DATASETS))]


def _to_unit_ball(pixels: np.ndarray, largest: int) -> np.ndarray:
    """Scales pixels from [0, largest] to [-1, 1], as float32."""
    scaled = pixels.astype(np.float32)
    scaled *= 2 / largest
    scaled -= 1
    return scaled


def _digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits with a fixed public split."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = _to_unit_ball(digits.images[..., np.newaxis], 16)
    labels = digits.target.astype(np.int32)
    # The split is part of the dataset: it is fixed, public, and the same in every version of NumPy
    # (as the raw stream of MT19937 and `argsort` are).
    order = np.argsort(np.random.RandomState(0).random_sample(len(labels)), kind="stable")
    train, test = order[:1437], order[1437:]
    return Dataset(
        "digits",
        images[train],
        labels[train],
        images[test],
        labels[test],
        num_classes=10,
        input_shape=(8, 8, 1),
        source="scikit-learn: load_digits, a fixed split into 1,437 and 360 examples",
        preprocessing="Pixels are divided by 16, then shifted and scaled from [0, 1] to [-1, 1].",
    )


def _read(name: str, split: str, data_dir: str | None, host: str) -> dict[str, np.ndarray]:
    """Reads one split as arrays, and downloads the dataset first if it is not prepared."""
    import tensorflow_datasets as tfds  # imported here, so that "digits" does not need it

    data_dir = data_dir or os.environ.get("TFDS_DATA_DIR") or None
    builder = tfds.builder(name, data_dir=data_dir)
    if not builder.info.splits:
        _download(builder, host)
    if split.partition("[")[0] not in builder.info.splits:
        raise _no_split(name, split, builder.info.splits, builder.data_dir)
    return tfds.as_numpy(builder.as_dataset(split=split, batch_size=-1))


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
            f"downloaded ({cause}): name a folder that holds it with "
            "--data_dir or the environment variable TFDS_DATA_DIR, or use the embedded default "
            "--dataset=digits."
        ) from error


def _probe(host: str) -> None:
    """Raises if `host` does not answer within seconds, so that no download hangs without a network."""
    outcome: list[Exception] = []

    def ask():
        try:
            urllib.request.urlopen(host, timeout=_PROBE_SECONDS).close()
        except urllib.error.HTTPError:
            pass  # an error status is an answer, too
        except Exception as error:
            outcome.append(error)

    # The request runs in a thread, because resolving a host name has no timeout of its own.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PROBE_SECONDS)
    if thread.is_alive():
        raise TimeoutError(f"no answer from {host} within {_PROBE_SECONDS} seconds")
    if outcome:
        raise outcome[0]


def _no_split(name: str, split: str, splits, where) -> DataUnavailable:
    return DataUnavailable(
        f"The dataset {name!r} in {where} has no split {split!r} (it has: "
        f"{', '.join(sorted(splits))}): name a folder that holds it with --data_dir or the "
        "environment variable TFDS_DATA_DIR, or use the embedded default --dataset=digits."
    )
