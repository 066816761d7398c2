"""Adds the bounded sums of the chunks of a lot, in one loop of the graph.

The computation of a chunk is traced once, as a function that the body of the loop calls. So the graph
holds it once, however many chunks a lot has.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfdp._compat.tensorflow import concrete_function
from tfdp.gradients.contract import BoundedSum

_OF_ROWS = ("norms", "present", "clipped", "losses", "output_losses", "outputs")


def sum_of_chunks(run: Callable, chunks, in_sequence: bool) -> BoundedSum:
    """Returns the bounded sum of all chunks, with the rows of all of them.

    Args:
        run: maps the number of a chunk, an int32 scalar, to its `BoundedSum`.
        chunks: number of chunks, at least one: a Python integer or an int32 scalar.
        in_sequence: whether a chunk waits for the one before it. Otherwise TensorFlow may begin it
            before, which takes more memory.
    """
    function = concrete_function(tf.function(run, autograph=False), tf.TensorSpec([], tf.int32))
    pattern = function.structured_outputs
    sums, rows, state = _parts(pattern)

    def body(chunk, sums, arrays, state):
        new_sums, new_rows, new_state = _parts(function(chunk))
        sums = [a + b for a, b in zip(sums, new_sums, strict=True)]
        arrays = [
            a.write(chunk, leaf) for a, leaf in zip(arrays, tf.nest.flatten(new_rows), strict=True)
        ]
        # The random state advances once per lot, by what the first chunk draws.
        is_first = tf.equal(chunk, 0)
        state = [tf.where(is_first, new, old) for new, old in zip(new_state, state, strict=True)]
        return chunk + 1, sums, arrays, state

    arrays = [
        tf.TensorArray(leaf.dtype, size=chunks, element_shape=leaf.shape)
        for leaf in tf.nest.flatten(rows)
    ]
    _, (*sums, non_finite), arrays, state = tf.while_loop(
        lambda chunk, *_: chunk < chunks,
        body,
        (
            tf.constant(0),
            [tf.zeros(t.shape, t.dtype) for t in sums],
            arrays,
            [tf.zeros(t.shape, t.dtype) for t in state],
        ),
        parallel_iterations=1 if in_sequence else 2,
    )
    rows = tf.nest.pack_sequence_as(rows, [a.concat() for a in arrays])
    left = iter(state)
    state = [None if value is None else next(left) for value in pattern.state]
    return dataclasses.replace(pattern, sums=sums, non_finite=non_finite, state=state, **rows)


def _parts(part):
    """Returns (what is added, {name: what is joined}, state that changes) of a bounded sum."""
    rows = {name: getattr(part, name) for name in _OF_ROWS}
    state = [value for value in part.state if value is not None]
    return [*part.sums, part.non_finite], rows, state
