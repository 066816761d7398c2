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
# What all chunks have in common, or what is that of the first one.
_OF_FIRST = ("state", "sensitivity", "l2_norm_clip")


def sum_of_chunks(run: Callable, chunks, in_sequence: bool) -> BoundedSum:
    """Returns the bounded sum of all chunks, with the rows of all of them.

    Args:
        run: maps the number of a chunk, an int32 scalar, to its `BoundedSum`.
        chunks: number of chunks, at least one: a Python integer or an int32 scalar.
        in_sequence: whether a chunk waits for the one before it. Otherwise TensorFlow may begin it
            before, which takes more memory.
    """
    if tf.executing_eagerly():
        return _added([run(tf.constant(chunk)) for chunk in range(int(chunks))])
    traced = {}

    def tensors(chunk):
        part = traced["part"] = run(chunk)
        return part.sums, part.non_finite, _fields(part, _OF_ROWS), _tensors_of_first(part)

    function = concrete_function(tf.function(tensors, autograph=False), tf.TensorSpec([], tf.int32))
    sums, non_finite, rows, of_first = function.structured_outputs
    leaves = tf.nest.flatten(rows)

    def body(chunk, sums, non_finite, arrays, of_first):
        new_sums, new_non_finite, new_rows, new_of_first = function(chunk)
        sums = [a + b for a, b in zip(sums, new_sums, strict=True)]
        arrays = [
            a.write(chunk, leaf) for a, leaf in zip(arrays, tf.nest.flatten(new_rows), strict=True)
        ]
        is_first = tf.equal(chunk, 0)
        of_first = [
            tf.where(is_first, new, old) for new, old in zip(new_of_first, of_first, strict=True)
        ]
        return chunk + 1, sums, non_finite + new_non_finite, arrays, of_first

    _, sums, non_finite, arrays, of_first = tf.while_loop(
        lambda chunk, *_: chunk < chunks,
        body,
        (
            tf.constant(0),
            [tf.zeros(s.shape, s.dtype) for s in sums],
            tf.zeros([], non_finite.dtype),
            [tf.TensorArray(leaf.dtype, size=chunks, element_shape=leaf.shape) for leaf in leaves],
            [tf.zeros(t.shape, t.dtype) for t in of_first],
        ),
        parallel_iterations=1 if in_sequence else 2,
    )
    rows = tf.nest.pack_sequence_as(rows, [a.concat() for a in arrays])
    part = _with_tensors_of_first(traced["part"], of_first)
    return dataclasses.replace(part, sums=sums, non_finite=non_finite, **rows)


def _added(parts):
    rows = [_fields(part, _OF_ROWS) for part in parts]
    return dataclasses.replace(
        parts[0],
        sums=[tf.add_n(tensors) for tensors in zip(*(part.sums for part in parts), strict=True)],
        non_finite=tf.add_n([part.non_finite for part in parts]),
        **tf.nest.map_structure(lambda *leaves: tf.concat(leaves, axis=0), *rows),
    )


def _fields(part, names):
    return {name: getattr(part, name) for name in names}


def _tensors_of_first(part):
    """Returns the tensors among the fields in `_OF_FIRST`; numbers need no loop."""
    return [leaf for leaf in tf.nest.flatten(_fields(part, _OF_FIRST)) if tf.is_tensor(leaf)]


def _with_tensors_of_first(part, tensors):
    fields, left = _fields(part, _OF_FIRST), iter(tensors)
    leaves = [next(left) if tf.is_tensor(leaf) else leaf for leaf in tf.nest.flatten(fields)]
    return dataclasses.replace(part, **tf.nest.pack_sequence_as(fields, leaves))
