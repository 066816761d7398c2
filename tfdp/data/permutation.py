"""Random orders of data sets that are too large to sort.

`KeyedPermutation` computes the order, and `LotSizes` the sizes of randomly allocated lots, for the
units of one lot only. Time and memory do not grow with the data.

The order is random if SipHash behaves like a random function. The statement of a run names this
assumption if its guarantee needs it.
"""

import functools
import math

import numpy as np

from tfdp.data.draws import Binomial
from tfdp.data.words import SIZES, Words

# Luby and Rackoff (1988): four rounds of random functions make a permutation that is indistinguishable
# from a random one; two more, because all of its values are used.
ROUNDS = 6


def siphash(secret: bytes, *words: np.ndarray | int) -> np.ndarray:
    """Computes SipHash-2-4 (Aumasson and Bernstein, 2012) of messages of 64-bit words.

    Args:
        secret: Key of 16 bytes.
        *words: The words of the messages, integers or uint64 arrays of shapes that broadcast.

    Returns:
        The hashes, uint64 of the broadcast shape.
    """
    key = np.frombuffer(secret, "<u8")
    start = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    v = [np.uint64(constant) ^ key[i % 2] for i, constant in enumerate(start)]
    length = np.uint64((8 * len(words) % 256) << 56)
    with np.errstate(over="ignore"):
        for word in (*(np.asarray(word, np.uint64) for word in words), length):
            v[3] = v[3] ^ word
            v = _rounds(v, 2)
            v[0] = v[0] ^ word
        v[2] = v[2] ^ np.uint64(0xFF)
        a, b, c, d = _rounds(v, 4)
    return a ^ b ^ c ^ d


def _rounds(v, number):
    a, b, c, d = v
    for _ in range(number):
        a, c = a + b, c + d
        b, d = _rotated(b, 13) ^ a, _rotated(d, 16) ^ c
        a, c = _rotated(a, 32) + d, c + b
        b, d = _rotated(b, 17) ^ c, _rotated(d, 21) ^ a
        c = _rotated(c, 32)
    return [a, b, c, d]


def _rotated(word, places):
    return word << np.uint64(places) | word >> np.uint64(64 - places)


class KeyedPermutation:
    """A permutation of 0, ..., count - 1 that can be computed at single places.

    It is a Feistel network on pairs of digits (Black and Rogaway, "Ciphers with arbitrary finite
    domains", 2002). The base of the digits is the smallest number whose square is not below `count`,
    and the round function is SipHash. Values of at least `count` are permuted again.

    Args:
        secret: Key of 16 bytes.
        count: Number of elements, at most 2**62.
    """

    def __init__(self, secret: bytes, count: int):
        self._secret, self._count = secret, count
        self._base = np.uint64(math.isqrt(count - 1) + 1)

    def at(self, places: np.ndarray) -> np.ndarray:
        """Returns the elements at these places, int64."""
        found = np.asarray(places).astype(np.uint64)
        outside = np.arange(len(found))
        while len(outside):
            found[outside] = self._permuted(found[outside])
            outside = outside[found[outside] >= self._count]
        return found.astype(np.int64)

    def _permuted(self, values):
        left, right = values // self._base, values % self._base
        for number in range(ROUNDS):
            mixed = siphash(self._secret, right | np.uint64(number << 56))
            left, right = right, (left + mixed % self._base) % self._base
        return left * self._base + right


class LotSizes:
    """The sizes of lots, if each of `count` units joins one lot uniformly and independently.

    The lots are halved recursively. The number of units in a left half is binomial and drawn from its
    own words. So the size of a lot is computed without the sizes of all earlier lots.

    Args:
        words, stream, epoch: The random words, and the stream and epoch to take them from.
        count: Number of units.
        lots: Number of lots.
    """

    def __init__(self, words: Words, stream: int, epoch: int, count: int, lots: int):
        self._bits = functools.partial(words.bits, stream, epoch)
        self._count, self._lots = count, lots
        self._in_left_half = functools.lru_cache(maxsize=64)(self._drawn)

    def lot(self, number: int) -> tuple[int, int]:
        """Returns the number of units in earlier lots, and the number in this lot."""
        first, last, before, inside, node = 0, self._lots, 0, self._count, 1
        while last - first > 1:
            middle = (first + last) // 2
            left = self._in_left_half(node, inside, middle - first, last - first)
            if number < middle:
                last, inside, node = middle, left, 2 * node
            else:
                first, before, inside, node = middle, before + left, inside - left, 2 * node + 1
        return before, inside

    def _drawn(self, node, inside, left, both):
        purpose = SIZES | node << 8
        return Binomial(inside, (left, both)).draw(self._bits(purpose=purpose))
