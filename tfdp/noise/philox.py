"""Numbers that follow from a key and a counter by Philox4x32-10, with or without XLA.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), section 5.
"""

import functools
import math

import tensorflow as tf

from tfdp._compat.tensorflow import inside_xla, on_gpu, on_plain_cpu

_PHILOX = 1
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_WORD = 0xFFFFFFFF
_WORDS_PER_BLOCK = 4
# From this many numbers on, a CPU draws them in one compiled loop. It takes a quarter of a second to
# trace and compile, and saves 3.3 of 5.5 ns of processor time a number (two million, with AVX-512).
_COMPILED = 1 << 17
# Words below this one get 32 more bits, of blocks that begin here; other blocks begin at 0.
_SMALL, _FURTHER = 1 << 11, 1 << 62


def words(
    key: tf.Tensor, high: tf.Tensor, shape: list[int], dtype: tf.DType, block: int = 0
) -> tf.Tensor:
    """Returns random words, unsigned integers with independent bits.

    Args:
        key: int64 scalar.
        high: int64 scalar, the upper half of the counter. The lower half counts blocks of four words
            of 32 bits.
        shape: Shape of the result.
        dtype: Type of the words: unsigned integers.
        block: Number of the first block.
    """
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=tf.constant(shape, tf.int32),
        key=tf.bitcast(tf.reshape(key, [1]), tf.uint64),
        counter=tf.bitcast(tf.stack([tf.constant(block, tf.int64), high]), tf.uint64),
        alg=_PHILOX,
        dtype=dtype,
    )


def normals(key: tf.Tensor, high: tf.Tensor, count: int, stddev: float | tf.Tensor) -> tf.Tensor:
    """Returns independent N(0, stddev^2) float32 numbers, equal on all devices except for rounding.

    This is the method of Box and Muller: the two words of each pair are the radius and the angle of
    two numbers. TensorFlow's `StatelessRandomNormalV2` works number by number and is slower.

    Args:
        key, high: The key and the upper half of the counter, as for `words`.
        count: Least number of numbers to return; more may be returned.
        stddev: Standard deviation, a float or a float32 scalar.
    """
    blocks = -(-count // _WORDS_PER_BLOCK)
    if count >= _COMPILED and on_plain_cpu():
        numbers = _compiled(blocks)(key, high, tf.convert_to_tensor(stddev, tf.float32))
        return tf.reshape(tf.bitcast(numbers, tf.float32), [-1])
    return _by_operations(key, high, blocks, stddev)


def uniforms_from_words(words: tf.Tensor, more: tf.Tensor | None = None) -> tf.Tensor:
    """Converts random words to numbers in (0, 1] with at least 11 significant bits, however small.

    Args:
        words: uint32, of any shape.
        more: Further words of that shape, used where `words` are small; None if none are.

    Returns:
        A float32 tensor of that shape.
    """
    numbers = tf.cast(words, tf.float32) + 0.5
    if more is not None:
        finer = tf.cast(words, tf.float32) + (tf.cast(more, tf.float32) + 0.5) * 2.0**-32
        numbers = tf.where(words < tf.constant(_SMALL, tf.uint32), finer, numbers)
    return numbers * 2.0**-32


def _radius(uniform, stddev):
    return tf.sqrt(tf.math.log(uniform) * -2.0) * stddev


def _by_operations(key, high, blocks, stddev):
    """Normal numbers by operations on whole arrays."""

    def drawn(block):  # radii, angles; few operations on a GPU know words
        pairs = words(key, high, [blocks * 2, 2], tf.uint32, block)
        parts = tf.unstack(tf.bitcast(pairs, tf.float32), axis=1)
        return [tf.bitcast(part, tf.uint32) for part in parts]

    radius, angle = drawn(0)

    def finer():
        return uniforms_from_words(radius, drawn(_FURTHER)[0])

    if on_gpu():  # drawing more words is cheaper than waiting for a result from the GPU
        uniform = finer()
    else:  # few draws have a small word
        small = radius < tf.constant(_SMALL, tf.uint32)
        uniform = tf.cond(tf.reduce_any(small), finer, lambda: uniforms_from_words(radius))
    length = _radius(uniform, stddev)
    angle = tf.cast(tf.bitcast(angle, tf.int32), tf.float32) * (math.pi * 2.0**-31)
    pair = length * tf.cos(angle), length * tf.sin(angle)
    # `stack` takes longer, but XLA cannot bitcast complex numbers.
    pairs = tf.stack(pair, axis=1) if inside_xla() else tf.bitcast(tf.complex(*pair), tf.float32)
    return tf.reshape(pairs, [-1])


@functools.lru_cache(maxsize=8)
def _compiled(blocks):
    return tf.function(
        functools.partial(_one_loop, blocks=blocks), jit_compile=True, autograph=False
    )


def _one_loop(key, high, stddev, blocks):
    """The same as `_by_operations`, by arithmetic that XLA turns into one loop, without large arrays.

    XLA on a CPU makes a loop for each array of results and repeats the whole computation in it. So the
    bits of a block's four numbers are one entry of one array, of type complex128.
    """
    key, high = tf.bitcast(key, tf.uint64), tf.bitcast(high, tf.uint64)
    number = tf.cast(tf.range(blocks, dtype=tf.int64), tf.uint64)
    drawn, further = _blocks(key, high, [number, number + tf.constant(_FURTHER, tf.uint64)])
    found = []
    for radius, angle, more in (drawn[:2] + further[:1], drawn[2:] + further[2:3]):
        length = _radius(uniforms_from_words(radius, more), stddev)
        found += [length * part for part in _cosine_and_sine(angle)]
    return tf.complex(_joined(*found[:2]), _joined(*found[2:]))


def _blocks(key, high, numbers):
    """The four words of each block, uint32, for some arrays of lower counters."""
    half, word, *constants = [
        tf.constant(value, tf.uint64) for value in (32, _WORD, *_MULTIPLIERS, *_KEY_STEPS)
    ]
    multipliers, steps = constants[:2], constants[2:]

    def upper(words):
        return tf.bitwise.right_shift(words, half)

    # The lower 32 bits of a uint64 count; products need all 64.
    blocks = [(number, upper(number), high, upper(high)) for number in numbers]
    keys = [key, upper(key)]
    for _ in range(_ROUNDS):
        for i, (first, second, third, fourth) in enumerate(blocks):
            left, right = (first & word) * multipliers[0], (third & word) * multipliers[1]
            blocks[i] = upper(right) ^ second ^ keys[0], right, upper(left) ^ fourth ^ keys[1], left
        keys = [key + step for key, step in zip(keys, steps, strict=True)]
    return [[tf.cast(each, tf.uint32) for each in block] for block in blocks]


def _joined(first, second):
    """float64 with the bits of two float32."""
    first, second = (tf.cast(tf.bitcast(v, tf.uint32), tf.uint64) for v in (first, second))
    return tf.bitcast(first | tf.bitwise.left_shift(second, tf.constant(32, tf.uint64)), tf.float64)


def _cosine_and_sine(angle):
    """Cosine and sine of angles in units of 2^-32 of a turn; XLA would call a function for each number.

    The nearest quarter of a turn is subtracted. At most an eighth is left, where Taylor's polynomials
    differ from cosine and sine by less than the rounding of float32.
    """
    quarter = tf.bitwise.right_shift(
        angle + tf.constant(1 << 29, tf.uint32), tf.constant(30, tf.uint32)
    )
    rest = angle - tf.bitwise.left_shift(quarter, tf.constant(30, tf.uint32))
    rest = tf.cast(tf.bitcast(rest, tf.int32), tf.float32) * (math.pi * 2.0**-31)
    square = rest * rest
    cosine = _series(square, 0)
    sine = rest * _series(square, 1)
    quarter = tf.bitcast(quarter, tf.int32)
    sideways = tf.equal(quarter & 1, 1)
    cosine, sine = tf.where(sideways, sine, cosine), tf.where(sideways, cosine, sine)
    left, down = (quarter == 1) | (quarter == 2), quarter >= 2
    return tf.where(left, -cosine, cosine), tf.where(down, -sine, sine)


def _series(square, odd):
    """The sum of (-square)^k / (2 k + odd)! over k up to 5."""
    total = 0.0
    for k in range(5, -1, -1):
        total = total * square + (-1.0) ** k / math.factorial(2 * k + odd)
    return total
