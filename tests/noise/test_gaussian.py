"""Gaussian noise has the right scale, and no two draws share a number."""

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests.helpers import take_gpu_paths
from tests.noise.assertions import assert_normal, assert_unrelated
from tests.rounding import FUNCTION, assert_close
from tfdp.noise import NoiseSource, philox
from tfdp.noise.philox import uniforms_from_words

SHAPES = [(40, 50), (3000,), (1,)]


def draw(source, stddev=1.0, jit_compile=False, number=0):
    made = tf.function(
        lambda number: source.gaussians(number, stddev, SHAPES), jit_compile=jit_compile
    )
    return [n.numpy().ravel() for n in made(tf.constant(number, tf.int64))]


@pytest.mark.parametrize(("stddev", "jit_compile"), [(0.01, False), (30.0, True)])
def test_the_scale_is_accepted_and_others_are_rejected(stddev, jit_compile):
    for values in draw(NoiseSource(), stddev, jit_compile)[:2]:
        assert_normal(values, stddev)
        assert abs(values.mean()) < 6 * stddev / np.sqrt(len(values))


def test_steps_variables_and_sources_never_share_a_draw():
    sources = [NoiseSource(), NoiseSource(), NoiseSource(seed=1)]
    seen = np.concatenate([v for s in sources for step in range(3) for v in draw(s, number=step)])
    # Some of 60,000 normal float32 numbers are equal by chance. Overlapping streams repeat all.
    assert len(np.unique(seen)) > 0.98 * len(seen)
    assert_unrelated(draw(sources[0])[0], draw(sources[0], number=1)[0])


def test_global_seeds_do_not_reach_the_noise():
    first = []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        tf.random.set_seed(3)
        first.append(draw(NoiseSource())[0])
    assert np.mean(first[0] == first[1]) < 0.01  # a few float32 numbers may be equal by chance


@pytest.mark.parametrize("seed", [5, "five"])
def test_a_users_seed_reproduces_and_a_salt_changes_it(seed):
    np.testing.assert_array_equal(draw(NoiseSource(seed))[0], draw(NoiseSource(seed))[0])
    assert_unrelated(draw(NoiseSource(seed))[0], draw(NoiseSource(seed, (1, 0)))[0])
    assert NoiseSource(seed).seeded and not NoiseSource().seeded


def test_a_draw_is_a_function_of_key_and_number():
    """So replicas draw the same noise, and lost draws can be made again."""
    source = NoiseSource()
    again = NoiseSource.with_key(source.key)
    for number in (5, 2):
        for one, two in zip(draw(source, number=number), draw(again, number=number), strict=True):
            np.testing.assert_array_equal(one, two)


def test_large_draws_have_the_tails_of_a_gaussian_and_repeat_nothing():
    (values,) = NoiseSource(seed=3).gaussians(0, 1.0, [(16 << 18,)])
    values = values.numpy()
    # Two neighbours share a radius, and four a block of words.
    assert_unrelated(*values.reshape(-1, 32).T)
    assert_unrelated(*values.reshape(-1, 32).T ** 2)
    for beyond in (3.0, 4.0, 4.75):
        for side in (values > beyond, values < -beyond):
            expected = scipy.stats.norm.sf(beyond) * len(values)
            assert abs(side.sum() - expected) < 5 * np.sqrt(expected)


@pytest.mark.parametrize("further", [False, True])
def test_a_gpu_draws_the_same_numbers_without_a_loop(monkeypatch, further):
    """As a CPU does in a loop; also if the further words of rare numbers are used for all."""
    if further:
        monkeypatch.setattr(
            philox, "uniforms_from_words", lambda _, more: uniforms_from_words(more)
        )
    philox._compiled.cache_clear()  # and below: loops that use other words are of no use
    source, size = NoiseSource(seed=3), philox._COMPILED + 5
    (in_a_loop,) = source.gaussians(3, 1.0, [(size,)])
    take_gpu_paths(monkeypatch)
    (at_once,) = source.gaussians(3, 1.0, [(size,)])
    assert_close(at_once, in_a_loop, 4 * FUNCTION)
    philox._compiled.cache_clear()


def test_rare_numbers_have_the_tails_of_a_gaussian():
    """Of words below 2^11 and further ones: uniform, however small, and far beyond 6.8 deviations."""
    rng = np.random.default_rng(0)
    for words in (rng.integers(0, 2**11, 10**6), np.zeros(10**6, int)):
        more = rng.integers(0, 2**32, 10**6).astype(np.uint32)
        numbers = uniforms_from_words(words.astype(np.uint32), more).numpy().astype(float)
        top = 2.0**-21 if words.any() else 2.0**-32
        assert scipy.stats.kstest(numbers / top, "uniform").pvalue > 1e-6
        assert 0 < numbers.min() < 10 * top / len(numbers)
    assert np.sqrt(-2 * np.log(numbers.min())) > 8.0
    ends = uniforms_from_words(tf.constant([0, 2**32 - 1], tf.uint32)).numpy()
    assert ends.tolist() == [2.0**-33, 1.0]


def test_no_noise_is_no_noise():
    assert all(np.all(v == 0.0) for v in draw(NoiseSource(), 0.0))


@pytest.mark.parametrize(("size", "waits"), [(100, False), (2**18 + 1, False), (2**24 + 1, True)])
def test_only_large_noise_waits_for_the_sum_that_it_is_added_to(size, waits):
    with tf.Graph().as_default():
        total = tf.zeros([])
        with tf.control_dependencies([total]):
            left, seen = [NoiseSource(1).gaussians(0, 1.0, [(size,)])[0].op], set()
    while left:
        operation = left.pop()
        if operation not in seen:
            seen.add(operation)
            left += [*operation.control_inputs, *(tensor.op for tensor in operation.inputs)]
    assert (total.op in seen) == waits
