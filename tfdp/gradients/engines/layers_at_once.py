"""Layers that run once for the rows of all examples, because they cannot be vectorized over rows.

Layers that look up words and numbers in tables have no weights, no gradient flows through them, and
their output for one row depends on that row alone (a test replaces all other rows). So
`tf.vectorized_map` calls each once for all rows. Some layers of this kind do mix rows: a
`TextVectorization` without `output_sequence_length` pads all texts to the longest one.

The loops of recurrent layers are in `recurrent_loops`.
"""

import contextlib
import functools

import keras
import tensorflow as tf

from tfdp._compat.keras import SHORTCUTS, layers_of, pads_to_its_own_length, replaced
from tfdp._compat.pfor_conversion import at_once

_TABLES = {
    keras.layers.Discretization,
    keras.layers.HashedCrossing,
    keras.layers.Hashing,
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
}


@contextlib.contextmanager
def layers_at_once(model, values: dict):
    """Context in which tables and recurrent loops of a model run once for the rows of all examples.

    Args:
        model: A Keras model.
        values: The trainable variables' values in the pass that follows, {id of variable: tensor}.
    """
    with contextlib.ExitStack() as stack:
        for layer in layers_of(model):
            for name in SHORTCUTS.get(type(layer), ()):
                stack.enter_context(replaced(layer, **{name: lambda *_, **__: False}))
            if _is_table(layer):
                stack.enter_context(replaced(layer, call=functools.partial(_call, layer)))
            elif isinstance(layer, keras.layers.RNN) and not layer.unroll:
                # Imported here, since few models have recurrent layers.
                from tfdp.gradients.engines.recurrent_loops import inner_loop_for

                stack.enter_context(replaced(layer, inner_loop=inner_loop_for(layer, values)))
        yield


def _is_table(layer) -> bool:
    if getattr(layer, "sparse", False) or "call" in vars(layer):
        return False
    if type(layer) is keras.layers.TextVectorization:
        return pads_to_its_own_length(layer)
    return type(layer) in _TABLES


def _call(layer, *args, **kwargs):
    call = functools.partial(type(layer).call, layer)
    given = tf.nest.flatten((args, kwargs))
    tensors = [leaf for leaf in given if isinstance(leaf, tf.Tensor)]
    # A layer inside of a TextVectorization gets ragged tensors, when that layer runs for all rows.
    ragged = any(isinstance(leaf, tf.RaggedTensor) for leaf in given)
    # A multi-hot layer would treat a lot of single numbers as one row.
    several = getattr(layer, "output_mode", "int") not in ("int", "one_hot")
    if ragged or (several and any(tensor.shape.rank == 1 for tensor in tensors)):
        return call(*args, **kwargs)

    def of_rows(rows, *_):
        left = iter(rows)
        leaves = [next(left) if isinstance(leaf, tf.Tensor) else leaf for leaf in given]
        args_of_rows, kwargs_of_rows = tf.nest.pack_sequence_as((args, kwargs), leaves)
        return [call(*args_of_rows, **kwargs_of_rows)], []

    ((found,), _) = at_once(of_rows, tensors, [])
    return found
