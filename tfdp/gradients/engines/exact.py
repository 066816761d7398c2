"""The exact engine: the way of `operations`, with the gradient of every row and weight written out.

It has as many gradients in memory as a chunk has rows, and is what bounds of whole gradients and users
who ask for `tf.vectorized_map` get.
"""

import functools

from tfdp.gradients.engines import operations

per_example_gradients = functools.partial(operations.per_example_gradients, factors=False)
bounded_sum = functools.partial(operations.bounded_sum, factors=False)
