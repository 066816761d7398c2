"""Checks the data of a training before the first step: labels, tokens, numbers that are not finite."""

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from tfdp._compat.keras import input_structure, is_graph_of_layers, layers_of, uses_of
from tfdp.data import Lots, SourceBatches, check_labels
from tfdp.data.arrays import all_arrays, are_texts, each_array
from tfdp.data.examples import is_text
from tfdp.layers.public import public_layers
from tfdp.training.building import outputs_for

_CHUNK = 2**20  # numbers that are looked at together, so that no copy of the data is made
_NEIGHBOURS = 4  # number of pairs of rows that are compared, and of values that they share at least
_LARGEST_SHIFT = 100  # of a window against the window before it


def check_examples(model, data) -> None:
    """Checks the data of a `fit`: all examples if they are in memory, otherwise a few.

    A user's batches are not checked, since they cannot be read twice.

    Args:
        model: A compiled Keras model.
        data: `tfdp.data.Lots`, or batches.
    """
    held = None
    if isinstance(data, Lots):
        held = None if data.mapped else data.source.in_memory()
        if held is None:
            indices, rows = data.some()
            try:
                check_targets(model, *rows)
            except ValueError as error:
                error.add_note(f"(among the rows {indices.tolist()} of the source)")
                raise
    if held is not None:
        for values, name in zip(held, ("x", "y", "sample_weight"), strict=True):
            check_finite(values, name)
        check_rows(model, *held[:2])
        if data.examples_per_person is None and any(map(_overlap, all_arrays(held[0]))):
            logging.warning(
                "Neighbouring rows overlap, as windows of a series do. So a value is in several rows, "
                "but the guarantee is for one row. Cut windows without overlap, or protect all rows of "
                "a person: make_lots(..., privacy_ids=..., examples_per_person=...)."
            )
    elif public_layers(model):
        logging.warning(
            "Model '%s' has public examples, which are compared with arrays in memory only. Make sure "
            "that none of them is among these data.",
            model.name,
        )


def _overlap(rows) -> bool:
    """Whether each of the first rows begins with the end of the row before it."""
    if np.ndim(rows) < 2 or rows.dtype.kind not in "fiu":
        return False
    first, then = np.asarray(rows[:_NEIGHBOURS]), np.asarray(rows[1 : _NEIGHBOURS + 1])
    for shift in range(1, min(first.shape[1], _LARGEST_SHIFT) if len(first) == len(then) else 0):
        ends = first[:, shift:]
        if np.array_equal(ends, then[:, : ends.shape[1]]):
            # Equal rows, zeros and other padding coincide, too.
            return ends[0].size >= _NEIGHBOURS and all(np.ptp(end) > 0 for end in ends)
    return False


def check_rows(model, x, y) -> None:
    """Raises ValueError for arrays in memory that a model cannot be trained on."""
    check_targets(model, x, y)
    check_disjoint(model, x)
    check_tokens(model, x)


def check_validation(model, held_out, lot) -> None:
    """Raises ValueError, before any step, for validation data that the model cannot be evaluated on.

    Keras would notice after the first epoch, when all planned steps are counted. Data that cannot be
    looked at without consuming them, such as generators, are not checked.

    Args:
        model: A compiled Keras model.
        held_out: The validation data, as `to_evaluate` returns them.
        lot: The structure of `tf.TensorSpec`s of a lot.
    """
    if isinstance(held_out, SourceBatches):
        rows = held_out[0]
    elif isinstance(held_out, tf.data.Dataset):
        rows = held_out.element_spec
    elif isinstance(held_out, tuple | dict) or _is_array(held_out):
        rows = held_out
    else:
        return
    x, y, _ = keras.utils.unpack_x_y_sample_weight(rows)
    known_x, known_y, _ = keras.utils.unpack_x_y_sample_weight(lot)
    if y is None and known_y is not None:
        raise ValueError(
            "validation_data has no targets, but the training data have. Pass (x, y), or a source of "
            "such rows, such as tfdp.data.as_source(records, keys=('x', 'y'))."
        )
    for found, known in ((x, known_x), (y, known_y)):
        if [*map(is_text, all_arrays(found))] != [*map(is_text, all_arrays(known))]:
            raise ValueError(
                "validation_data and the training data have different entries, or one is text in only "
                f"one of them. Received {each_array(_described, found)} and "
                f"{each_array(_described, known)}. Pass both in the same form."
            )
    inputs = inputs_of(model, x)
    for symbol in keras.tree.flatten(input_structure(model)) if inputs else ():
        leaf = inputs.get(id(symbol))
        if leaf is not None and not _fits(leaf.shape[1:], symbol.shape[1:]):
            raise ValueError(
                f"validation_data does not fit the model. Expected rows of shape {symbol.shape[1:]} "
                f"for its input {symbol.name!r}. Received {tuple(leaf.shape[1:])}."
            )
    if all(map(_is_array, all_arrays((x, y)))):
        try:
            check_targets(model, x, y)
        except ValueError as error:
            error.add_note("(in validation_data)")
            raise


def _is_array(leaf) -> bool:
    return isinstance(getattr(leaf, "dtype", None), np.dtype)


def _described(leaf) -> str:
    return f"{'texts' if is_text(leaf) else 'numbers'} of shape {tuple(leaf.shape)}"


def _fits(shape, wanted) -> bool:
    """Whether rows of a shape can be an input. Keras adds or removes a last axis of length one."""
    if len(shape) != len(wanted):
        return abs(len(shape) - len(wanted)) == 1
    return all(None in (n, m) or n == m for n, m in zip(shape, wanted, strict=True))


def check_finite(values, name: str) -> None:
    """Raises ValueError if an array of floats holds a NaN or an infinity.

    The gradient of such an example is usually not finite, and counts zero in every step.

    Args:
        values: A structure of arrays.
        name: Name of the argument, for errors.
    """
    for array in all_arrays(values):
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fc":
            continue
        rows = max(1, _CHUNK // max(1, array[0].size))
        for first in range(0, len(array), rows):
            finite = np.isfinite(array[first : first + rows])
            if not finite.all():
                row, *place = np.argwhere(~finite)[0].tolist()
                raise ValueError(
                    f"Invalid value received for argument `{name}`. Expected finite numbers. Received "
                    f"{array[(first + row, *place)]} in row {first + row}. Remove such rows, or "
                    "replace the numbers by a constant: np.nan_to_num(..., nan=0.0)."
                )


def check_targets(model, x, y) -> None:
    """Raises ValueError if targets are missing or texts, or labels are not indices of the outputs.

    Labels are compared with the outputs only if they are one array, and the loss is sparse categorical.
    A custom loss may take texts.
    """
    loss = model.loss
    own = type(model).compute_loss is not keras.Model.compute_loss or "compute_loss" in vars(model)
    if y is None and loss is not None and not own:
        raise ValueError(
            "Received y=None, but the model was compiled with a loss, which compares outputs with "
            "targets. Pass y, or compile without a loss a model whose layers call add_loss."
        )
    of_keras = isinstance(loss, str) or type(loss).__module__.startswith("keras.")
    if of_keras and not own and any(map(_begins_with_text, all_arrays(y))):
        raise ValueError(
            f"Expected numbers as targets y, for the loss {loss!r}. Received texts. Convert them, for "
            "example by (labels == 'yes').astype('int32'), or by a dict of class indices."
        )
    sparse = isinstance(loss, keras.losses.SparseCategoricalCrossentropy) or (
        loss == "sparse_categorical_crossentropy"
    )
    if not sparse or y is None or isinstance(y, (dict, list, tuple)):
        return
    outputs = outputs_for(model, x)
    classes = outputs[0].shape[-1] if len(outputs) == 1 else None
    if classes is None:
        return
    left_out = getattr(loss, "ignore_class", None)
    check_labels(y if left_out is None else np.where(np.equal(y, left_out), 0, y), classes)


def _begins_with_text(array) -> bool:
    """Whether an array is of texts; objects may be numbers, too."""
    if isinstance(array, np.ndarray) and array.dtype.kind == "O":
        return bool(array.size) and are_texts(array.flat[:1])
    return is_text(array)


def check_tokens(model, x) -> None:
    """Raises ValueError if an array has tokens that an `Embedding` has no vector for.

    In a step, the gradient of such an example counts zero. Only inputs that go straight to an
    `Embedding` are checked, of Sequential and functional models.
    """
    for layer in layers_of(model):
        if isinstance(layer, keras.layers.Embedding):
            for array in map(inputs_of(model, x).get, sources_of(layer)):
                if array is None or not np.size(array):
                    continue
                least, most = np.min(array), np.max(array)
                if not 0 <= least <= most < layer.input_dim:
                    raise ValueError(
                        f"Embedding '{layer.name}' has vectors for the tokens 0 to "
                        f"{layer.input_dim - 1}. Received tokens from {least} to {most}. Make the "
                        "embedding larger, or map such tokens to one of its tokens."
                    )


def inputs_of(model, x) -> dict:
    """Returns the leaves of `x`, by the ids of the symbolic inputs that they are passed to.

    Leaves of a dictionary are assigned by name, as in Keras. The result is empty for models that are no
    graph of layers.
    """
    if not is_graph_of_layers(model) or not model.built:
        return {}
    structure = input_structure(model)
    inputs = keras.tree.flatten(structure)
    if isinstance(x, dict) and not isinstance(structure, dict):
        x = [x.get(each.name) for each in inputs]
    return dict(zip(map(id, inputs), keras.tree.flatten(x), strict=False))


def sources_of(layer) -> list[int]:
    """Returns the ids of the symbolic tensors that are the first arguments of a layer's calls."""
    return [id(args[0]) for args, _ in uses_of(layer) if args]


def check_disjoint(model, x) -> None:
    """Raises ValueError if a private example is also one of the model's public examples.

    Examples are compared bit by bit (0.0 equals -0.0). Private and public examples of different shapes
    are not compared, since layers before a `PublicExamples` layer may change the inputs.
    """
    private = all_arrays(x)
    for layer in public_layers(model):
        public = keras.tree.flatten(layer.examples)
        if [rows.shape[1:] for rows in public] != [rows.shape[1:] for rows in private]:
            continue
        known = set(_row_bytes(public, public))
        shared = [i for i, row in enumerate(_row_bytes(private, public)) if row in known]
        if shared:
            raise ValueError(
                f"{len(shared)} private examples (the first at index {shared[0]}) are also public "
                f"examples of layer '{layer.name}', so they would take part in every step without "
                "any noise. Choose public examples that are disjoint from the private data."
            )


def _row_bytes(arrays, like):
    """Yields the rows of several arrays as bytes, in the dtypes of the arrays `like`."""
    arrays = [
        np.ascontiguousarray(np.asarray(array).astype(other.dtype) + other.dtype.type(0))
        for array, other in zip(arrays, like, strict=True)
    ]
    for row in zip(*arrays, strict=True):
        yield b"".join(part.tobytes() for part in row)
