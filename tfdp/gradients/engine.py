"""From a lot to one bounded sum of gradients: the contract of the engines and the loop over chunks.

Formal guarantee, for every engine: `BoundedSum.sums` is the sum over the examples of a lot of vectors
that depend on one example (microbatch) each and have L2 norm at most the bound's clip norm, so that
it moves by at most `BoundedSum.sensitivity` when one example becomes a null example.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from absl import logging
from keras.src.layers.convolutional.base_conv import BaseConv

from tfdp.gradients.bounds import L2Clip
from tfdp.gradients.forward import Forward
from tfdp.gradients.rules.contributions import expecting_rows, rows_or_expected
from tfdp.layers.public import uses_batch_statistics


@dataclasses.dataclass(frozen=True)
class BoundedSum:
    """What an engine returns for a chunk, and `bounded_sum` for a lot.

    Attributes:
        sums: float32 tensors, one per trainable variable: the sum of the bounded gradients.
        norms: float32 [microbatches]: gradient norms before bounding (0 where nobody is present).
        present: bool [microbatches].
        clipped: float32 [microbatches]: 1 where the bound shortened the gradient.
        non_finite: int32 scalar: examples that counted zero because their gradient was not finite.
        losses: float32 [rows]: per-example losses, not weighted.
        outputs: what the model returned for the rows.
        state: new values of the random state, as `Forward.advance` takes them.
        sensitivity: see the module; a Python float, or a scalar tensor where the clip norm is one.
        l2_norm_clip: the clip norm that was enforced; noise is a multiple of it.
        relative_sensitivity: the sensitivity in units of the clip norm, always a Python float: what the
            accounting is compared with.
    """

    sums: list
    norms: tf.Tensor
    present: tf.Tensor
    clipped: tf.Tensor
    non_finite: tf.Tensor
    losses: tf.Tensor
    outputs: Any
    state: list
    sensitivity: float
    l2_norm_clip: float
    relative_sensitivity: float


# What a CPU takes at a time through convolutions and recurrent layers where nobody said how many rows:
# so many bytes of a forward pass, but within these limits. Larger chunks need more memory and are no
# faster (CIFAR-10 network at lots of 1,024, in chunks of 128 and whole: 1.5 and 4.5 s, 2.0 and 9.4 GB;
# ResNet-18 at 64, in chunks of 32 and whole: 1.8 s twice, 1.8 and 2.2 GB; tutorial CNN at 1,024,
# in chunks of 256 and whole: 56 and 82 ms; BiLSTM at 1,024, the same: 0.33 s twice, 1.2 and 1.6 GB),
# smaller ones slower (ResNet-18, 16: 2.0 s; tutorial CNN, 128: 65 ms; LeNet-5 at 1,024, 256: 4% more
# than 342). At 512 the first layers' filter gradients no longer fit a cache (over twice the time).
_CHUNK_BYTES = 2**27
_CHUNK_ROWS = (32, 384)
# From so many bytes of a forward pass on, memory counts for more than the last few percent of time.
_LARGE_BYTES = 2**26
# An engine: (forward, bound, x, y, sample_weight, chunk, microbatch_size) -> BoundedSum. Rows of
# weight zero are absent; `chunk` (int32 scalar) tells the chunks of one lot apart.
Engine = Callable[..., BoundedSum]
ENGINES = ("auto", "ghost", "vectorized")


def choose_engine(name: str, model) -> Engine:
    """Returns the engine called `name`; "auto" takes the fastest that is exact for `model`.

    Args:
        name: "auto", "ghost" or "vectorized".
        model: a Keras model; has to be built unless the name is "vectorized".

    Raises:
        ValueError: no such engine, or "ghost" for a model that it does not cover exactly.
    """
    from tfdp.gradients import ghost, lotwise, vectorized

    if name not in ENGINES:
        raise ValueError(
            f"Invalid value received for argument `engine`. Expected one of {list(ENGINES)}. "
            f"Received: {name!r}"
        )
    if uses_batch_statistics(model) and name != "ghost":
        return lotwise.bounded_sum
    if name == "vectorized":
        return vectorized.bounded_sum
    why_not = ghost.supports(model)
    if name == "ghost":
        if why_not is not None:
            raise ValueError(f"The ghost engine is not exact for this model: {why_not}")
        return ghost.bounded_sum
    if why_not is not None:
        _log_exact(why_not)
        return vectorized.bounded_sum

    def auto(*arguments):
        # Some models say only while they run that a layer is called twice, or read by another.
        try:
            return ghost.bounded_sum(*arguments)
        except ghost.UnsupportedModelError as error:
            _log_exact(str(error))
            return vectorized.bounded_sum(*arguments)

    return auto


@functools.cache  # a step is traced several times; each reason is told once
def _log_exact(why: str) -> None:
    logging.info("tfdp uses the exact engine (tf.vectorized_map): %s", why)


def _rows(tree) -> tf.Tensor:
    return tf.shape(tf.nest.flatten(tree)[0])[0]


def _pad_rows(tree, rows):
    """Appends zero rows to every leaf until there are `rows`."""

    def pad(leaf):
        missing = rows - tf.shape(leaf)[0]
        padding = tf.concat([[[0, missing]], tf.zeros([leaf.shape.rank - 1, 2], tf.int32)], axis=0)
        return tf.ensure_shape(tf.pad(leaf, padding), [None, *leaf.shape[1:]])

    return tf.nest.map_structure(pad, tree)


def with_rows(tree, rows: int):
    """Every leaf with exactly `rows` rows: zero rows are appended, or the last rows left out.

    Args:
        tree: a structure of tensors with a common leading dimension.
        rows: a Python integer, so that the shapes are known beforehand.
    """
    if all(leaf.shape[0] == rows for leaf in tf.nest.flatten(tree)):
        return tree
    cut = tf.nest.map_structure(lambda leaf: leaf[:rows], tree)
    padded = _pad_rows(cut, rows)
    return tf.nest.map_structure(lambda p: tf.ensure_shape(p, [rows, *p.shape[1:]]), padded)


def _split_rows(tree, chunks, size):
    """Makes every leaf [rows, ...] [chunks, size, ...] (XLA cannot slice by a variable)."""
    known = size if isinstance(size, int) else None

    def split(leaf):
        leaf = tf.reshape(leaf, tf.concat([[chunks, size], tf.shape(leaf)[1:]], axis=0))
        return tf.ensure_shape(leaf, [None, known, *leaf.shape[2:]])

    return tf.nest.map_structure(split, tree)


def _balanced(rows, limit, multiple):
    """Cuts rows into as few chunks as the limit allows, all of one size; works on tensors, too.

    Args:
        rows: how many there are.
        limit: most rows of a chunk, a multiple of `multiple`.
        multiple: what the size is a multiple of.

    Returns:
        (number of chunks, at least one; rows of a chunk).
    """
    largest = max if isinstance(rows, int) else tf.maximum
    chunks = largest(-(-rows // limit), 1)
    return chunks, largest(-(-rows // (chunks * multiple)), 1) * multiple


def _suitable_rows(forward, rows, expected, microbatch_size):
    """A limit for chunks of images and sequences on a CPU; None for the whole lot."""
    if rows is None and expected is not None:
        rows = expected + 2 * math.isqrt(expected)  # few Poisson lots are larger
    least, most = _CHUNK_ROWS
    if rows is None or rows < 1.5 * least or tf.config.list_physical_devices("GPU"):
        return None
    chunked = (BaseConv, keras.layers.RNN)
    if not any(isinstance(layer, chunked) for layer in forward.model._flatten_layers()):
        return None
    limit = max(_CHUNK_BYTES // forward.row_bytes, least) if forward.row_bytes else most
    chunks = max(int(rows / limit + 0.5), math.ceil(rows / most))
    if chunks < 2:
        return None
    # A lot of the usual size is not to need one more chunk than it should.
    return math.ceil(math.ceil(rows / chunks) / microbatch_size) * microbatch_size


def works_in_turn(forward: Forward, rows: int | None) -> bool:
    """Whether a pass over `rows` is so large that its parts are to wait for each other.

    TensorFlow starts whatever can start: the second chunk beside the first, and in each the patches of
    all layers' inputs before the first gradient is there. Small models are up to 5% faster that way;
    ResNet-18 at lots of 64 took 2.6 GB instead of 1.7 (measured).
    """
    bytes_of_row = forward.row_bytes
    return bytes_of_row is None or rows_or_expected(rows) * bytes_of_row > _LARGE_BYTES


def bounded_sum(
    engine: Engine,
    forward: Forward,
    bound: L2Clip,
    x,
    y,
    sample_weight,
    *,
    physical_batch_size: int | None = None,
    microbatch_size: int = 1,
    expected_rows: int | None = None,
) -> BoundedSum:
    """Sums bounded gradients over a whole lot, `physical_batch_size` rows at a time.

    Memory is set by the physical batch, not by the lot. No noise is added here: it belongs once to
    the sum over the lot, however many chunks there were.

    Args:
        engine: what turns a chunk into a bounded sum.
        forward: the model's pure forward pass.
        bound: what limits an example's influence.
        x, y: structures of tensors with a common leading dimension.
        sample_weight: float32 [rows]; zero means that the row is absent.
        physical_batch_size: most rows of a chunk, a multiple of `microbatch_size`; chunks are as few
            as can be, and of one size. None takes the lot whole, or on a CPU in chunks that suit it.
        microbatch_size: examples whose mean gradient is bounded together.
        expected_rows: about how many rows there will be, where the tensors do not say so; it decides
            between equal ways to compute, nothing else.
    """
    static_rows = sample_weight.shape[0]
    if physical_batch_size is None and not getattr(engine, "needs_whole_lots", False):
        physical_batch_size = _suitable_rows(forward, static_rows, expected_rows, microbatch_size)
    total = _rows(sample_weight) if static_rows is None else static_rows
    if physical_batch_size is None or (
        static_rows is not None and static_rows <= physical_batch_size
    ):
        if microbatch_size > 1:
            rows = -(-total // microbatch_size) * microbatch_size
            x, y, sample_weight = _pad_rows((x, y, sample_weight), rows)
        with expecting_rows(expected_rows):
            return engine(forward, bound, x, y, sample_weight, tf.constant(0), microbatch_size)

    if getattr(engine, "needs_whole_lots", False):
        raise NotImplementedError(
            "With statistics='batch' a lot is normalized as a whole, and physical batches would have "
            "statistics of their own, for which nothing is proven. Expected no "
            f"`physical_batch_size`. Found {physical_batch_size}. Use smaller lots, or "
            "statistics='example'."
        )
    chunks, size = _balanced(total, physical_batch_size, microbatch_size)
    x, y, sample_weight = _pad_rows((x, y, sample_weight), chunks * size)
    split = _split_rows((x, y, sample_weight), chunks, size)

    def run(chunk):
        part = tf.nest.map_structure(lambda leaf: leaf[chunk], split)
        with expecting_rows(physical_batch_size):
            return engine(forward, bound, *part, chunk, microbatch_size)

    # The first chunk runs outside the loop and tells the loop its structure. A lot always has
    # one: an empty lot is a chunk of padding.
    first = run(tf.constant(0))
    per_row = (first.norms, first.present, first.clipped, first.losses, first.outputs)
    leaves = tf.nest.flatten(per_row)
    arrays = [
        tf.TensorArray(leaf.dtype, size=chunks, element_shape=leaf.shape).write(0, leaf)
        for leaf in leaves
    ]

    def body(chunk, sums, non_finite, arrays):
        part = run(chunk)
        rows = (part.norms, part.present, part.clipped, part.losses, part.outputs)
        sums = [a + b for a, b in zip(sums, part.sums, strict=True)]
        arrays = [
            a.write(chunk, leaf) for a, leaf in zip(arrays, tf.nest.flatten(rows), strict=True)
        ]
        return chunk + 1, sums, non_finite + part.non_finite, arrays

    with tf.control_dependencies(first.sums if works_in_turn(forward, physical_batch_size) else []):
        second = tf.constant(1)
    _, sums, non_finite, arrays = tf.while_loop(
        lambda chunk, *_: chunk < chunks,
        body,
        (second, first.sums, first.non_finite, arrays),
        parallel_iterations=1,
    )
    merged = tf.nest.pack_sequence_as(per_row, [a.concat() for a in arrays])
    norms, present, clipped, losses, outputs = merged
    return dataclasses.replace(
        first,
        sums=sums,
        norms=norms,
        present=present,
        clipped=clipped,
        non_finite=non_finite,
        losses=losses[:total],
        outputs=keras.tree.map_structure(lambda leaf: leaf[:total], outputs),
    )
