"""Gaussian noise has the right scale, and no two draws share a number."""

import os

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests.noise.assertions import assert_normal, assert_unrelated
from tfdp.noise import NoiseSource

SHAPES = [(40, 50), (3000,), (1,)]


def drawer(source, stddev=1.0, jit_compile=False):
    step = tf.function(lambda: source.gaussians(stddev, SHAPES), jit_compile=jit_compile)
    return lambda: [n.numpy().ravel() for n in step()]


def draw(source, stddev=1.0, jit_compile=False):
    return drawer(source, stddev, jit_compile)()


@pytest.mark.parametrize(("stddev", "jit_compile"), [(0.01, False), (30.0, True)])
def test_the_scale_is_accepted_and_others_are_rejected(stddev, jit_compile):
    for values in draw(NoiseSource(), stddev, jit_compile)[:2]:
        assert_normal(values, stddev)
        assert abs(values.mean()) < 6 * stddev / np.sqrt(len(values))


def test_steps_variables_and_sources_never_share_a_draw():
    sources = [NoiseSource(), NoiseSource(), NoiseSource(seed=1)]
    drawers = [drawer(source) for source in sources]
    seen = np.concatenate([v for d in drawers for _ in range(3) for v in d()])
    # Some of 60,000 normal float32 numbers are equal by chance. Overlapping streams repeat all.
    assert len(np.unique(seen)) > 0.98 * len(seen)
    assert_unrelated(draw(sources[0])[0], draw(sources[0])[0])


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


def test_large_draws_have_the_tails_of_a_gaussian_and_repeat_nothing():
    (values,) = NoiseSource(seed=3).gaussians(1.0, [(4_000_000,)])
    values = values.numpy()
    # Many numbers are made piece by piece, 2^18 at a time.
    assert_unrelated(*values[: 15 << 18].reshape(15, -1))
    for beyond in (3.0, 4.0, 4.75):
        for side in (values > beyond, values < -beyond):
            expected = scipy.stats.norm.sf(beyond) * len(values)
            assert abs(side.sum() - expected) < 5 * np.sqrt(expected)


def test_no_noise_is_no_noise():
    assert all(np.all(v == 0.0) for v in draw(NoiseSource(), 0.0))


@pytest.mark.parametrize("seed", [None, 3])
def test_a_forked_process_has_a_key_of_its_own_without_a_seed(monkeypatch, seed):
    source = NoiseSource(seed)
    before, _ = source.state()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    source.renew_after_fork()
    assert np.array_equal(before, source.state()[0]) == (seed is not None)
