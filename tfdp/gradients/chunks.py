"""Cuts a lot into chunks of rows that fit into memory, and adds the bounded sums of the chunks.

The computation of a chunk is traced once, as a function that the body of a loop calls. So the graph
contains it once, however many chunks a lot has.
"""

import dataclasses
import math
from collections.abc import Callable

import keras
import tensorflow as tf

from tfdp._compat.keras import BaseConv, layers_of
from tfdp._compat.tensorflow import concrete_function
from tfdp.gradients.contract import BoundedSum
from tfdp.gradients.forward import Forward
from tfdp.gradients.norms import rows_or_expected

# Size of a chunk on a CPU for models with convolutions or recurrent layers, if the caller passes no
# physical batch size: so many rows that a forward pass has _CHUNK_BYTES, but within _CHUNK_ROWS.
# Larger chunks need more memory and are no faster (CIFAR-10 network at lots of 1,024, in chunks of
# 128 and whole: 1.5 and 4.5 s, 2.0 and 9.4 GB; ResNet-18 at 64, in chunks of 32 and whole: 1.8 s
# twice, 1.8 and 2.2 GB; tutorial CNN at 1,024, in chunks of 256 and whole: 56 and 82 ms; BiLSTM at
# 1,024, in chunks of 256 and whole: 0.33 s twice, 1.2 and 1.6 GB).
# Smaller chunks are slower (ResNet-18 in chunks of 16: 2.0 s; tutorial CNN, 128: 65 ms; LeNet-5 at
# 1,024, 256: 4% more time than 342). In chunks of 512 the filter gradients of the first layers no
# longer fit into a cache (over twice the time).
_CHUNK_BYTES = 2**27
_CHUNK_ROWS = (32, 384)
# If a forward pass has more bytes than this, memory matters more than the last few percent of time.
_LARGE_BYTES = 2**26
# Fields of a `BoundedSum` with one entry for each row.
_OF_ROWS = ("norms", "present", "clipped", "losses", "output_losses", "outputs")


def with_copies(leaf: tf.Tensor, rows) -> tf.Tensor:
    """Appends copies of the first row to a tensor until it has `rows` rows.

    Zeros might be invalid for the model: a text that a table lacks, or a matrix without a Cholesky
    factor. Only a tensor without rows is padded with zeros.
    """
    size = tf.shape(leaf)
    zeros = tf.zeros(tf.concat([[1], size[1:]], axis=0), leaf.dtype)
    first = tf.concat([leaf[:1], zeros], axis=0)[:1]
    copies = tf.broadcast_to(first, tf.concat([[rows - size[0]], size[1:]], axis=0))
    return tf.ensure_shape(tf.concat([leaf, copies], axis=0), [None, *leaf.shape[1:]])


def pad_rows(x, y, sample_weight: tf.Tensor, rows) -> tuple:
    """Pads a lot with absent rows, which are copies of its first row with weight zero.

    Args:
        x, y: Structures of tensors [rows, ...].
        sample_weight: Weights, float32 [rows].
        rows: Number of rows of the result, an integer or a scalar tensor, at least that of the lot.

    Returns:
        (x, y, sample_weight).
    """
    x, y = tf.nest.map_structure(lambda leaf: with_copies(leaf, rows), (x, y))
    return x, y, tf.pad(sample_weight, [[0, rows - tf.shape(sample_weight)[0]]])


def with_rows(x, y, sample_weight: tf.Tensor, rows: int) -> tuple:
    """Pads a lot, or drops its last rows, so that it has exactly `rows` rows, a Python integer.

    Args and result are as in `pad_rows`.
    """
    lot = (x, y, sample_weight)
    if all(leaf.shape[0] == rows for leaf in tf.nest.flatten(lot)):
        return lot
    x, y, sample_weight = tf.nest.map_structure(lambda leaf: leaf[:rows], lot)
    padded = pad_rows(x, y, sample_weight, rows)
    return tf.nest.map_structure(lambda p: tf.ensure_shape(p, [rows, *p.shape[1:]]), padded)


def split_rows(tree, chunks, size):
    """Reshapes leaves from [rows, ...] to [chunks, size, ...], since XLA cannot slice by a tensor."""
    known = size if isinstance(size, int) else None

    def split(leaf):
        leaf = tf.reshape(leaf, tf.concat([[chunks, size], tf.shape(leaf)[1:]], axis=0))
        return tf.ensure_shape(leaf, [None, known, *leaf.shape[2:]])

    return tf.nest.map_structure(split, tree)


def balanced_chunks(rows, limit, multiple):
    """Divides a number of rows into as few chunks as a limit allows, all of one size.

    Args:
        rows: Number of rows, a Python integer or an int32 scalar.
        limit: Largest number of rows in a chunk, a multiple of `multiple`.
        multiple: A number that must divide the size of a chunk.

    Returns:
        (number of chunks, at least one; number of rows in a chunk).
    """
    largest = max if isinstance(rows, int) else tf.maximum
    chunks = largest(-(-rows // limit), 1)
    return chunks, largest(-(-rows // (chunks * multiple)), 1) * multiple


def suitable_rows(forward, rows, expected, multiple):
    """Returns the largest number of rows for a chunk on a CPU, or None if the lot stays whole.

    Only lots for models with convolutions or recurrent layers are cut.

    Args:
        forward: The model's forward pass.
        rows: Number of rows in the lot. None if it is not static.
        expected: Approximate number of rows if `rows` is None. None if unknown.
        multiple: A number that must divide the result.
    """
    usual = rows or expected
    if rows is None and expected is not None:
        rows = expected + 2 * math.isqrt(expected)  # few Poisson lots are larger
    least, most = _CHUNK_ROWS
    if rows is None or rows < 1.5 * least or tf.config.get_visible_devices("GPU"):
        return None
    chunked = (BaseConv, keras.layers.RNN)
    if not any(isinstance(layer, chunked) for layer in layers_of(forward.model)):
        return None
    limit = max(_CHUNK_BYTES // forward.row_bytes, least) if forward.row_bytes else most
    chunks = max(int(usual / limit + 0.5), math.ceil(rows / most))
    if chunks < 2:
        return None
    # Enough rows that a larger lot has no more chunks than the usual one.
    return math.ceil(math.ceil(rows / chunks) / multiple) * multiple


def works_in_sequence(forward: Forward, rows: int | None) -> bool:
    """Whether a pass over `rows` rows is so large that its parts should wait for each other.

    TensorFlow starts every operation as soon as its inputs are ready. So it computes the second chunk
    alongside the first, and in each chunk it extracts the patches of all layers' inputs before the
    first gradient is ready. Small models are up to 5% faster that way. ResNet-18 at lots of 64 took 2.6
    GB instead of 1.7 GB (measured).
    """
    bytes_of_row = forward.row_bytes
    return bytes_of_row is None or rows_or_expected(rows) * bytes_of_row > _LARGE_BYTES


def sum_of_chunks(run: Callable, chunks, in_sequence: bool) -> BoundedSum:
    """Adds the bounded sums of all chunks, and concatenates their rows.

    Args:
        run: A function that maps the number of a chunk, an int32 scalar, to its `BoundedSum`.
        chunks: Number of chunks, at least one, a Python integer or an int32 scalar.
        in_sequence: Whether a chunk waits for the chunk before it. Otherwise TensorFlow may start it
            earlier, which takes more memory.
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
    """Returns (fields to add, {name: field to concatenate}, changed state) of a bounded sum."""
    rows = {name: getattr(part, name) for name in _OF_ROWS}
    state = [value for value in part.state if value is not None]
    return [*part.sums, part.non_finite], rows, state
