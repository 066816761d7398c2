"""`tf.vectorized_map` without loops, with errors that name the layer that cannot be vectorized."""

import re
from collections.abc import Callable

import tensorflow as tf

from tfdp._compat import pfor_random, pfor_repairs
from tfdp._compat.keras import layers_of
from tfdp._compat.tensorflow import operation_in_conversion


def vectorized_map(model, function: Callable, rows):
    """Maps `function` over rows, all of them at once.

    Args:
        model: the Keras model that `function` runs, for the error message.
        function: maps the tensors of one row, without leading axis, to tensors.
        rows: a structure of tensors with a common leading axis.

    Returns:
        The results of the rows, stacked.

    Raises:
        NotImplementedError: TensorFlow cannot vectorize an operation. What `function` itself raises is
            passed on.
    """
    pfor_random.register()
    pfor_repairs.register()
    try:
        with pfor_random.marking_own_seeds():
            return tf.vectorized_map(function, rows, fallback_to_while_loop=False)
    except Exception as error:
        operation = operation_in_conversion(error)
        if operation is None:
            raise
        layer = layer_of_operation(model, operation.name)
        if layer is None:
            who = f"The loss or code of model '{model.name}' outside of its layers"
        else:
            who = f"Layer '{layer.name}' ({type(layer).__name__})"
        raise NotImplementedError(
            f"{who} uses an operation that tfdp cannot vectorize: the TensorFlow op {operation.type} "
            f"({_first_line(error)}). It does not fall back to a slow loop over the examples in "
            "silence. Apply what needs no weights to the data instead (dataset.map), use "
            "engine='auto' if this is engine='vectorized', or replace the layer; "
            "tfdp.gradients.rules.register takes a rule for a layer of your own."
        ) from error


def layer_of_operation(model, name: str):
    """Returns the innermost layer in whose name scope an operation is, or None."""
    # Where an inner layer has the name of the layer around it, that one is meant.
    layers = {layer.name: layer for layer in reversed(layers_of(model)) if layer.name}
    for scope in reversed(name.split("/")[:-1]):
        # Keras opens a layer's scope twice, to build and to call it; the second gets a number.
        for candidate in (re.sub(r"_\d+$", "", scope), scope):
            if candidate in layers:
                return layers[candidate]
    return None


def _first_line(error):
    return str(error).strip().partition("\n")[0].rstrip(".")[:200]
