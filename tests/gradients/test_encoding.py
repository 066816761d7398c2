"""Encoding is the paper's Algorithm 2, and an encoded gradient never leaves its box."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rounding import FUNCTION, assert_close, rounding
from tfdp.gradients.encoding import Codebook, Encoder


def algorithm_2(gradient, vectors, clip):
    """The paper's loop for one gradient, corrected to use the largest similarity and magnitudes."""
    order = np.argsort(np.abs(gradient), kind="stable")
    ordered = np.abs(gradient)[order].astype(float)
    best, most = None, -np.inf
    for vector in vectors.astype(float):
        similarity = vector @ ordered / np.linalg.norm(vector)
        if similarity > most:
            best, most = vector * clip, similarity
    encoded = np.zeros(len(gradient))
    for t, i in enumerate(order):
        encoded[i] = min(best[t], max(gradient[i], -best[t]))
    return encoded


def gradients(rows, size, seed=0, scale=0.3):
    draw = np.random.default_rng(seed)
    return (scale * draw.standard_t(2, size=(rows, size))).astype(np.float32)


def in_a_box(encoded, codebook, clip):
    """Whether the sorted magnitudes are at most those of one vector, the premise of the theorem."""
    ordered = np.sort(np.abs(encoded), axis=1)[:, np.newaxis]
    boxes = codebook.vectors().astype(float) * clip
    return np.any(np.all(ordered <= boxes, axis=2), axis=1)


@pytest.mark.parametrize("clip", [1e-9, 1.0, 1e9])
def test_where_leading_bits_tell_entries_apart_nothing_needs_sorting(clip):
    # The entries differ by 2% and have a random order and random signs.
    draw = np.random.default_rng(1)
    rows = np.stack([draw.permutation(1.02 ** np.arange(-600, 100.0)) for _ in range(4)])
    rows = (0.02 * clip * rows * draw.choice([-1, 1], rows.shape)).astype(np.float32)
    codebook = Codebook.gaussian(1, 700)
    found = tf.function(Encoder(codebook, clip).encode, autograph=False)(tf.constant(rows))
    for row, encoded in zip(rows, found.numpy(), strict=True):
        expected = algorithm_2(row, codebook.vectors(), clip)
        assert_close(encoded, expected, 1)
        assert 0.01 < np.mean(encoded != row) < 1.0


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=True)


@settings(max_examples=60, deadline=None)
@given(
    row=st.lists(numbers, min_size=7, max_size=7),
    clip=st.sampled_from([1e-6, 0.3, 2.0, 1e6]),
    size=st.sampled_from([1, 5]),
    blocks=st.sampled_from([3, 7]),
)
def test_whatever_the_gradient_the_box_is_kept(row, clip, size, blocks):
    codebook = Codebook.gaussian(size, 7, most_blocks=blocks, seed=3)
    encoder = Encoder(codebook, clip)
    rows = tf.constant([row], tf.float32)
    encoded = encoder.encode(rows).numpy().astype(float)
    assert in_a_box(encoded, codebook, clip)
    assert np.all(np.abs(encoded) <= np.abs(row))
    assert np.all(encoded * np.array(row) >= 0)
    assert np.linalg.norm(encoded) <= clip
    assert np.abs(encoded).max() <= codebook.largest_entry * clip


def test_the_most_similar_vector_is_chosen():
    flat, steep, middle = np.ones(400), np.linspace(0, 1, 400) ** 8, np.linspace(0, 1, 400)
    codebook = Codebook.of(np.stack([flat, steep, middle]))
    draw = np.random.default_rng(0)
    rows = np.stack([draw.permutation(v) for v in (steep, flat, middle, steep)]).astype(np.float32)
    rows *= 100 * draw.choice([-1, 1], rows.shape)
    encoded = Encoder(codebook, 1.0).encode(tf.constant(rows)).numpy()
    # An encoded gradient far above the box equals the vector, except for order and signs.
    for row, vector in zip(encoded, (1, 0, 2, 1), strict=True):
        distance = np.linalg.norm(np.sort(np.abs(row)) - codebook.vectors(), axis=1)
        assert np.argmin(distance) == vector


def test_other_rows_have_no_say():
    encode = Encoder(Codebook.gaussian(300, 700), 1.0).encode
    rows = tf.constant(gradients(33, 700, scale=0.02))
    together = encode(rows).numpy()
    for start, stop in ((0, 1), (5, 6), (1, 33), (0, 17), (32, 33)):
        np.testing.assert_array_equal(encode(rows[start:stop]), together[start:stop])


@pytest.mark.parametrize(("size", "blocks"), [(1, 4096), (7, 7), (1000, 64)])
def test_a_drawn_codebook_has_unit_vectors(size, blocks):
    codebook = Codebook.gaussian(30, size, most_blocks=blocks)
    norms = np.linalg.norm(codebook.vectors().astype(float), axis=1)
    assert np.all(norms <= 1)
    assert np.all(norms > 1 - rounding(size))
    assert_close(codebook.square_norms(), norms**2, size, each=True, dtype="float64")
    assert codebook.vectors().shape == (30, size)
    assert codebook.largest_entry == codebook.vectors().max()


@pytest.mark.parametrize("blocks", [400, 50])
def test_vectors_are_sorted_magnitudes_of_normal_numbers(blocks):
    codebook = Codebook.gaussian(50, 400, most_blocks=blocks)
    pooled = codebook.vectors().ravel() * np.sqrt(400)
    assert scipy.stats.kstest(pooled, scipy.stats.halfnorm.cdf).statistic < 0.015
    if blocks == 400:  # then the vectors have the law of the largest entries
        largest = codebook.vectors().max(axis=1) * np.sqrt(400)
        law = scipy.stats.kstest(largest, lambda x: scipy.stats.halfnorm.cdf(x) ** 400)
        assert law.pvalue > 1e-4


def test_vectors_differ_by_seed_and_are_no_secret():
    one, same, other = (Codebook.gaussian(2, 40, seed=s).heights for s in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert not np.any(one == other)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Codebook.gaussian(0, 5),
        lambda: Codebook.gaussian(2, 5, zero_below=float("nan")),
        lambda: Codebook.of(np.zeros((1, 3))),
        lambda: Codebook.of(np.array([[1.0, np.nan]])),
        lambda: Codebook(np.array([[0.9, 0.9]], np.float32), 2),  # longer than one
        lambda: Codebook(np.array([[0.8, 0.6]], np.float32), 2),  # not sorted
    ],
)
def test_bad_codebooks_are_refused(make):
    with pytest.raises(ValueError):
        make()


def test_given_vectors_are_scaled_to_norm_one():
    codebook = Codebook.of(np.array([[3.0, -4.0], [-5.0, 0.0]]))
    assert_close(codebook.vectors(), [[0.6, 0.8], [0.0, 1.0]], 2 + 2 * FUNCTION)
