"""Non-public names that tfdp borrows from Keras, each wrapped in one function or name.

The borrowed names exist in both Keras 3.13.0 and 3.15.1. None has a default value, which would hide a
change. `tests/_compat/test_overrides.py` lists the methods that tfdp overrides or replaces.
"""

import contextlib
import contextvars
import functools
import inspect
import io
from operator import attrgetter, methodcaller

import keras
import tensorflow as tf
from keras.src.backend import compute_output_spec
from keras.src.backend.common.global_state import get_global_attribute
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.layers.convolutional.base_conv import BaseConv
from keras.src.layers.rnn.conv_lstm import ConvLSTMCell
from keras.src.models.functional import Functional
from keras.src.trainers.data_adapters.array_slicing import train_validation_split
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import (
    TFDatasetAdapter,
    make_class_weight_map_fn,
)

from tfdp._compat.graphs import Dependence

try:
    from keras.src.backend.tensorflow import numpy
except ImportError:  # since Keras 3.16
    from keras.src.backend.tensorflow.ops import numpy

_ADD, _SQUEEZE = numpy.add, numpy.squeeze

# The class that gives a layer its `fit`; versions of Keras have different names for it.
Trainer = keras.Model.__bases__[0]

# A public name, for `tfdp.data`, which can be imported without Keras. Its modules that use Keras import
# it from here, so that another backend raises an error first.
floatx = keras.config.floatx

# Methods by which a container layer decides whether to compute without calling its inner layers.
SHORTCUTS = {
    keras.layers.Bidirectional: ("_can_attempt_fused_lstm", "_can_attempt_fused_gru"),
}

# Attributes of Keras' objects, each with the function that reads it.
kernel_of = attrgetter("_kernel")  # a layer's variable; the public `kernel` is a tensor under LoRA
seed_generators = attrgetter("_seed_generators")  # a layer's, without those of inner layers
compiled_loss = attrgetter("_compile_loss")  # a model's `CompileLoss`, or None
flat_losses = attrgetter("_flat_losses")  # (path, loss, weight, metric) of each output of these
compile_metrics = attrgetter("_compile_metrics")  # a model's `CompileMetrics`, or None
loss_tracker = attrgetter("_loss_tracker")  # the metric in which a model keeps its loss
given_strategy = attrgetter("_distribute_strategy")  # a model's; None without the scope of one
configured_rate = attrgetter("_learning_rate")  # an optimizer's variable, schedule or function
# Removes the losses that `add_loss` and activity regularizers added to a model.
forget_losses = methodcaller("_clear_losses")
# Calls a model on `keras.KerasTensor`s, which makes its weights, as `Trainer._symbolic_build` does.
build_symbolically = functools.partial(compute_output_spec, training=False)
# The seed generator of `keras.random` for calls without a seed; None if there was none yet.
shared_seed_generator = functools.partial(get_global_attribute, "global_seed_generator")

# -- layers ------------------------------------------------------------------------------------------


def dropout_masks(cell) -> dict:
    """Returns the masks that a recurrent cell has drawn for the current pass, by attribute names.

    These are `_dropout_mask` and `_recurrent_dropout_mask` of `DropoutRNNCell`; a cell that draws none
    may lack them. The layer forgets them at the end of its call.
    """
    names = ("_dropout_mask", "_recurrent_dropout_mask")
    return {name: vars(cell)[name] for name in names if name in vars(cell)}


def forget_dropout_masks(model) -> None:
    """Makes recurrent cells draw new masks after a pass that ended with an error.

    A layer does so at the end of its call (`RNN._maybe_reset_dropout_masks`). A mask that is left over
    belongs to the failed pass, and all rows of the next pass would share it.
    """
    for cell in layers_of(model):
        for reset in ("reset_dropout_mask", "reset_recurrent_dropout_mask"):
            getattr(cell, reset, lambda: None)()


@contextlib.contextmanager
def replaced(instance, **attributes):
    """Context in which an instance has other attributes, which bypass Keras' attribute tracking."""
    own = vars(instance)
    missing = object()
    before = {name: own.get(name, missing) for name in attributes}
    own.update(attributes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is missing:
                del own[name]
            else:
                own[name] = value


def layers_of(layer, *, itself: bool = False) -> list:
    """Returns all layers inside a layer or model, at any depth, each once (`Layer._flatten_layers`).

    Args:
        layer: A Keras layer or model.
        itself: Whether the list begins with `layer` itself.
    """
    return list(layer._flatten_layers(include_self=itself, recursive=True))


def normalizes_by_batch(layer) -> bool:
    """Returns whether a layer is a BatchNormalization that uses statistics of the batch in training.

    With `trainable=False`, `keras.layers.BatchNormalization.call` uses the moving statistics, and
    assigns nothing, even in training. A custom `call` may do anything.

    Args:
        layer: Any layer or operation.
    """
    if not isinstance(layer, keras.layers.BatchNormalization):
        return False
    return layer.trainable or not is_frozen_by_flag(layer)


def is_frozen_by_flag(layer: keras.layers.BatchNormalization) -> bool:
    """Returns whether a BatchNormalization has the `call` of Keras, which heeds `trainable=False`."""
    return type(layer).call is keras.layers.BatchNormalization.call and "call" not in vars(layer)


def become(layer, other) -> None:
    """Turns a layer into another one, in place, for all models that contain it (`_inbound_nodes`).

    Afterwards both objects share their attributes, because Keras binds methods such as `build` to the
    object on creation.

    Args:
        layer: A layer, which may be called in functional models.
        other: A built layer that was not called; it takes the same inputs.
    """
    accepted = inspect.signature(other.call).parameters
    for _, kwargs in uses_of(layer):
        for name in kwargs.keys() - accepted.keys():  # Keras records training and mask=None
            del kwargs[name]
    nodes = ("_inbound_nodes", "_outbound_nodes")
    vars(other).update({name: vars(layer)[name] for name in nodes})
    object.__setattr__(layer, "__dict__", vars(other))
    object.__setattr__(layer, "__class__", type(other))


def take_policy(layer) -> None:
    """Gives a layer its own policy from a `DTypePolicyMap`, as before its model was saved.

    Keras cannot save a quantized layer whose `_dtype_policy` is the map.
    """
    policies = layer.dtype_policy
    if isinstance(policies, keras.dtype_policies.DTypePolicyMap) and layer.path in policies:
        layer._dtype_policy = policies[layer.path]


def was_given_vocabulary(layer) -> bool:
    """Returns whether a lookup layer got its vocabulary in its constructor (`_has_input_vocabulary`).

    The result is False for a layer that was adapted or has no vocabulary, and for other layers.
    """
    return getattr(layer, "_has_input_vocabulary", False)


def pads_to_its_own_length(layer) -> bool:
    """Returns whether a TextVectorization returns outputs of one length, whatever the texts.

    The attributes are `_output_sequence_length`, `_output_mode` and `_ragged`.
    """
    codes = layer._output_mode != "int"
    return not layer._ragged and (codes or layer._output_sequence_length is not None)


# -- models ------------------------------------------------------------------------------------------


def is_graph_of_layers(model) -> bool:
    """Returns whether a model is Sequential or functional, so that `clone_model` can copy it."""
    return isinstance(model, (keras.Sequential, Functional))


def is_stock_graph(model) -> bool:
    """Returns whether a model, private or not, has Keras' own class Sequential or Functional."""
    return getattr(model, "_tfdp_base", type(model)) in (keras.Sequential, Functional)


def input_structure(model):
    """Returns the inputs of a model in their original structure (`Functional._inputs_struct`).

    A single input is either that input alone or a list with that input.

    Raises:
        AttributeError: If the model is subclassed, so that its inputs are unknown.
        ValueError: If the model is a Sequential model that is not built.
    """
    return model._inputs_struct if isinstance(model, Functional) else model.inputs


def uses_of(operation) -> list:
    """Returns (args, kwargs) of each call of an operation in functional models (`_inbound_nodes`)."""
    nodes = operation._inbound_nodes
    return [(node.arguments.args, node.arguments.kwargs) for node in nodes]


def compute_loss_as_keras(model, x, y, y_pred, sample_weight):
    """Returns a model's loss in training; its `compute_loss` may lack the argument `training`.

    This is `Trainer._compute_loss`, which Keras' own training step calls.
    """
    call = model._compute_loss
    return call(x, y, y_pred, sample_weight=sample_weight, training=True)


@contextlib.contextmanager
def without_penalties(model):
    """Context in which `losses` of a model's layers leave out the penalties of weight regularizers.

    It replaces `Layer._get_regularization_losses` of the model and of each layer in it, and yields a
    list that is not empty once they were requested.
    """
    asked = []

    def none():
        asked.append(True)
        return []

    with contextlib.ExitStack() as stack:
        for layer in layers_of(model, itself=True):
            stack.enter_context(replaced(layer, _get_regularization_losses=none))
        yield asked


@contextlib.contextmanager
def _during(variable, value):
    """Context in which a context variable has a value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def without_recomputation():
    """Context in which `keras.RematScope`, `keras.remat` and `tf.recompute_grad` do nothing.

    Recomputation gives no gradient to tensors that a function reads besides its arguments, and in a
    pass the weights are tensors. All three look up TensorFlow's function in its module, so tfdp
    replaces it there, once; outside of this context, which is local to a thread, it is TensorFlow's
    own.
    """
    return _during(_recomputes, False)


_recomputes = contextvars.ContextVar("recomputes", default=True)
_recompute_grad = tf.recompute_grad


def _recomputed(function):
    return _recompute_grad(function) if _recomputes.get() else function


tf.recompute_grad = _recomputed


def all_metrics(model) -> list:
    """Returns the metrics of a model, with those that an override of `metrics` hides.

    The hidden ones come from `_get_own_metrics`.


    They include the metrics of inner models, which Keras leaves out of the logs.
    """
    found = [*model.metrics, *model._get_own_metrics()]
    for layer in layers_of(model):
        inner = layer._get_own_metrics if isinstance(layer, keras.Model) else None
        found += layer.metrics if inner is None else inner()
    return [*{id(metric): metric for metric in found}.values()]


def without_optionals(model, step):
    """Wraps a step function as Keras does, so that it gets None for absent optional inputs.

    This is `Trainer._autoconvert_optionals`.
    """
    return model._autoconvert_optionals(step)


def unpickled(content: io.BytesIO):
    """Returns the object whose `__reduce__` returned the content (`KerasSaveable._unpickle_model`)."""
    return keras.Model._unpickle_model(content)


# -- additions ---------------------------------------------------------------------------------------

_of_rows = contextvars.ContextVar("of_rows", default=None)  # a `Dependence`


def as_in_a_larger_batch():
    """Context in which `keras.ops.add` and `squeeze` see that a batch may have other rows.

    Keras 3.15 treats an added tensor as a bias if exactly one of its axes is longer than one and as
    long as the last or the second axis of the other tensor. In a batch of one, this can be an ordinary
    tensor: in [1, 5, 5] + [1, 5, 1], Keras adds the second tensor along the wrong axis. In a larger
    batch, such a tensor also has the axis of the rows, so it is never treated as a bias. In the same
    way, `squeeze` without an axis would remove the axis of the rows.

    tfdp runs batches of one, whose length is known. In this context, tensors that depend on the row are
    treated as in a larger batch. Keras treats weights in the same way for any batch, which stays.

    Keras looks up both functions in their module, so tfdp replaces them there, once; outside of this
    context, which is local to a thread, they are Keras' own. A batch of unknown length would need no
    context, but many more operations for shapes.
    """
    return _during(_of_rows, Dependence())


def _is_of_row(x):
    depends = _of_rows.get()
    return depends and isinstance(x, tf.Tensor) and tf.is_symbolic_tensor(x) and depends(x)


@functools.wraps(_ADD)
def _add(x1, x2):
    # Keras treats nothing else as a bias.
    is_like_bias = sum(n != 1 for n in getattr(x2, "shape", ())) == 1
    if not is_like_bias or not _is_of_row(x2) or isinstance(x1, tf.SparseTensor):
        return _ADD(x1, x2)
    dtype = keras.backend.result_type(getattr(x1, "dtype", type(x1)), x2.dtype)
    return tf.add(*(keras.ops.convert_to_tensor(x, dtype) for x in (x1, x2)))


@functools.wraps(_SQUEEZE)
def _squeeze(x, axis=None):
    if axis is not None or not _is_of_row(x):
        return _SQUEEZE(x, axis)
    axes = [axis for axis, length in enumerate(x.shape) if axis and length == 1]
    return tf.squeeze(x, axes) if axes else x


numpy.add, numpy.squeeze = _add, _squeeze
