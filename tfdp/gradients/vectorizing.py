"""`tf.vectorized_map`, and errors that name the layer that cannot be vectorized or computed."""

import re
from collections.abc import Callable

import tensorflow as tf

from tfdp._compat import pfor_map
from tfdp._compat.keras import layers_of


def vectorized_map(model, function: Callable, rows):
    """Applies a function to all rows at once, each alone.

    Args:
        model: The Keras model that `function` runs, for errors.
        function: A function that maps the tensors of one row, without leading axis, to tensors.
        rows: A structure of tensors [rows, ...].

    Returns:
        The results of the rows, stacked.

    Raises:
        NotImplementedError: If TensorFlow cannot vectorize an operation. Errors that `function`
            itself raises are passed on.
    """
    raised: list[Exception] = []
    operations: list[tf.Operation] = []

    def noticed(row):
        try:
            return function(row)
        except Exception as error:
            raised.append(error)
            raise

    try:
        return pfor_map.vectorized_map(noticed, rows, operations)
    except Exception as error:
        if raised:  # under XLA, TensorFlow wraps it in its own error
            raise raised[-1] from None
        if not operations:
            raise
        # Inside a nested function, an operation's name does not begin with that of its layer.
        layers = (layer_of_operation(model, operation.name) for operation in operations)
        layer = next((layer for layer in layers if layer is not None), None)
        if layer is None:
            who = f"Model '{model.name}' (its loss, code outside of its layers, or a gradient)"
            instead = "or write that part with other operations."
        else:
            who = f"Layer '{layer.name}' ({type(layer).__name__})"
            instead = (
                "apply a layer without weights to the data (dataset.map), or replace the layer."
            )
        raise NotImplementedError(
            f"{who} uses an operation that tfdp cannot vectorize: the TensorFlow op "
            f"{operations[0].type} ({_reason(error)}). Use tfdp.make_private(model, engine='loop'), a "
            f"slow loop over the examples that trains any model, {instead}"
        ) from error


def error_of_row(model, error: BaseException) -> Exception | None:
    """Returns an error that names the layer if a step failed on the value of an example, else None.

    Args:
        model: The Keras model whose step failed.
        error: The error that TensorFlow raised. Errors of data pipelines are not part of a pass.
    """
    found = re.search(r"\[\[{+node ([^}]+)}+\]\]", str(error))
    if found is None or not isinstance(error, tf.errors.InvalidArgumentError):
        return None
    name = found[1]
    layer = layer_of_operation(model, name)
    if layer is None and "loop_body/" not in name:  # where rows pass
        return None
    who = f"Model '{model.name}'"
    if layer is not None:
        who = f"Layer '{layer.name}' ({type(layer).__name__})"
    reason = str(error)[: found.start()].strip().rpartition("\n")[2].rstrip(".")
    return type(error)(
        None,
        None,
        f"{who} failed on the value of an example, which ended the step for all others: {reason} "
        f"(operation {name}). The error itself reveals information about this example, which no "
        "epsilon covers; the planned steps are counted. Remove such values before training "
        "(dataset.map), or avoid the error in the layer, for example with tf.where or "
        "tf.clip_by_value.",
    )


def layer_of_operation(model, name: str):
    """Returns the innermost layer in whose name scope an operation is, or None."""
    # An outer layer takes precedence over an inner one with the same name.
    layers = {layer.name: layer for layer in reversed(layers_of(model)) if layer.name}
    for scope in reversed(name.split("/")[:-1]):
        # Keras opens a layer's scope twice, to build and to call it; the second gets a number.
        for candidate in (re.sub(r"_\d+$", "", scope), scope):
            if candidate in layers:
                return layers[candidate]
    return None


def _reason(error):
    """Returns the first line of the original error."""
    while (error.__cause__ or error.__context__) is not None:
        error = error.__cause__ or error.__context__
    return str(error).strip().partition("\n")[0].rstrip(".")[:200]
