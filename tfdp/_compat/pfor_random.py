"""Lets `tf.vectorized_map` draw stateless random numbers per example.

`tf.vectorized_map` has no rule for the current stateless random ops when their seed differs from
example to example (a Keras Dropout layer inside a per-example function), and raises an error.

The engines give every example of a chunk a seed of its own (`seeds_of_rows`) and say which tensors
these are (`mark_own_seeds`). Numbers drawn from such a seed, and from constants, only have to be
independent for every example. So the rules below draw one tensor with a leading example axis from the
seed of the first example, at the price of one op. Any other seed may be part of the example. From it
each example draws what it would draw alone, in a loop over the examples; otherwise the seed of one
example would change the numbers of all others.
"""

import tensorflow as tf

from tfdp._compat.pfor_conversion import created, looped, rule, wrap

# Operations with the inputs shape, key, counter, algorithm, and their parameters.
_SAMPLERS = (
    "StatelessRandomGammaV3",
    "StatelessRandomNormalV2",
    "StatelessRandomUniformFullIntV2",
    "StatelessRandomUniformIntV2",
    "StatelessRandomUniformV2",
    "StatelessTruncatedNormalV2",
)
_SHAPE, _KEY, _COUNTER, _FIRST_PARAMETER = 0, 1, 2, 4
_ROW_STRIDE = 0x85EBCA6B  # odd, so that no two of the first 2^32 rows share a seed
_KEY_STRIDE = 0x9E3779B97F4A7C15  # odd, for the same reason
_OWN = "tfdp_own_seed"  # the attribute of an operation that gives a row its own seed


def seeds_of_rows(seed: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns [rows, 2]: a seed for every row, of which the first is `seed` itself.

    Args:
        seed: integers [2], the state of a `keras.random.SeedGenerator`: a seed and a counter.
        rows: int32 scalar.
    """
    shifts = tf.cast(tf.range(rows), seed.dtype) * tf.constant(_ROW_STRIDE, seed.dtype)
    return seed + tf.stack([shifts, tf.zeros_like(shifts)], axis=1)


def mark_own_seeds(seeds) -> None:
    """Declares that `seeds`, tensors of a row in a vectorized function, are from `seeds_of_rows`."""
    for seed in seeds:
        setattr(seed.op, _OWN, True)  # it is freed together with the graph


def _is_own(tensor) -> bool:
    """Whether a tensor of one row is computed from own seeds and constants, and nothing else."""
    left, seen, found = [tensor.op], set(), False
    while left:
        operation = left.pop()
        if hasattr(operation, _OWN):
            found = True
        elif operation not in seen:
            seen.add(operation)
            if operation.type == "PlaceholderWithDefault":  # the number of the row
                return False
            if operation.type != "Const" and not operation.inputs:
                return False
            left += [source.op for source in operation.inputs]
    return found


def _shared_or_own(pfor_input, index):
    return not pfor_input.input(index).is_stacked or _is_own(pfor_input.op.inputs[index])


def _first(pfor_input, index):
    value = pfor_input.input(index)
    return value.t[0] if value.is_stacked else value.t


@rule(*_SAMPLERS)
def sampler(_, pfor_input):
    count = pfor_input.num_inputs
    if any(pfor_input.input(index).is_stacked for index in range(_FIRST_PARAMETER, count)):
        return looped(pfor_input)
    if not all(_shared_or_own(pfor_input, index) for index in (_KEY, _COUNTER)):
        return looped(pfor_input)
    shape = pfor_input.unstacked_input(_SHAPE)
    rows = tf.cast(pfor_input.pfor.loop_len_vector, shape.dtype)
    inputs = [_first(pfor_input, index) for index in range(1, count)]
    drawn = created(pfor_input, [tf.concat([rows, shape], axis=0), *inputs])
    return [wrap(output, True) for output in drawn]


@rule("StatelessRandomGetKeyCounter")
def key(_, pfor_input):
    if not _shared_or_own(pfor_input, 0):
        return looped(pfor_input)
    found, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=_first(pfor_input, 0))
    rows = tf.range(pfor_input.pfor.loop_len_vector[0])
    # Every row gets a key of its own, for operations that draw in a loop. The first row has the key
    # that TensorFlow makes from this seed.
    shifts = tf.cast(rows, found.dtype)[:, tf.newaxis] * tf.constant(_KEY_STRIDE, found.dtype)
    # Not by tf.broadcast_to, which has no kernel for these numbers on a GPU.
    return wrap(found + shifts, True), wrap(counter + tf.zeros_like(shifts), True)
