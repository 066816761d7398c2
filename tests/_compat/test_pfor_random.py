"""Random numbers inside `tf.vectorized_map`: own ones for each row, which no other row can change."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.rounding import assert_close, terms_of
from tfdp._compat import pfor_random
from tfdp._compat.pfor_map import vectorized_map
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import exact, ghost
from tfdp.gradients.forward import Forward

SAMPLERS = {
    "normal": lambda seed: tf.random.stateless_normal([4], seed),
    "uniform": lambda seed: tf.random.stateless_uniform([4], seed),
    "integers": lambda seed: tf.random.stateless_uniform([4], seed, maxval=9999, dtype=tf.int32),
    "truncated": lambda seed: tf.random.stateless_truncated_normal([4], seed),
    "gamma": lambda seed: tf.random.stateless_gamma([4], seed, alpha=[1.0, 2.0, 3.0, 4.0]),
    "through_a_function": lambda seed: tf.function(tf.random.stateless_normal)([4], seed),
    "parameters_of_the_row": lambda seed: tf.random.stateless_uniform(
        [4], seed, 0, tf.cast(seed[1], tf.int32) + 9999, tf.int32
    ),
}

LOOPED = ("gamma", "parameters_of_the_row", "truncated")  # one row after the other


def vectorized(draw, seeds, own):
    def one(seed):
        if own:
            pfor_random.mark_own_seeds([seed], [seeds[0]], tf.constant(0))
        return draw(tf.cast(seed, tf.int64))

    @tf.function
    def run(seeds):
        return vectorized_map(one, seeds)

    return run.get_concrete_function(seeds), run(seeds).numpy()


@pytest.mark.parametrize("name", SAMPLERS)
def test_rows_draw_numbers_of_their_own_from_own_seeds(name):
    seeds = pfor_random.seeds_of_rows(tf.constant([1, 2], tf.uint32), tf.range(50))
    graph, drawn = vectorized(SAMPLERS[name], seeds, own=True)
    assert drawn.shape == (50, 4) and len(np.unique(drawn)) > 190
    kinds = {operation.type for operation in graph.graph.get_operations()}
    assert bool(kinds & {"While", "StatelessWhile"}) == (name in LOOPED)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_seed_that_is_data_gives_a_row_what_it_draws_alone(name):
    seeds = tf.constant([[1, 2], [3, 4], [1, 2], [-5, 6]])
    _, drawn = vectorized(SAMPLERS[name], seeds, own=False)
    expected = np.stack([SAMPLERS[name](seed).numpy() for seed in seeds])
    np.testing.assert_array_equal(drawn, expected)


def test_an_own_seed_mixed_with_data_is_data():
    data = tf.constant([7, 8])
    seeds = tf.constant([[1, 2], [3, 4]])

    def one(rows):
        own, of_row = rows
        pfor_random.mark_own_seeds([own], [seeds[0]], tf.constant(0))
        return tf.random.stateless_normal([4], tf.stack([own[0], of_row]))

    drawn = vectorized_map(one, (seeds, data))
    expected = [tf.random.stateless_normal([4], [1, 7]), tf.random.stateless_normal([4], [3, 8])]
    np.testing.assert_array_equal(drawn, expected)


class Noisy(keras.Model):
    """Adds noise whose seed is the first two numbers of the example."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.drop = keras.layers.Dropout(0.5, seed=3)

    def call(self, x, training=False):
        seed = tf.cast(x[0, :2], tf.int32)
        return self.dense(self.drop(x + tf.random.stateless_normal([4], seed), training=training))


@pytest.mark.parametrize(
    ("engine", "jit_compile"),
    [(ghost.bounded_sum, False), pytest.param(exact.bounded_sum, True, marks=pytest.mark.slow)],
)
def test_one_example_cannot_change_the_noise_of_another(engine, jit_compile):
    """Two lots that differ in the first row alone: without it, their sums are the same."""
    keras.utils.set_random_seed(0)
    model = Noisy()
    model(tf.zeros([1, 4]))
    model.compile(loss="mse")
    x = np.random.default_rng(0).integers(0, 9, (4, 4)).astype("float32")
    y = np.full((4, 2), 50.0, "float32")
    forward, bound = Forward(model), GlobalL2Clip(1.0)

    @tf.function(jit_compile=jit_compile, autograph=False)
    def total(rows, weight):
        lot = engine(forward, bound, rows, y, weight, tf.constant(0))
        return tf.concat([tf.reshape(part, [-1]) for part in lot.sums], 0)

    def totals(first):
        rows = np.concatenate([first[np.newaxis], x[1:]])
        return [total(rows, tf.constant([w, 1.0, 1.0, 1.0])) for w in (1.0, 0.0)]

    one, without = totals(x[0])
    other, still_without = totals(x[0] + 3.0)
    assert_close(without, still_without, terms_of(model, 4, length=4))
    for sums in (one, other):
        assert np.linalg.norm(sums - without) <= 1.00001
    assert np.linalg.norm(one - other) > 0.01
