"""Secret random words: a pure function of (secret, purpose, stream, position).

Formal guarantees:

* The secret has 128 bits, from the operating system's entropy unless a seed is given, and never from
  the global seeds of NumPy, TensorFlow or Keras, which are meant to be known.
* Words of different purposes, streams or positions never overlap: each has its own 2**64 blocks of
  Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
* The words are the same in every version of NumPy, whose bit generators have a fixed stream.
"""

import collections
import hashlib
import itertools
import threading
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

# Purposes of the words of a place.
LOT, ORDER, SIZES, VIEWS, PEOPLE, SECRET = range(6)


def derived(key: bytes, purpose: str) -> bytes:
    """Returns 16 bytes for a purpose, computed from a key; they do not reveal the key."""
    return hashlib.sha256(key + purpose.encode()).digest()[:16]


class Bits:
    """The sequence of random words at one place: a purpose, a stream and a position.

    Args:
        generator: A bit generator of NumPy.
    """

    def __init__(self, generator: np.random.BitGenerator):
        self._generator = generator

    def words(self, count: int) -> np.ndarray:
        """Returns the next words, uint64 of shape [count]."""
        return self._generator.random_raw(count)

    def below(self, limit: int, count: int) -> np.ndarray:
        """Returns independent uniform integers from 0 to limit - 1, uint64 of shape [count].

        Words are cut to the bits that `limit` needs, and rejected if they are too large. So all
        integers are exactly equally likely.
        """
        mask = np.uint64((1 << (limit - 1).bit_length()) - 1)
        found = np.empty(count, np.uint64)
        done = 0
        while done < count:
            # At least half of the words are kept.
            words = self.words(min(2 * (count - done), _BLOCK)) & mask
            kept = words[words < limit][: count - done]
            found[done : done + len(kept)] = kept
            done += len(kept)
        return found


# Number of words that are generated at once, so that temporary arrays stay small.
_BLOCK = 1 << 18


class Words:
    """Random words of one secret, in numbered streams.

    Args:
        secret: 16 bytes.
        streams: Whether each iterator over lots has its own stream. False uses stream 0 only, so
            that another process can continue the sequence.
    """

    def __init__(self, secret: bytes, streams: bool = True):
        self._key = np.frombuffer(secret, "<u8").astype(np.uint64)
        self._streams = itertools.count(1) if streams else itertools.repeat(0)
        self._made: collections.OrderedDict[Hashable, tuple[int, Any]] = collections.OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def of_seed(cls, seed: int | None) -> "Words":
        """Makes words from a seed, a non-negative integer. None uses the operating system's entropy."""
        state = np.random.SeedSequence(seed).generate_state(2, np.uint64)
        return cls(state.astype("<u8").tobytes())

    def new_stream(self) -> int:
        """Returns the number of the next stream."""
        return next(self._streams)

    def new_secret(self) -> bytes:
        """Returns 16 bytes for other `Words`, from a new stream."""
        return self.secret(self.new_stream())

    def secret(self, stream: int, position: int = 0, purpose: int = SECRET) -> bytes:
        """Returns 16 secret bytes of a place."""
        return self.bits(stream, position, purpose).words(2).astype("<u8").tobytes()

    def bits(self, stream: int, position: int, purpose: int = LOT) -> Bits:
        """Returns the random words at a place.

        Args:
            stream: Number of the stream.
            position: Place in the stream (a step, an epoch), below 2**64.
            purpose: What the words are for, below 2**64.
        """
        counter = np.array([0, position, stream, purpose], np.uint64)
        return Bits(np.random.Philox(key=self._key, counter=counter))

    def of_epoch(self, key: Hashable, epoch: int, make: Callable[[], Any]) -> Any:
        """Returns `make()` for an epoch, and computes it only once.

        The newest epoch of each of two keys is kept. So two iterators can take turns, with one order of
        all units in memory for each.
        """
        with self._lock:
            kept, made = self._made.pop(key, (None, None))
            if kept != epoch:
                del made
                made = make()
            self._made[key] = epoch, made
            if len(self._made) > 2:
                self._made.popitem(last=False)
            return made
