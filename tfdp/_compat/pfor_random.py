"""Random numbers of rows: the same in `tf.vectorized_map`, in a loop, and in any part of a lot.

A row's random numbers depend on the lot's seed, the number of the draw and the row's place in the lot.
Every row has its own seed (`seeds_of_rows`). But most draws depend on that seed and constants only. One
operation makes these draws for all rows, from the lot's seed, since TensorFlow has no operation with
several seeds. Each row has the blocks of Philox's counter that follow from its place. The engines
declare these seeds (`mark_own_seeds`); in a loop, `draw_by_place` makes a row draw from its own blocks.

Any other seed may be part of the example. With it, each example draws the numbers that it would draw
alone, in a loop over the examples. Otherwise the seed of one example would change the numbers of all
others.
"""

import tensorflow as tf

from tfdp._compat.pfor_conversion import created, looped, rule, with_inputs, wrap

# Operations with the inputs shape, key, counter, algorithm and parameters, which make a fixed amount of
# numbers from one block of Philox: 128 bits, of which a number takes 32 or 64.
_SAMPLERS = (
    "StatelessRandomNormalV2",
    "StatelessRandomUniformFullIntV2",
    "StatelessRandomUniformIntV2",
    "StatelessRandomUniformV2",
)
_SHAPE, _KEY, _COUNTER, _ALGORITHM, _FIRST_PARAMETER = range(5)
_ROW_STRIDE = 0x85EBCA6B  # odd, so that no two of the first 2^32 rows share a seed
_OWN = "tfdp_own_seed"  # the attribute of an operation that gives a row its own seed


def seeds_of_rows(seed: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Returns one seed for each row, integers [rows, 2]. The row at place 0 gets `seed` itself.

    Args:
        seed: Integers [2], the state of a `keras.random.SeedGenerator`: a seed and a counter.
        places: int32 [rows], the rows' places in the lot.
    """
    shifts = tf.cast(places, seed.dtype) * tf.constant(_ROW_STRIDE, seed.dtype)
    return seed + tf.stack([shifts, tf.zeros_like(shifts)], axis=1)


def mark_own_seeds(seeds: list, of_lot: list, place: tf.Tensor) -> None:
    """Declares that `seeds`, tensors of a traced row, are from `seeds_of_rows`.

    Args:
        seeds: The seeds of the row.
        of_lot: The seeds of the lot from which they were made.
        place: int32 scalar, the place of the first row in a vectorized function, or of the one row in
            a loop.
    """
    for seed, lot in zip(seeds, of_lot, strict=True):
        setattr(seed.op, _OWN, (lot, place))  # it is freed together with the graph


def draw_by_place(graph: tf.Graph) -> None:
    """Makes the samplers of a traced row draw the same numbers as in a vectorized function.

    Args:
        graph: The graph of the row.
    """
    for operation in graph.get_operations():
        if operation.type == "StatelessRandomGetKeyCounter" and (found := _of_lot(operation)):
            key, counter, place = found
            for sampler in operation.outputs[0].consumers():
                shifted = _counter_at(place, sampler, sampler.inputs[_SHAPE], counter)
                sampler._update_input(_KEY, key)
                sampler._update_input(_COUNTER, shifted)


def _of_lot(operation):
    """Returns (key, counter, place) of the lot for an operation that makes the key of a row, or None.

    They exist if the row's key comes from own seeds and constants, and only samplers use it, whose
    parameters are constants.
    """
    users = [user for output in operation.outputs for user in output.consumers()]
    fit = all(
        user.type in _SAMPLERS and all(p.op.type == "Const" for p in user.inputs[_FIRST_PARAMETER:])
        for user in users
    )
    marks: list = []
    if not (fit and _is_own(operation.inputs[0], marks)):
        return None
    seed = _for_the_lot(operation.inputs[0])
    return (*tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed), marks[0][1])


def _is_own(tensor, marks: list) -> bool:
    """Whether a tensor of one row depends on own seeds and constants only; collects their marks."""
    left, seen = [tensor.op], set()
    while left:
        operation = left.pop()
        if hasattr(operation, _OWN):
            marks.append(getattr(operation, _OWN))
        elif operation not in seen:
            seen.add(operation)
            if operation.type == "PlaceholderWithDefault":  # the number of the row
                return False
            if operation.type != "Const" and not operation.inputs:
                return False
            left += [source.op for source in operation.inputs]
    return bool(marks)


def _for_the_lot(tensor):
    """Computes a tensor of a row once more, with the lot's seed in place of the row's."""
    operation = tensor.op
    if hasattr(operation, _OWN):
        return getattr(operation, _OWN)[0]
    if operation.type == "Const":
        return tensor
    found = with_inputs(operation, [_for_the_lot(source) for source in operation.inputs])
    return found[tensor.value_index]


def _numbers_of_block(sampler):
    return 16 // max(sampler.outputs[0].dtype.size, 4)


def _blocks(sampler, shape):
    """How many blocks the numbers of one row take, an int or a scalar."""
    numbers = sampler.outputs[0].shape.num_elements()
    return -(-(tf.reduce_prod(shape) if numbers is None else numbers) // _numbers_of_block(sampler))


def _counter_at(place, sampler, shape, counter):
    shift = tf.cast(place, tf.uint64) * tf.cast(_blocks(sampler, shape), tf.uint64)
    return counter + shift * tf.constant([1, 0], tf.uint64)  # the low word is 0 before


@rule("StatelessRandomGetKeyCounter")
def key(_, pfor_input):
    found = _of_lot(pfor_input.op)
    if found is None:
        return looped(pfor_input)
    setattr(pfor_input.op, _OWN, found)
    rows = tf.cast(tf.zeros([pfor_input.pfor.loop_len_vector[0], 1]), tf.uint64)
    # Not by tf.broadcast_to, which has no kernel for these numbers on a GPU.
    return [wrap(word + rows, True) for word in found[:2]]


@rule(*_SAMPLERS, "StatelessRandomGammaV3", "StatelessTruncatedNormalV2")
def sampler(_, pfor_input):
    operation = pfor_input.op
    found = getattr(operation.inputs[_KEY].op, _OWN, None)
    if found is None:
        return looped(pfor_input)
    key, counter, first = found
    shape = pfor_input.unstacked_input(_SHAPE)
    rows = pfor_input.pfor.loop_len_vector
    counter = _counter_at(first, operation, shape, counter)
    # A row begins with a new block.
    size = tf.reshape(_blocks(operation, shape) * _numbers_of_block(operation), [1])
    others = [pfor_input.unstacked_input(i) for i in range(_ALGORITHM, pfor_input.num_inputs)]
    (drawn,) = created(pfor_input, [tf.concat([rows, size], 0), key, counter, *others])
    drawn = drawn[:, : operation.outputs[0].shape.num_elements() or tf.reduce_prod(shape)]
    return [wrap(tf.reshape(drawn, tf.concat([rows, shape], 0)), True)]
