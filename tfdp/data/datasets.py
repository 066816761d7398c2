"""Loads data sets by name, as arrays that were scaled by public constants.

No preprocessing uses statistics of the private data: a mean or a variance of it would be a release that
the accounting does not include.
"""

import dataclasses
import pathlib
from typing import Any

import numpy as np

from tfdp._validate import did_you_mean, one_of, text
from tfdp.data.prepared import builder_of, check_apart, no_split, prepared, read
from tfdp.data.spec import Spec, described, listed_names


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The training and test arrays of a data set, as `load` returns them.

    Attributes:
        name: The name by which the data set was loaded.
        x_train: Training inputs. Images are float32 of shape (examples, height, width, channels) in
            [-1, 1]. Texts are an array of `str`. Rows of characters are int32 byte values.
        y_train: Training labels, int32 of shape (examples,), or (examples, tokens) for language
            models.
        x_test: Test inputs, like `x_train`.
        y_test: Test labels, like `y_train`.
        num_classes: Number of classes.
        input_shape: Shape of the input of one example. () for texts.
        source: Where the data come from, as a text for reports.
        preprocessing: One sentence that describes the preprocessing, for reports.
        encoder: For a table, the Keras model that maps its columns to the inputs. None for other data.

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
    encoder: Any = None

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, train={len(self.y_train)}, test={len(self.y_test)}, "
            f"input_shape={self.input_shape}, num_classes={self.num_classes})"
        )


DATASETS: dict[str, Spec] = {
    # A small corpus of news for a language model: the test split, cut into two parts.
    "ag_news_characters": Spec(
        (79,),
        256,
        "https://drive.google.com",
        train_split="test[:6600]",
        test_split="test[6600:]",
        text=("title", "description"),
        builder="ag_news_subset",
        row=80,
    ),
    # The papers' split: 24,000 of the 120,000 texts ("train[96000:]") are for validation.
    "ag_news_subset": Spec(
        (),
        4,
        "https://drive.google.com",
        train_split="train[:96000]",
        text=("title", "description"),
    ),
    "cifar10": Spec((32, 32, 3), 10, "https://www.cs.toronto.edu"),
    "cifar100": Spec((32, 32, 3), 100, "https://www.cs.toronto.edu"),
    "digits": Spec((8, 8, 1), 10, ""),  # in digits.npz
    # The labels of GLUE's test split are withheld; its validation split is the usual test set.
    "glue/sst2": Spec(
        (), 2, "https://dl.fbaipublicfiles.com", test_split="validation", text=("sentence",)
    ),
    "kmnist": Spec((28, 28, 1), 10, "http://codh.rois.ac.jp"),
    # TensorFlow Privacy's language model uses this many of the 30 million texts.
    "lm1b_characters": Spec(
        (79,),
        256,
        "http://www.statmt.org",
        train_split="train[:45000]",
        test_split="test[:10000]",
        text=("text",),
        builder="lm1b",
        row=80,
    ),
    "mnist": Spec((28, 28, 1), 10, "https://storage.googleapis.com"),
}


def check_name(name: str) -> None:
    """Raises ValueError if no data set has the name.

    A configuration after a slash is not checked.
    """
    if name in DATASETS or name.partition("/")[0] in (listed := listed_names()):
        return
    meant = did_you_mean(name, [*DATASETS, *listed])
    raise ValueError(
        f"Expected --dataset to be one of {', '.join(sorted(DATASETS))}, or another name of "
        f"tensorflow_datasets. Received {name!r}.{meant}"
    )


def load(
    name: str,
    data_dir: str | None = None,
    *,
    train_split: str | None = None,
    test_split: str | None = None,
) -> Dataset:
    """Loads a data set by its name, and downloads it first if this machine does not have it.

    Use it for tutorials and benchmarks. Pass your own data to `fit` as arrays, or make a source of them
    with `as_source`.

    Args:
        name: A key of `DATASETS`, or the name of any data set of `tensorflow_datasets` that has a
            class label and an image or one text. "digits" needs neither files nor a network.
        data_dir: Folder in which `tensorflow_datasets` keeps prepared data. By default the value of
            the environment variable TFDS_DATA_DIR, and without that ~/tensorflow_datasets.
        train_split, test_split: Splits or parts of splits to use instead of the usual ones, in the
            notation of `tensorflow_datasets`: "train[:6000]", "test[80%:]". They must not share
            examples.

    Returns:
        A `Dataset` of arrays in memory.

    Raises:
        ValueError: If the name is unknown, the splits share examples, or this kind of data is not
            supported.
        DataUnavailable: If the data or one of the splits is not on this machine and cannot be
            downloaded.

    Example:
        >>> import tfdp
        >>> digits = tfdp.data.load("digits")
        >>> digits.x_train.shape, digits.x_train.min(), digits.x_train.max()
        ((1437, 8, 8, 1), np.float32(-1.0), np.float32(1.0))
    """
    spec = _spec(name, data_dir)
    if name == "digits":
        if given := train_split or test_split:
            raise ValueError(f"'digits' has one fixed split. Remove {given!r}.")
        return _digits()
    builder = prepared(spec.builder or name, data_dir, spec.host)
    usual_test = spec.test_split or ("test" if "test" in builder.info.splits else "validation")
    train_split, test_split = train_split or spec.train_split, test_split or usual_test
    check_apart(builder, name, train_split, test_split)
    train, test = (_examples(builder, spec, split) for split in (train_split, test_split))
    for split, (_, labels) in ((train_split, train), (test_split, test)):
        if np.any(labels < 0):
            raise ValueError(
                f"The split {split!r} of {name!r} has examples whose label is withheld (-1). Use "
                "another split, such as 'validation'."
            )
    return Dataset(
        name,
        *train,
        *test,
        num_classes=spec.num_classes,
        input_shape=spec.input_shape,
        source=f"tensorflow_datasets: {spec.builder or name}, {train_split} and {test_split}",
        preprocessing=spec.preprocessing,
    )


def load_split(name: str, split: str, data_dir: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Loads one split of a data set, even if its other splits are not available.

    Use it to evaluate a trained model on test data without loading the training data.

    Args:
        name: Name of the data set, as for `load`.
        split: "train", "test" or another split that the data set has, or a part of one in the
            notation of `tensorflow_datasets` ("test[:1000]"). For data sets of characters, "train"
            and "test" are the parts that `load` uses.
        data_dir: Folder of prepared data, as for `load`.

    Returns:
        The tuple (inputs, labels), both as in `Dataset`.

    Raises:
        ValueError: If the name is unknown.
        DataUnavailable: If the split does not exist, or is not on this machine and cannot be
            downloaded.

    Example:
        >>> import tfdp
        >>> x, y = tfdp.data.load_split("digits", "test")
        >>> x.shape, y.shape, y.dtype
        ((360, 8, 8, 1), (360,), dtype('int32'))
    """
    spec = _spec(name, data_dir)
    split = text("split", split)
    if name == "digits":
        data = _digits()
        splits = {"train": (data.x_train, data.y_train), "test": (data.x_test, data.y_test)}
        if split not in splits:
            raise no_split(name, split, splits, "scikit-learn")
        return splits[split]
    if spec.row:  # the parts that `load` uses, even if both come from one split
        split = {"train": spec.train_split, "test": spec.test_split}.get(split) or split
    return _examples(prepared(spec.builder or name, data_dir, spec.host), spec, split)


def _examples(builder, spec: Spec, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs and labels of one split."""
    examples = read(builder, split)
    if not spec.text:
        return _to_unit_ball(examples["image"], 255), examples["label"].astype(np.int32)
    texts = [b" ".join(parts) for parts in zip(*(examples[f] for f in spec.text), strict=True)]
    if spec.row:
        rows = cut_bytes(texts, spec.row)
        return rows[:, :-1], rows[:, 1:]
    return np.array([text.decode("utf-8") for text in texts]), examples["label"].astype(np.int32)


def cut_bytes(texts: list[bytes], length: int) -> np.ndarray:
    """Cuts texts into rows of bytes, for a language model of characters.

    Each text is cut separately, and its remainder is dropped. Each row belongs to one text, so adding,
    removing or changing a text leaves the rows of all other texts unchanged.

    Args:
        texts: Texts in UTF-8.
        length: Number of bytes in a row, at least 1.

    Returns:
        int32 array of shape (number of rows, length) with values from 0 to 255.
    """
    kept = b"".join(text[: len(text) // length * length] for text in texts)
    return np.frombuffer(kept, np.uint8).reshape(-1, length).astype(np.int32)


def _spec(name: str, data_dir: str | None) -> Spec:
    """Returns the public facts about a dataset, without reading an example."""
    if isinstance(name, str) and name in DATASETS:
        return DATASETS[name]
    if not isinstance(name, str) or name.partition("/")[0] not in listed_names():
        one_of("name", name, sorted(DATASETS), remedy="Or use a name of tensorflow_datasets.")
    return described(name, builder_of(name, data_dir).info.features)


def _to_unit_ball(pixels: np.ndarray, largest: int) -> np.ndarray:
    """Scales pixels from [0, largest] to [-1, 1], as float32."""
    scaled = pixels.astype(np.float32)
    scaled *= 2 / largest
    scaled -= 1
    return scaled


def _digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits with a fixed public split.

    They are the test set of E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI
    Machine Learning Repository, doi:10.24432/C50P49 (CC BY 4.0).
    """
    with np.load(pathlib.Path(__file__).with_name("digits.npz")) as digits:
        images = _to_unit_ball(digits["images"][..., np.newaxis], 16)
        labels = digits["labels"].astype(np.int32)
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
