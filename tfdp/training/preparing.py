"""Support for models that prepare samples inside their own `fit`, as KerasHub's tasks do.

Such a `fit` makes batches of texts or images, and applies the model's preprocessor to each of them.
Private training applies the preprocessor once to arrays, and to each example of lots and sources when
it is read. Then it calls `keras.Model.fit` instead.

On arrays, a preprocessor with random numbers, such as one that masks words, draws them only once, not
in every epoch. A preprocessor must treat samples one by one, as those of KerasHub do.
"""

import keras
import numpy as np
import tensorflow as tf

from tfdp._compat.tensorflow import Begun
from tfdp.data import Lots, OncePerEpoch, as_source
from tfdp.data.arrays import as_arrays, common_length, each_array, texts_as_tensors
from tfdp.data.sources import is_source
from tfdp.training.batches import is_batches
from tfdp.training.data_checks import check_finite


def prepared(model, x, y=None, sample_weight=None) -> tuple:
    """Applies the model's preprocessor to (x, y, sample_weight), the arguments of `fit`.

    The data of a model without one are returned as they are.

    Raises:
        ValueError: If the data are batches that KerasHub's tasks do not prepare either.
    """
    # A task without a preprocessor takes samples as they are.
    if _preparing_class(model) is None or getattr(model, "preprocessor", model) is None:
        return x, y, sample_weight
    if isinstance(x, OncePerEpoch):
        return OncePerEpoch(prepared(model, x.batches)[0]), y, sample_weight
    x = getattr(x, "tfdp_lots", x)
    if isinstance(x, Begun):  # of `make_private_with_epsilon`, which has prepared it
        return x, y, sample_weight
    if isinstance(x, tf.data.Dataset):
        return x.map(model.preprocess_samples), y, sample_weight
    if isinstance(x, Lots):
        return x.map(_of_one(model)), y, sample_weight
    if is_source(x):
        return as_source(x).map(_of_one(model)), y, sample_weight
    if isinstance(x, keras.utils.PyDataset) or not hasattr(x, "__len__"):
        raise ValueError(
            f"Model '{model.name}' prepares samples by its `preprocessor`, but not those of batches of "
            f"type {type(x).__name__}. Pass arrays, lists, tfdp.data.Lots or a tf.data.Dataset; or "
            "prepare the samples in your batches, and set model.preprocessor = None."
        )
    found = keras.utils.unpack_x_y_sample_weight(model.preprocess_samples(x, y, sample_weight))
    return keras.tree.map_structure(lambda leaf: None if leaf is None else np.asarray(leaf), found)


def _of_one(model):
    """Returns the function that prepares a single example, as a batch of one."""

    def prepare(example):
        one = keras.utils.unpack_x_y_sample_weight(each_array(lambda leaf: leaf[None], example))
        return each_array(lambda leaf: leaf[0], model.preprocess_samples(*one))

    return prepare


def prepared_validation(model, data):
    """Applies the model's preprocessor to `validation_data`, the argument of `fit`, and checks it.

    Raises:
        ValueError: If arrays do not fit together or hold numbers that are not finite. Keras would
            notice after the first epoch, when all planned steps are counted.
    """
    if isinstance(data, tf.data.Dataset) or is_source(data):
        return prepared(model, data)[0]
    if data is None or is_batches(data) or isinstance(data, Lots):
        return data
    x, y, sample_weight = prepared(model, *keras.utils.unpack_x_y_sample_weight(data))
    if is_batches(x) or any(map(_is_sparse, tf.nest.flatten((x, y)))):
        return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)
    x, y = as_arrays(x, "validation_data"), as_arrays(y, "validation_data")
    if sample_weight is not None:
        sample_weight = as_arrays(sample_weight, "validation_data")
    common_length(x, (y, sample_weight))
    check_finite((x, y, sample_weight), "validation_data")
    return keras.utils.pack_x_y_sample_weight(*map(texts_as_tensors, (x, y, sample_weight)))


def _is_sparse(leaf) -> bool:
    return isinstance(leaf, tf.RaggedTensor | tf.SparseTensor) or hasattr(leaf, "toarray")


def past_preparation(model, after: type, name: str):
    """Returns a method of Keras' class, past the class `after` and a class that prepares samples."""
    return getattr(super(_preparing_class(model) or after, model), name)


def _preparing_class(model) -> type | None:
    """Returns the class whose `fit` prepares samples with `preprocess_samples`, or None."""
    methods = {"preprocess_samples", "fit"}
    return next((base for base in type(model).__mro__ if vars(base).keys() >= methods), None)
