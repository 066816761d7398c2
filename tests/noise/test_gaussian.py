"""Gaussian noise has the right scale, and no two draws share a number."""

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tfdp.noise import NoiseSource
from tfdp.noise import gaussian as noise_module

SHAPES = [(40, 50), (3000,), (1,)]


def drawer(source, stddev=1.0, jit_compile=False):
    step = tf.function(lambda: source.gaussians(stddev, SHAPES), jit_compile=jit_compile)
    return lambda: [n.numpy().ravel() for n in step()]


def draw(source, stddev=1.0, jit_compile=False):
    return drawer(source, stddev, jit_compile)()


def accepts(values, stddev):
    """Chi-square test of the variance and Kolmogorov-Smirnov test of the shape."""
    square = float((values.astype(float) ** 2).sum()) / stddev**2
    tail = scipy.stats.chi2(len(values))
    shape = scipy.stats.kstest(values / stddev, "norm").pvalue
    return min(tail.cdf(square), tail.sf(square), shape) > 1e-9


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("stddev", [0.01, 1.0, 30.0])
def test_the_scale_is_accepted_and_others_are_rejected(stddev, jit_compile):
    for values in draw(NoiseSource(), stddev, jit_compile)[:2]:
        assert accepts(values, stddev)
        assert not accepts(values, stddev * 2 / 3)
        assert not accepts(values, stddev * 3 / 2)
        assert abs(values.mean()) < 6 * stddev / np.sqrt(len(values))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_steps_variables_and_sources_never_share_a_draw(jit_compile):
    sources = [NoiseSource(), NoiseSource(), NoiseSource(seed=1)]
    drawers = [drawer(source, 1.0, jit_compile) for source in sources]
    seen = np.concatenate([v for d in drawers for _ in range(3) for v in d()])
    # Some of 60,000 normal float32 numbers are equal by chance. Overlapping streams repeat all.
    assert len(np.unique(seen)) > 0.98 * len(seen)
    a, b = draw(sources[0]), draw(sources[0])
    assert abs(np.corrcoef(a[0], b[0])[0, 1]) < 0.14


def test_global_seeds_do_not_reach_the_noise():
    first = []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        tf.random.set_seed(3)
        first.append(draw(NoiseSource())[0])
    assert np.mean(first[0] == first[1]) < 0.01  # a few float32 numbers may be equal by chance


@pytest.mark.parametrize("seed", [5, "five"])
def test_a_users_seed_reproduces(seed):
    a, b = NoiseSource(seed), NoiseSource(seed)
    for _ in range(2):
        np.testing.assert_array_equal(draw(a)[0], draw(b)[0])
    assert a.seeded and not NoiseSource().seeded


def test_a_resumed_source_skips_what_was_drawn():
    a, b = NoiseSource(4), NoiseSource(4)
    draws = [draw(a)[0] for _ in range(3)]
    b.advance_to(2)
    np.testing.assert_array_equal(draw(b)[0], draws[2])
    b.advance_to(1)  # the number of steps never decreases
    assert not np.any(draw(b)[0] == draws[1])


@pytest.mark.parametrize("piece", [8, 10, 64])
def test_pieces_and_draws_address_words_of_their_own(monkeypatch, piece):
    monkeypatch.setattr(noise_module, "_PIECE", piece)
    addressed, lengths = set(), []

    def normal(high, block, count, stddev):
        words = 2 * -(-count // 2)
        blocks = {(int(high), block + i) for i in range(-(-words // 4))}
        assert not blocks & addressed
        addressed.update(blocks)
        lengths.append(count)
        return tf.zeros([count])

    source = NoiseSource()
    source._normal = normal
    shapes = [(3,), (2, 2), (), (0,), (70,), (5, 1), (1,)]
    for _ in range(2):
        assert [n.shape for n in source.gaussians(1.0, shapes)] == list(shapes)
    assert sum(lengths) == 2 * 84
    assert max(lengths) <= piece


def test_pieces_keep_the_distribution_and_share_no_number(monkeypatch):
    monkeypatch.setattr(noise_module, "_PIECE", 1000)
    values = np.concatenate(draw(NoiseSource(seed=2), 2.0))
    assert accepts(values, 2.0)
    assert not accepts(values, 2.0 * 2 / 3)
    assert len(np.unique(values)) > 0.999 * len(values)


def test_tails_are_those_of_a_gaussian():
    (values,) = NoiseSource(seed=3).gaussians(1.0, [(4_000_000,)])
    values = values.numpy()
    for beyond in (3.0, 4.0, 4.75):
        for side in (values > beyond, values < -beyond):
            expected = scipy.stats.norm.sf(beyond) * len(values)
            assert abs(side.sum() - expected) < 5 * np.sqrt(expected)


def test_tiny_noise_does_not_vanish():
    (values,) = NoiseSource(seed=4).gaussians(1e-25, [(2000,)])
    assert accepts(values.numpy().astype(float), 1e-25)


def test_no_noise_is_no_noise():
    assert all(np.all(v == 0.0) for v in draw(NoiseSource(), 0.0))
