"""Computes one bounded sum of gradients for a lot: chooses the engine and loops over chunks."""

import dataclasses
from collections.abc import Callable

import keras
import tensorflow as tf

from tfdp._compat.tensorflow import inside_xla
from tfdp._validate import one_of
from tfdp.gradients.bounds import L2Clip
from tfdp.gradients.chunks import (
    balanced_chunks,
    pad_rows,
    split_rows,
    suitable_rows,
    sum_of_chunks,
    works_in_sequence,
)
from tfdp.gradients.contract import BoundedSum, Engine
from tfdp.gradients.engines import exact, ghost, loop, lotwise
from tfdp.gradients.forward import Forward
from tfdp.gradients.norms import expecting_rows
from tfdp.layers.lot_statistics import uses_batch_statistics

_USUAL_ROWS = 2048

ENGINES = ("auto", "ghost", "vectorized", "loop")


def choose_engine(name: str, model) -> Engine:
    """Returns the engine of a given name for a model.

    A model with statistics='batch' always gets the lotwise engine, except that "ghost" raises an error.

    Args:
        name: "auto", "ghost", "vectorized" (the exact engine) or "loop".
        model: A Keras model.

    Raises:
        ValueError: If the engine is unknown, or "ghost" is not exact for the model.
    """
    one_of("engine", name, ENGINES)
    if uses_batch_statistics(model):
        if name == "ghost":
            raise ValueError(
                f"The ghost engine cannot train model '{model.name}', which normalizes with "
                "statistics='batch', so that an example's loss depends on the whole lot. Use "
                "engine='auto', or statistics='example'."
            )
        return lotwise.bounded_sum
    engines: dict[str, Engine] = {"vectorized": exact.bounded_sum, "loop": loop.bounded_sum}
    return engines.get(name, ghost.bounded_sum)


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
    views: int = 1,
    first: int | tf.Tensor = 0,
    parts: int = 1,
    expected_rows: int | None = None,
    observe: Callable | None = None,
) -> BoundedSum:
    """Computes the sum of bounded gradients of a whole lot, `physical_batch_size` rows at a time.

    The physical batch, not the lot, determines how much memory is needed. No noise is added here: the
    mechanism adds it once to the sum of the lot, however many chunks there were.

    Args:
        engine: Computes the bounded sum of one chunk.
        forward: The model's pure forward pass.
        bound: The limit of one example's influence.
        x, y: Structures of tensors [rows, ...].
        sample_weight: Weights, float32 [rows]. Rows of weight zero are absent.
        physical_batch_size: Largest number of rows in a chunk, a multiple of `microbatch_size *
            views`. There are as few chunks as possible, all of one size. None processes the lot as
            a whole, or on a CPU in chunks of a size that suits the model.
        microbatch_size: Number of examples whose mean gradient is bounded together.
        views: Number of consecutive rows of each example.
        first: Place of the first row, if these rows are part of a larger lot. Random numbers depend
            on the place.
        parts: Number of such parts, whose sums are added to that of the lot.
        expected_rows: Approximate number of rows in the lot, for tensors without a static number. It
            is used only to choose between equivalent computations.
        observe: A function that is called with x, y, sample_weight and the model's `Outputs` for each
            chunk, some of whose rows may be absent. The result then has no outputs, which saves
            memory.

    Raises:
        NotImplementedError: If the engine needs whole lots, and a lot may exceed
            `physical_batch_size`.
    """

    def of_chunk(x, y, sample_weight, place):
        part = engine(forward, bound, x, y, sample_weight, place, microbatch_size, views)
        if observe is None:
            return part
        observe(x, y, sample_weight, part.outputs)
        return dataclasses.replace(part, outputs=())

    static_rows = sample_weight.shape[0]
    room = _room_for_rounding(None if static_rows is None else static_rows * parts, expected_rows)
    bound = dataclasses.replace(bound, room=room)
    expected_rows = None if expected_rows is None else -(-expected_rows // parts)
    averaged = microbatch_size * views  # no chunk may cut these rows
    needs_whole_lots = engine is lotwise.bounded_sum
    if physical_batch_size is None and not needs_whole_lots:
        physical_batch_size = suitable_rows(forward, static_rows, expected_rows, averaged)
    total = tf.shape(sample_weight)[0] if static_rows is None else static_rows
    if physical_batch_size is None or (
        static_rows is not None and static_rows <= physical_batch_size
    ):
        if averaged > 1:
            rows = -(-total // averaged) * averaged
            x, y, sample_weight = pad_rows(x, y, sample_weight, rows)
        with expecting_rows(expected_rows):
            whole = of_chunk(x, y, sample_weight, tf.convert_to_tensor(first))
        return whole if averaged == 1 else _without_padding(whole, total)

    if needs_whole_lots:
        raise NotImplementedError(
            f"physical_batch_size={physical_batch_size} cannot be combined with "
            "statistics='batch': each physical batch would have its own statistics, for which "
            "nothing is proven. Use smaller lots instead, or statistics='example'."
        )
    chunks, size = balanced_chunks(total, physical_batch_size, averaged)
    x, y, sample_weight = pad_rows(x, y, sample_weight, chunks * size)
    split = split_rows((x, y, sample_weight), chunks, size)

    def run(chunk):
        part = tf.nest.map_structure(lambda leaf: leaf[chunk], split)
        with expecting_rows(physical_batch_size):
            return of_chunk(*part, first + chunk * size)

    # An empty lot is one chunk of padding.
    merged = sum_of_chunks(run, chunks, works_in_sequence(forward, physical_batch_size))
    return _without_padding(merged, total)


def _room_for_rounding(rows: int | None, expected: int | None) -> float:
    """Returns a factor below one, which shrinks a sum by more than rounding enlarges its sensitivity.

    If a norm is rounded down, its gradient is clipped too little, and removing an example may change
    how the sum of all others is rounded. Measured on a CPU: up to 6e-7 of the clip norm for 256 rows
    that point the same way, 4e-5 for 16,384; a norm of four million equal entries, up to 4e-7, and
    1.1e-5 with XLA, which adds them one after the other.

    Args:
        rows, expected: Static or expected number of rows. The factor is public, so it does not
            depend on the actual number of rows.
    """
    rows = rows or 2 * (expected or _USUAL_ROWS)
    return 1.0 - 2.0**-24 * (16 + rows / 4) - (2.0**-15 if inside_xla() else 0.0)


def _without_padding(lot: BoundedSum, rows) -> BoundedSum:
    """Returns a bounded sum with the losses and outputs of only its first `rows` rows."""
    kept = {name: getattr(lot, name) for name in ("losses", "output_losses", "outputs")}
    kept = keras.tree.map_structure(lambda leaf: leaf[:rows], kept)
    return dataclasses.replace(lot, **kept)
