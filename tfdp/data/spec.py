"""Public facts about data sets of `tensorflow_datasets`, known before an example is read."""

import dataclasses
import importlib


@dataclasses.dataclass(frozen=True)
class Spec:
    """Public facts about a data set of `tensorflow_datasets`.

    Attributes:
        input_shape: Shape of one example; () for texts.
        num_classes: Number of classes.
        host: Address from which the data are downloaded.
        train_split: The usual training examples, in the notation of `tensorflow_datasets`.
        test_split: The usual test examples. None means "test", or "validation" if there is no "test".
        text: The features that are joined to a text, in this order. Empty for images.
        builder: The name in `tensorflow_datasets`. None if it is the same.
        row: Number of bytes of text in an example. 0 if an example is a whole text, or no text.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    host: str
    train_split: str = "train"
    test_split: str | None = "test"
    text: tuple[str, ...] = ()
    builder: str | None = None
    row: int = 0

    @property
    def kind(self) -> str:
        """The kind of examples: "images", "rows" of bytes, or "texts"."""
        if self.row:
            return "rows"
        return "texts" if self.text else "images"

    @property
    def preprocessing(self) -> str:
        """One sentence about how an example is prepared."""
        if self.row:
            return (
                f"Every text is cut into rows of {self.row} bytes, and the remainder is dropped. "
                "A row is one example: each byte but the last is an input, the next byte its target."
            )
        if self.text:
            joined = " and ".join(self.text)
            return f"Texts as they are, with {joined} joined by a space."
        return "Pixels are divided by 255, then shifted and scaled from [0, 1] to [-1, 1]."


def listed_names() -> list[str]:
    """Returns the names of all data sets that `tensorflow_datasets` includes."""
    datasets = importlib.import_module("tensorflow_datasets")  # 0.4 s, and no TensorFlow
    return datasets.list_builders(with_community_datasets=False)


def described(name: str, features) -> Spec:
    """Returns the `Spec` of a data set that has a class label, and an image or one text.

    Args:
        name: The name in `tensorflow_datasets`, for messages.
        features: The features of the builder, by name.

    Raises:
        ValueError: If there is no class label, or neither an image nor exactly one text.
    """
    datasets = importlib.import_module("tensorflow_datasets")
    features = dict(features.items()) if hasattr(features, "items") else {}
    kinds = {each: type(feature).__name__ for each, feature in features.items()}
    texts = [each for each, kind in kinds.items() if kind == "Text" and each != "id"]
    shown = ", ".join(f"{each} ({kind})" for each, kind in sorted(kinds.items()))
    if not isinstance(features.get("label"), datasets.features.ClassLabel):
        raise ValueError(
            f"Expected a data set with a class label named 'label'. {name!r} has {shown}. Use another "
            "data set."
        )
    known = {"num_classes": features["label"].num_classes, "host": _HOST, "test_split": None}
    if kinds.get("image") == "Image":
        shape = tuple(features["image"].shape)
        if None in shape:
            raise ValueError(
                f"Expected images of one size. {name!r} has images of shape {shape}. Use another data "
                "set."
            )
        return Spec(shape, **known)
    if len(texts) != 1:
        raise ValueError(
            f"Expected a data set with an image or one text. {name!r} has {shown}. In Python, map the "
            "examples of tensorflow_datasets.load to (text, label), and pass them to make_lots."
        )
    return Spec((), text=tuple(texts), **known)


# The host that is probed for a network connection, if the builder's own is unknown.
_HOST = "https://storage.googleapis.com"
