"""The exact engine: `tf.vectorized_map` over single examples, for any ops that it can vectorize.

Each example passes through the model alone, as a batch of one, so nothing can mix examples. Norm and
gradient come from the same forward pass. For an op that TensorFlow cannot vectorize the engine raises
an error; it never falls back to a loop over the examples. (The rules for a few operations contain one;
see `tfdp._compat.pfor_ops`.)
"""

import functools

import tensorflow as tf

from tfdp.gradients.engines import alone
from tfdp.gradients.engines.steps import vectorizable_loops
from tfdp.gradients.forward import Forward


def per_example_gradients(forward: Forward, x, y, sample_weight, chunk):
    """Returns the per-example gradients of the weighted loss; see `alone.per_example_gradients`.

    Raises:
        NotImplementedError: TensorFlow cannot vectorize an op of the model.
    """
    values = [tf.convert_to_tensor(v) for v in forward.variables]
    own = {id(v): value for v, value in zip(forward.variables, values, strict=True)}
    with vectorizable_loops(forward.model, own):
        return alone.per_example_gradients(
            forward, values, x, y, sample_weight, chunk, vectorized=True
        )


bounded_sum = functools.partial(alone.bounded_sum, per_example_gradients)
