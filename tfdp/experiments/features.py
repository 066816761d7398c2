"""Computes the outputs of the frozen beginning of a network once, and trains the rest on them.

A layer that is frozen, and that acts alike in training and in inference, gives the same outputs in
every epoch. The rest of the network is trained on these outputs as its data. It shares its weights
with the whole network, which is what is evaluated at the end and released. The features of an example
are a function of that example and of public weights, so the guarantee is that of the whole network.
"""

import dataclasses
import itertools
import math

import keras
import numpy as np

from tfdp._compat.keras import is_graph_of_layers, uses_of
from tfdp.data import Dataset
from tfdp.layers import PrivateBatchNormalization, PublicBatchNormalization, PublicExamples

# Bytes of features that are kept in memory at most.
_LARGEST = 4 * 2**30
_BATCH = 256

_layers = keras.layers
# Layers that act alike in training and in inference, treat examples one by one, and carry no mask.
_ALIKE = (
    _layers.InputLayer,
    _layers.Conv1D,
    _layers.Conv2D,
    _layers.DepthwiseConv2D,
    _layers.SeparableConv2D,
    _layers.Dense,
    _layers.Flatten,
    _layers.Reshape,
    _layers.Rescaling,
    _layers.Activation,
    _layers.ReLU,
    _layers.ZeroPadding2D,
    _layers.MaxPooling1D,
    _layers.MaxPooling2D,
    _layers.AveragePooling1D,
    _layers.AveragePooling2D,
    _layers.GlobalMaxPooling2D,
    _layers.GlobalAveragePooling2D,
    _layers.LayerNormalization,
    _layers.GroupNormalization,
    _layers.Add,
    _layers.Multiply,
    _layers.Concatenate,
    PrivateBatchNormalization,
    PublicBatchNormalization,
)


@dataclasses.dataclass(frozen=True)
class Parts:
    """A network in two parts.

    Attributes:
        beginning: the frozen part, a model from inputs to features.
        rest: the part that is trained, a model from features to logits with the same weights.
    """

    beginning: keras.Model
    rest: keras.Model


def in_parts(model: keras.Model) -> Parts | None:
    """Returns a network in two parts, or None if it has no frozen beginning that is worth computing.

    Args:
        model: a built Sequential or functional network with one input and one output.
    """
    if not is_graph_of_layers(model) or len(model.inputs) != 1 or len(model.outputs) != 1:
        return None
    if len(model.layers) == 1 and isinstance(model.layers[0], PublicExamples):
        return _with_public_examples(model, model.layers[0])
    if isinstance(model, keras.Sequential):
        model = keras.Model(model.inputs[0], model.outputs[0], name=model.name)
    uses = [uses_of(operation) for operation in model.operations]
    if any(len(use) != 1 for use in uses):
        return None  # a layer that is used twice has outputs in both parts
    alike = itertools.takewhile(_is_alike_layer, model.operations)
    for end in range(len([*alike]), 0, -1):
        made = {id(t) for operation in model.operations[:end] for t in _tensors(operation.output)}
        taken = {id(t): t for use in uses[end:] for t in _tensors(use)}
        crossing = [t for key, t in taken.items() if key in made]
        if not any(operation.weights for operation in model.operations[:end]):
            return None
        if len(crossing) == 1:
            beginning = keras.Model(model.inputs[0], crossing[0])
            return Parts(beginning, keras.Model(crossing[0], model.outputs[0], name=model.name))
    return None


def _is_alike_layer(operation) -> bool:
    return isinstance(operation, keras.Layer) and is_alike(operation)


def is_alike(layer) -> bool:
    """Whether the outputs of a layer for an example are the same in every epoch."""
    if is_graph_of_layers(layer):
        return all(map(is_alike, layer.layers))
    if layer.trainable_variables:
        return False
    if isinstance(layer, _layers.BatchNormalization):
        return not layer.trainable
    if isinstance(layer, PrivateBatchNormalization) and layer.statistics == "batch":
        return False  # frozen or not, it has the moments of the lot in training
    return isinstance(layer, _ALIKE)


def _with_public_examples(model, examples) -> Parts | None:
    if examples.statistics != "example":
        return None  # with the statistics of a lot, features would depend on the lot
    parts = in_parts(examples.network)
    if parts is None:
        return None
    first = PublicExamples(parts.beginning, examples.examples)
    rest = PublicExamples(parts.rest, first.public_outputs())
    shape = keras.Input(parts.rest.inputs[0].shape[1:])
    given = model.inputs[0]
    return Parts(
        keras.Sequential([keras.Input(given.shape[1:], dtype=given.dtype), first]),
        keras.Sequential([shape, rest], name=model.name),
    )


def _tensors(structure) -> list:
    return [each for each in keras.tree.flatten(structure) if isinstance(each, keras.KerasTensor)]


def fits(parts: Parts, dataset: Dataset) -> bool:
    """Whether the features of a data set are small enough to be kept in memory."""
    each = math.prod(parts.rest.inputs[0].shape[1:])
    labels = (dataset.y_train, dataset.y_test, dataset.y_validation)
    return 4 * each * sum(len(y) for y in labels if y is not None) <= _LARGEST


def as_features(parts: Parts, dataset: Dataset) -> Dataset:
    """Returns the data set with the features of its examples in place of the examples."""
    inputs = {name: getattr(dataset, name) for name in ("x_train", "x_test", "x_validation")}
    return dataclasses.replace(
        dataset,
        **{n: _predicted(parts.beginning, x) for n, x in inputs.items() if x is not None},
        input_shape=tuple(parts.rest.inputs[0].shape[1:]),
    )


def _predicted(model, x) -> np.ndarray:
    return model.predict(x, batch_size=_BATCH, verbose=0)
