"""Gradient encoding: preselected vectors, and the box below one of them into which a gradient is cut.

Nasr, Shokri, Houmansadr 2020, Algorithm 2, with what is misprinted there put right: the vector is the
one of *largest* cosine similarity, and both it and the gradient count by magnitude, with the sign
put back.

Formal guarantee: sorted by magnitude, the entries of an encoded gradient are at most those of one
vector of the codebook, so its L2 norm is at most the clip norm and no entry is larger than the clip
norm times `Codebook.largest_entry`. Which vector was taken, and with what precision, does not matter to
that. Nothing is looked at but the gradient of one example.

The sorted magnitudes of a vector of n standard normal numbers are order statistics, and of these a
codebook holds only some thousand, each standing for a block of neighbouring ranks. It is therefore
of one size whatever the model is, and what is accounted are the vectors as they are held.
"""

import dataclasses
import functools
import math

import numpy as np
import tensorflow as tf
from scipy import special

from tfdp._validate import finite, whole

# The most ranks that are held of every vector; of shorter vectors all of them are.
_BLOCKS = 4096
# Magnitudes are told apart by sign-free float32 numbers cut to their leading 16 bits: 128 bins for
# every power of two, from 2^-44 to 2^20 in units of the clip norm.
_BINS_PER_OCTAVE, _OCTAVES, _LOWEST_OCTAVE = 128, 64, -44
_BINS = _BINS_PER_OCTAVE * _OCTAVES
# Gradients up to this long are sorted, which takes no longer then than counting into bins.
_SORTED = 1024
# Ranks and bins between which similarities are integrated.
_SCORE_BLOCKS, _SCORE_BINS = 256, 512
# Whole numbers up to 2^20: a thousand products of two of them add up exactly in float64.
_RESOLUTION = 2**20


@dataclasses.dataclass(frozen=True, eq=False)
class Codebook:
    """Vectors of L2 norm at most 1, given by their sorted magnitudes.

    Attributes:
        heights: float32 [vectors, blocks], each row sorted upwards.
        num_weights: length of the vectors.
        shift: each block stands for 2^shift neighbouring ranks, the last one for what is left.
        private: whether the vectors were fitted to private gradients, for which there is no proof.
    """

    heights: np.ndarray
    num_weights: int
    shift: int = 0
    private: bool = False

    def __post_init__(self):
        heights, blocks = self.heights, -(-self.num_weights >> self.shift)
        if heights.ndim != 2 or not heights.size or heights.shape[1] != blocks:
            raise ValueError(
                f"Expected the heights of a codebook as [vectors, {blocks}], with a block for each "
                f"2^{self.shift} of {self.num_weights} ranks. Received the shape {heights.shape}."
            )
        sorted_upwards = np.all(heights[:, :1] >= 0) and np.all(np.diff(heights, axis=1) >= 0)
        if not (sorted_upwards and np.all(self.square_norms() <= 1)):
            raise ValueError(
                "Expected vectors of norm at most 1, given by magnitudes that are sorted upwards. "
                "Received others. Use Codebook.gaussian or Codebook.of."
            )

    @classmethod
    def gaussian(
        cls,
        size: int,
        num_weights: int,
        *,
        zero_below: float = 1e-5,
        seed: int = 0,
        most_blocks: int = _BLOCKS,
    ) -> "Codebook":
        """Vectors of standard normal numbers, drawn with a public seed and scaled to norm 1.

        A block has the value of its middle rank, drawn by the law of order statistics of normal
        numbers; where every rank has a block, this is sorting `num_weights` of them.

        Args:
            size: number of vectors, at least 1.
            num_weights: length of the vectors, at least 1.
            zero_below: magnitudes below this, before scaling, become zero.
            seed: decides what is drawn. It is no secret.
            most_blocks: how many ranks to hold, at most.
        """
        check_drawing(size, zero_below)
        shift = max(0, math.ceil(math.log2(num_weights / most_blocks)))
        edges = _edges(num_weights, 2**shift)
        ranks = (edges[:-1] + edges[1:] - 1) // 2
        # Order statistics of uniform numbers are partial sums of exponentials over their total.
        gaps = np.diff(ranks, prepend=-1, append=num_weights)
        sums = np.cumsum(
            np.random.default_rng(seed).standard_gamma(gaps, (size, len(gaps))), axis=1
        )
        beyond = 1.0 - sums[:, :-1] / sums[:, -1:]
        magnitudes = -special.ndtri(np.clip(beyond, 1e-300, 1.0) / 2)
        magnitudes[magnitudes < zero_below] = 0.0
        return cls(_normalized(magnitudes, np.diff(edges)), num_weights, shift)

    @classmethod
    def of(cls, vectors: np.ndarray, *, private: bool = False) -> "Codebook":
        """Given vectors, scaled to norm 1; order and signs of their entries do not matter.

        Args:
            vectors: [vectors, weights], finite, none of them zero.
            private: whether they were fitted to private gradients.
        """
        vectors = np.sort(np.abs(np.asarray(vectors, float)), axis=-1)
        if vectors.ndim != 2 or not np.all(np.isfinite(vectors)):
            raise ValueError(
                "Invalid value received for argument `codebook`. Expected finite numbers of the shape "
                f"[vectors, weights]. Received the shape {vectors.shape}."
            )
        return cls(_normalized(vectors, 1), vectors.shape[1], private=private)

    @property
    def widths(self) -> np.ndarray:
        """How many ranks each block stands for."""
        return np.diff(_edges(self.num_weights, 2**self.shift))

    def square_norms(self) -> np.ndarray:
        """float64 [vectors]: squared L2 norms of the vectors."""
        return np.square(self.heights, dtype=float) @ self.widths

    @property
    def largest_entry(self) -> float:
        """Largest entry of any vector, in units of the clip norm."""
        return float(self.heights.max())

    def vectors(self) -> np.ndarray:
        """float32 [vectors, num_weights]: the sorted magnitudes, written out."""
        return np.repeat(self.heights, self.widths, axis=1)

    @functools.cached_property
    def score_weights(self) -> np.ndarray:
        """float64 [vectors, blocks'] with fewer blocks: means of unit vectors, for choosing one."""
        edges = _edges(self.num_weights, 2**self.shift)
        sums = np.pad(np.cumsum(self.heights * self.widths, axis=1, dtype=float), ((0, 0), (1, 0)))
        ends = score_edges(self.num_weights)
        block = np.searchsorted(edges, ends, side="right") - 1
        inside = np.minimum(block, self.heights.shape[1] - 1)
        at_ends = sums[:, block] + (ends - edges[block]) * self.heights[:, inside]
        means = np.diff(at_ends, axis=1) / np.diff(ends)
        return means / np.sqrt(self.square_norms())[:, None]


def check_drawing(size: int, zero_below: float) -> None:
    """Refuses a codebook that cannot be drawn."""
    whole("codebook_size", size, 1)
    finite("zero_below", zero_below, 0)


def _edges(num_weights: int, width: int) -> np.ndarray:
    """First ranks of blocks of some width, and the number of ranks."""
    return np.append(np.arange(0, num_weights, width), num_weights)


def score_edges(num_weights: int) -> np.ndarray:
    """Ranks between which similarities are integrated."""
    return _edges(num_weights, -(-num_weights // _SCORE_BLOCKS))


def _normalized(magnitudes: np.ndarray, widths) -> np.ndarray:
    """Scales rows to norm 1 and rounds towards zero, so that no norm exceeds 1."""
    norms = np.sqrt(np.sum(np.square(magnitudes) * widths, axis=1, keepdims=True))
    if not np.all(norms > 0):
        raise ValueError(
            "Expected every vector of the codebook to have an entry above 0. Received one of zeros: "
            "lower `zero_below`, or leave that vector out."
        )
    return _towards_zero(magnitudes / norms * (1 - 1e-12))


def _towards_zero(values: np.ndarray) -> np.ndarray:
    """float32 numbers that are at most `values` (>= 0)."""
    rounded = values.astype(np.float32)
    return np.where(rounded > values, np.nextafter(rounded, np.float32(0)), rounded)


class Encoder:
    """Encodes gradients, one per row, with a codebook at a clip norm.

    Args:
        codebook: the vectors.
        l2_norm_clip: C > 0, the largest norm of an encoded gradient.
    """

    def __init__(self, codebook: Codebook, l2_norm_clip: float):
        self.codebook = codebook
        self.l2_norm_clip = float(l2_norm_clip)
        boxes = _towards_zero(codebook.heights.astype(float) * self.l2_norm_clip)
        # Above what float32 tells from zero, whatever the clip norm is.
        lowest = math.frexp(self.l2_norm_clip)[1] - 1 + _LOWEST_OCTAVE
        self._first_bin = max(127 + lowest, 1) * _BINS_PER_OCTAVE
        with tf.init_scope():  # held once, not in every graph
            self._boxes = tf.constant(boxes)
            self._score_weights = tf.constant(_whole_numbers(codebook.score_weights))

    def encode(self, rows: tf.Tensor) -> tf.Tensor:
        """Encodes finite gradients, in the way that is faster for gradients of this length.

        Args:
            rows: float32 [rows, num_weights].
        """
        sort = self.codebook.num_weights <= _SORTED
        return self.encode_sorted(rows) if sort else self.encode_by_bins(rows)

    def encode_by_bins(self, rows: tf.Tensor) -> tf.Tensor:
        """Encodes finite gradients without sorting them.

        Ranks are decided by leading bits: entries whose magnitudes agree to 7 bits after the leading
        one count as ties, and all ties take the lowest of their ranks. So an encoded entry is never
        above the one that sorting gives it, and the box is kept. For 61,706 weights it takes a tenth of
        the time.

        Args:
            rows: float32 [rows, num_weights].
        """
        magnitudes = tf.abs(rows)
        bins = tf.bitwise.right_shift(tf.bitcast(magnitudes, tf.int32), 16)
        bins = tf.clip_by_value(bins - self._first_bin, 0, _BINS - 1)
        # `tf.math.bincount` computes the number of bins, which XLA has to know beforehand.
        counts = tf.raw_ops.DenseBincount(
            input=bins, size=_BINS, weights=tf.constant([], tf.int32), binary_output=False
        )
        counts = tf.ensure_shape(counts, [None, _BINS])
        first_ranks = tf.cumsum(counts, axis=1, exclusive=True)
        chosen = self._most_similar(self._block_sums(counts, first_ranks))
        boxes = self._at_ranks(chosen, first_ranks)
        number = tf.range(tf.shape(rows)[0])[:, tf.newaxis]
        box = tf.gather(tf.reshape(boxes, [-1]), bins + number * _BINS)
        return tf.clip_by_value(rows, -box, box)

    def encode_sorted(self, rows: tf.Tensor) -> tf.Tensor:
        """Encodes finite gradients by sorting every one: Algorithm 2 to the letter.

        Args:
            rows: float32 [rows, num_weights].
        """
        magnitudes = tf.abs(rows)
        order = tf.argsort(magnitudes, axis=1, stable=True)
        ordered = tf.gather(magnitudes, order, batch_dims=1)
        ordered = tf.ensure_shape(ordered, [None, self.codebook.num_weights])
        ranks = tf.broadcast_to(tf.range(self.codebook.num_weights), tf.shape(rows))
        blocks = self.codebook.heights.shape[1]
        rest = tf.pad(ordered, [[0, 0], [0, (blocks << self.codebook.shift) - ordered.shape[1]]])
        per_block = tf.reduce_sum(tf.reshape(rest, [-1, blocks, 1 << self.codebook.shift]), axis=2)
        norms = np.sqrt(self.codebook.square_norms())[:, np.newaxis]
        chosen = self._most_similar(per_block, _whole_numbers(self.codebook.heights / norms))
        bounded = tf.minimum(ordered, self._at_ranks(chosen, ranks))
        number = tf.range(tf.shape(rows)[0])[:, tf.newaxis] * self.codebook.num_weights
        place = tf.reshape(order + number, [-1, 1])
        back = tf.scatter_nd(place, tf.reshape(bounded, [-1]), [tf.size(rows)])
        return tf.sign(rows) * tf.reshape(back, tf.shape(rows))

    def _block(self, ranks):
        # In an empty bin beyond the last entry the rank is num_weights.
        last = self.codebook.heights.shape[1] - 1
        return tf.minimum(tf.bitwise.right_shift(ranks, self.codebook.shift), last)

    def _at_ranks(self, chosen, ranks):
        """Entries of the vectors `chosen` [rows] at `ranks` [rows, ...], in gradient units."""
        size, blocks = self.codebook.heights.shape
        kind = tf.int64 if size * blocks >= 2**31 else tf.int32
        place = tf.cast(chosen, kind)[:, tf.newaxis] * blocks + tf.cast(self._block(ranks), kind)
        return tf.gather(tf.reshape(self._boxes, [-1]), place)

    def _block_sums(self, counts, first_ranks):
        """Sums of the sorted magnitudes between `score_edges`, from how many are in each bin."""
        bits = (np.arange(_BINS) + self._first_bin << 16) + (1 << 15)
        middle = np.minimum(bits, 0x7F7FFFFF).astype(np.int32).view(np.float32)
        middle[0] = 0.0  # whatever is smaller, zeros above all
        every = _BINS // _SCORE_BINS

        def at_ends(cumulative, total):
            return tf.concat([cumulative[:, ::every], total], axis=1)

        sums = tf.cumsum(tf.cast(counts, tf.float32) * middle, axis=1)
        sums = at_ends(tf.pad(sums[:, :-1], [[0, 0], [1, 0]]), sums[:, -1:])
        size = tf.fill([tf.shape(counts)[0], 1], self.codebook.num_weights)
        ranks = tf.cast(at_ends(first_ranks, size), tf.float32)
        ends = tf.constant(score_edges(self.codebook.num_weights), tf.float32)
        ends = tf.tile(ends[tf.newaxis], [tf.shape(counts)[0], 1])
        above = tf.searchsorted(ranks, ends, side="right")
        above = tf.clip_by_value(above, 1, _SCORE_BINS)

        def around(values):
            return tf.gather(values, above - 1, batch_dims=1), tf.gather(
                values, above, batch_dims=1
            )

        (rank, next_rank), (total, next_total) = around(ranks), around(sums)
        part = (ends - rank) / tf.maximum(next_rank - rank, 1.0)
        total += tf.minimum(part, 1.0) * (next_total - total)
        return total[:, 1:] - total[:, :-1]

    def _most_similar(self, sums, weights=None):
        """The number of the most similar vector for each row.

        In whole numbers that float64 adds exactly: rounding that depended on what else is in the lot
        would let one example decide about the vector of another.

        Args:
            sums: float32 [rows, n], >= 0.
            weights: float64 [vectors, n], whole numbers; those of the score blocks if None.
        """
        largest = tf.reduce_max(sums, axis=1, keepdims=True)
        parts = tf.cast(sums / tf.maximum(largest, 1e-37), tf.float64)
        parts = tf.round(parts * (_RESOLUTION - 1))
        weights = self._score_weights if weights is None else weights
        similarities = tf.matmul(parts, weights, transpose_b=True)
        return tf.argmax(similarities, axis=1, output_type=tf.int32)


def _whole_numbers(weights: np.ndarray) -> np.ndarray:
    return np.round(weights / weights.max() * (_RESOLUTION - 1))
