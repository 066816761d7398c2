"""Models that prepare samples inside their own `fit`, as the tasks of KerasHub do.

Such a `fit` takes texts or images, makes batches, and applies the model's preprocessor to each of them.
Private training draws its lots from rows of numbers, and accepts no other batches than these. So the
preprocessor is applied once before lots are drawn, and `keras.Model`'s own `fit` is called behind that
of the task.

A preprocessor that draws random numbers, such as one that masks words, draws them once, not in every
epoch. It has to treat samples one by one, as those of KerasHub do.
"""

import keras
import numpy as np
import tensorflow as tf

from tfdp.data import Lots


def _preparing_class(model):
    """The class whose `fit` prepares samples with `preprocess_samples`, or None."""
    for kind in type(model).__mro__:
        if "preprocess_samples" in vars(kind) and "fit" in vars(kind):
            return kind
    return None


def prepared(model, x, y=None, sample_weight=None) -> tuple:
    """Returns (x, y, sample_weight) as the layers of `model` take them.

    Args:
        model: any model; the data of one that prepares nothing are returned as they are.
        x, y, sample_weight: as for `fit`.

    Raises:
        ValueError: the data are lots or batches of numbers, but the model has a preprocessor.
    """
    if not _prepares(model):
        return x, y, sample_weight
    if isinstance(x, tf.data.Dataset):
        return x.map(model.preprocess_samples), y, sample_weight
    if isinstance(x, (Lots, keras.utils.PyDataset)) or not hasattr(x, "__len__"):
        raise ValueError(
            f"Model '{model.name}' prepares its samples by `preprocessor`, and lots or batches are "
            f"drawn already. Received x of type {type(x).__name__}. Expected arrays, lists or a "
            "tf.data.Dataset. Or prepare the arrays, x, y, _ = model.preprocess_samples(x, y), draw "
            "lots of them, and set model.preprocessor = None."
        )
    found = keras.utils.unpack_x_y_sample_weight(model.preprocess_samples(x, y, sample_weight))
    return keras.tree.map_structure(lambda leaf: None if leaf is None else np.asarray(leaf), found)


def prepared_validation(model, data):
    """Returns the argument `validation_data` of `fit` as the layers of `model` take it."""
    if data is None or not _prepares(model):
        return data
    if isinstance(data, tf.data.Dataset):
        return data.map(model.preprocess_samples)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    return keras.utils.pack_x_y_sample_weight(*prepared(model, x, y, sample_weight))


def _prepares(model) -> bool:
    """Whether the model prepares samples; a task without a preprocessor takes them as they are."""
    return _preparing_class(model) is not None and getattr(model, "preprocessor", model) is not None


def past_preparation(model, after: type, name: str):
    """Returns the method of that name that follows the class `after` in the model's bases.

    If one of the bases prepares samples, the method is that of the base behind it.
    """
    return getattr(super(_preparing_class(model) or after, model), name)
