"""Independent choices of many members, each with the same chance, as Poisson sampling needs them."""

import tensorflow as tf

from tfdp.data.randomness import RandomWords


def coins(words: RandomWords, stream, step, members: int, expected: int, out_of: int) -> tf.Tensor:
    """Chooses each of the numbers 0, ..., members - 1 independently, with chance expected / out_of.

    40 random bits are compared with the chance, which is rounded *down* to a multiple of 2**-40, so a
    member is never chosen with a larger chance than the accounting assumes. The first eight bits
    decide for nearly all members. The other 32 bits are drawn only for the members that the first
    eight leave undecided, which takes half the time of drawing 32 bits for each member.

    Args:
        words: the source of random words.
        stream: the number of the random stream of an iterator.
        step: the number of the lot in this stream.
        members: how many numbers to choose from.
        expected: the numerator of the chance.
        out_of: the denominator of the chance.

    Returns:
        The chosen numbers in increasing order, int64 of shape [size of the lot].
    """
    if expected == out_of:
        return tf.range(members, dtype=tf.int64)
    first, rest = divmod((expected << 40) // out_of, 1 << 32)
    bits = tf.bitcast(words.words(stream, 2 * step, -(-members // 8), tf.uint64), tf.uint8)
    bits = tf.reshape(bits, [-1])[:members]
    first = tf.constant(first, tf.uint8)
    near = tf.where(bits <= first)[:, 0]
    more = words.words(stream, 2 * step + 1, tf.size(near), tf.uint32)
    chosen = (tf.gather(bits, near) < first) | (more < tf.constant(rest, tf.uint32))
    return tf.boolean_mask(near, chosen)
