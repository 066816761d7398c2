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

import contextlib
import contextvars

import tensorflow as tf

from tfdp._compat.pfor_conversion import created, looped, wrap

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
_OWN = contextvars.ContextVar("own", default=frozenset())  # of references to tensors


def seeds_of_rows(seed: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns [rows, 2]: a seed for every row, of which the first is `seed` itself.

    Args:
        seed: integers [2], the state of a `keras.random.SeedGenerator`: a seed and a counter.
        rows: int32 scalar.
    """
    shifts = tf.cast(tf.range(rows), seed.dtype) * tf.constant(_ROW_STRIDE, seed.dtype)
    return seed + tf.stack([shifts, tf.zeros_like(shifts)], axis=1)


@contextlib.contextmanager
def marking_own_seeds():
    """Context of a `tf.vectorized_map` in whose function `mark_own_seeds` may be called."""
    token = _OWN.set(set())
    try:
        yield
    finally:
        _OWN.reset(token)


def mark_own_seeds(seeds) -> None:
    """Declares that `seeds`, tensors of a row in a vectorized function, are from `seeds_of_rows`."""
    _OWN.get().update(seed.ref() for seed in seeds)


def _is_own(tensor) -> bool:
    """Whether a tensor of one row is computed from own seeds and constants, and nothing else."""
    own = _OWN.get()
    left, seen, found = [tensor], set(), False
    while left:
        tensor = left.pop()
        if tensor.ref() in own:
            found = True
        elif tensor.ref() not in seen:
            seen.add(tensor.ref())
            if tensor.op.type == "PlaceholderWithDefault":  # the number of the row
                return False
            if tensor.op.type != "Const" and not tensor.op.inputs:
                return False
            left += tensor.op.inputs
    return found


def add_rules(rules: dict) -> None:
    """Adds the rules of this module for operations that have none; `rules` has those of TensorFlow."""

    def shared_or_own(pfor_input, index):
        return not pfor_input.input(index).is_stacked or _is_own(pfor_input.op.inputs[index])

    def first(pfor_input, index):
        value = pfor_input.input(index)
        return value.t[0] if value.is_stacked else value.t

    def convert_sampler(pfor_input):
        count = pfor_input.num_inputs
        parameters = range(_FIRST_PARAMETER, count)
        if any(pfor_input.input(index).is_stacked for index in parameters):
            return looped(pfor_input)
        if not all(shared_or_own(pfor_input, index) for index in (_KEY, _COUNTER)):
            return looped(pfor_input)
        shape = pfor_input.unstacked_input(_SHAPE)
        rows = tf.cast(pfor_input.pfor.loop_len_vector, shape.dtype)
        inputs = [first(pfor_input, index) for index in range(1, count)]
        drawn = created(pfor_input, [tf.concat([rows, shape], axis=0), *inputs])
        return [wrap(output, True) for output in drawn]

    def convert_key(pfor_input):
        if not shared_or_own(pfor_input, 0):
            return looped(pfor_input)
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=first(pfor_input, 0))
        rows = pfor_input.pfor.loop_len_vector[0]
        # Every row gets a key of its own, for operations that draw in a loop. That of the first row
        # is the key that this seed has for itself.
        shifts = tf.cast(tf.range(rows), key.dtype)[:, tf.newaxis] * tf.constant(
            _KEY_STRIDE, key.dtype
        )
        # Not by tf.broadcast_to, which has no kernel for these numbers on a GPU.
        return wrap(key + shifts, True), wrap(counter + tf.zeros_like(shifts), True)

    for name in _SAMPLERS:
        rules.setdefault(name, convert_sampler)
    rules.setdefault("StatelessRandomGetKeyCounter", convert_key)
