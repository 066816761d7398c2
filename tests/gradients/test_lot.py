"""One example, whatever it is, moves the bounded sum of a lot by at most the declared sensitivity."""

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging
from keras import layers

from tests.gradients.checking import lot_for, normal
from tests.gradients.reference import run_engine
from tests.rounding import assert_close, rounding, terms_of
from tfdp.gradients import chunks as chunking
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.contract import BoundedSum
from tfdp.gradients.engines import exact, ghost
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum, choose_engine

CLIP = 0.5


def model():
    stack = [keras.Input((4,)), layers.Dense(5, activation="relu"), layers.Dense(3)]
    made = keras.Sequential(stack)
    made.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


@pytest.mark.parametrize(
    ("engine", "microbatch_size", "views"),
    [
        *[("ghost", size, views) for size, views in ((1, 1), (3, 1), (1, 3), (2, 3))],
        *[("vectorized", size, views) for size, views in ((1, 1), (2, 3))],
    ],
)
def test_the_sum_moves_by_at_most_the_sensitivity(engine, microbatch_size, views):
    """One example, with all its views, is removed, or replaced by an extreme one."""
    made, declared = model(), set()
    forward, run = Forward(made), choose_engine(engine, made)

    @tf.function(autograph=False)
    def step(x, y, weight):
        options = {"microbatch_size": microbatch_size, "views": views}
        lot = bounded_sum(run, forward, GlobalL2Clip(CLIP), x, y, weight, **options)
        declared.add(lot.l2_norm_clip * lot.relative_sensitivity)
        return tf.concat([tf.reshape(part, [-1]) for part in lot.sums], 0)

    def total(x, y, weight):
        found = step(*(tf.constant(a) for a in (x, y, weight))).numpy().astype(float)
        assert np.all(np.isfinite(found))
        return found

    x, y, weight = normal(6, 4), np.array([0, 1, 2, 0, 1, 2]), np.ones(6, "float32")
    base, null, removed, replaced = total(x, y, weight), weight.copy(), 0.0, 0.0
    rows = slice(3 - views, 3)
    null[rows] = 0.0
    for extreme in (0.0, 1e4, 1e18, 3e38, np.inf, np.nan):
        for columns in (slice(None), slice(0, 1)):
            for label in range(3):
                other, other_y = x.copy(), y.copy()
                other[rows, columns], other_y[rows] = extreme, label
                moved, gone = total(other, other_y, weight), total(other, other_y, null)
                removed = max(removed, np.linalg.norm(moved - gone))
                replaced = max(replaced, np.linalg.norm(moved - base))
    rounded = rounding(terms_of(made, 6))
    assert declared == {CLIP * (1 if microbatch_size == 1 else 2)}
    assert 0.3 * CLIP < removed <= declared.pop() * (1 + rounded)
    assert replaced <= 2 * CLIP * (1 + rounded)


# -- the choice of an engine -------------------------------------------------------------------------


def test_engines_are_chosen_by_name():
    assert choose_engine("ghost", model()) is ghost.bounded_sum
    assert choose_engine("vectorized", model()) is exact.bounded_sum
    with pytest.raises(ValueError, match="engine"):
        choose_engine("fast", model())


class Normalized(layers.Dense):
    """A layer that divides its weights by their norm."""

    def call(self, x):
        return x @ (self.kernel / tf.norm(self.kernel))


def test_large_gradients_that_are_written_out_are_warned_of_once(monkeypatch):
    told = []
    monkeypatch.setattr(logging, "warning", lambda text, *rest: told.append(text % rest))
    x = keras.Input((300,))
    beyond = keras.Model(x, Normalized(300, name="mine")(x))
    lot = (*lot_for(beyond), tf.constant(0))
    for _ in range(2):
        choose_engine("auto", beyond)(*lot)
    assert len(told) == 1 and "'mine'" in told[0]


def test_rows_draw_numbers_of_their_own_after_an_engine_has_given_up():
    x = keras.Input((3, 4))
    cells = layers.RNN(layers.SimpleRNNCell(20, dropout=0.5))
    outputs = cells(layers.Dense(4)(x))
    forward, bound, x, y, weight = lot_for(keras.Model(x, outputs))
    same = tf.ones_like(x), tf.zeros_like(y)
    run = choose_engine("auto", forward.model)
    assert len({*np.array(run_engine(run, forward, bound, *same, weight).norms)}) == 3


class Draws(layers.Layer):
    """Adds numbers of the kinds that one operation draws for all rows, and of others."""

    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(5)

    def call(self, x):
        shape = tf.shape(x) if x.shape[0] is None else x.shape
        whole = keras.random.randint(shape, 0, 9, seed=self.seed)
        gamma = keras.random.gamma(shape, 2.0, seed=self.seed)
        truncated = keras.random.truncated_normal(shape, seed=self.seed)
        return x + keras.ops.cast(whole, "float32") + gamma + truncated


def random_model():
    x = keras.Input((3, 5))
    noisy = layers.GaussianNoise(0.5)(layers.Dropout(0.3)(Draws()(x)))
    attended = layers.MultiHeadAttention(1, 3, dropout=0.3)(noisy, noisy)
    hidden = layers.SimpleRNN(3, dropout=0.3)(layers.SpatialDropout1D(0.5)(attended))
    double = layers.AlphaDropout(0.3, dtype="float64")(layers.Dense(3, dtype="float64")(hidden))
    model = keras.Model(x, layers.Dense(2)(layers.GaussianDropout(0.2)(double)))
    model.compile(loss="mse")
    return model


def test_random_numbers_of_a_row_follow_from_its_place_whatever_else_is_computed():
    """A share of a lot from place 17, cut into chunks, has the numbers of the whole lot."""
    keras.utils.set_random_seed(0)
    built = random_model()
    forward, bound = Forward(built), GlobalL2Clip(1.0)
    x, y = normal(30, 3, 5), np.ones((30, 2), "float32")

    @tf.function(autograph=False)
    def norms(name, first, size):
        rows = x[first:], y[first:], tf.ones(30 - first)
        run = choose_engine(name, built)
        lot = bounded_sum(run, forward, bound, *rows, first=first, physical_batch_size=size)
        return lot.norms[: 30 - first]

    whole = norms("loop", 0, None)
    assert len({*whole.numpy()}) == 30
    for engine in ("ghost", "vectorized"):
        assert_close(norms(engine, 17, 5), whole[17:], terms_of(built, 13), message=engine)


# -- chunks ------------------------------------------------------------------------------------------


def test_chunks_begin_at_their_place_and_their_sums_add_up():
    seen = []

    def fake(forward, bound, x, y, weight, first, microbatch_size, views):
        seen.append(x.shape)
        return BoundedSum(
            sums=[tf.reduce_sum(x * weight[:, tf.newaxis]) + 1000.0 * tf.cast(first, tf.float32)],
            norms=weight,
            present=weight > 0,
            clipped=weight,
            non_finite=tf.constant(1),
            losses=x[:, 0],
            output_losses=x[:, :2],
            outputs=x,
            state=[tf.shape(weight)[0]],
            l2_norm_clip=1.0,
            relative_sensitivity=1.0,
        )

    x = tf.reshape(tf.range(10.0), (5, 2))
    clip = GlobalL2Clip(1.0)
    lot = bounded_sum(fake, Forward(model()), clip, x, x, tf.ones(5), physical_batch_size=2)
    assert float(lot.sums[0]) == 45.0 + 6000.0  # chunks begin at 0, 2 and 4
    assert int(lot.non_finite) == 3
    np.testing.assert_array_equal(lot.outputs, x)
    np.testing.assert_array_equal(lot.present, [True] * 5 + [False])
    assert set(seen) == {(2, 2)}


def images(side, filters):
    convolution = layers.Conv2D(filters, 3)
    return keras.Sequential([keras.Input((side, side, 1)), convolution, layers.Flatten()])


def test_a_cpu_takes_large_lots_of_images_in_chunks_of_equal_result(monkeypatch):
    forward, _, x, y, weight = lot_for(images(4, 2), rows=600)
    seen = []

    def spied(forward, bound, x, *rest):
        seen.append(x.shape[0])
        return ghost.bounded_sum(forward, bound, x, *rest)

    def sums(devices):
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: devices)
        rows = (x, y, weight)
        lot = bounded_sum(spied, forward, GlobalL2Clip(0.5), *rows, microbatch_size=3)
        assert lot.outputs.values.shape[0] == lot.losses.shape[0] == 600
        return lot.sums

    for ours, whole in zip(sums([]), sums(["a GPU"]), strict=True):
        assert_close(ours, whole, terms_of(forward.model, 600))
    assert set(seen) == {300, 600}


@hypothesis.given(st.integers(0, 5000), st.integers(1, 300), st.integers(1, 7))
def test_chunks_are_few_and_of_one_size(rows, limit, multiple):
    limit = -(-limit // multiple) * multiple
    chunks, size = chunking.balanced_chunks(rows, limit, multiple)
    assert size % multiple == 0 and 0 < size <= limit
    assert chunks * size >= rows > (chunks - 1) * limit or (rows, chunks) == (0, 1)
    assert chunks * size - rows < chunks * multiple or rows == 0
    as_tensors = chunking.balanced_chunks(tf.constant(rows), limit, multiple)
    assert [int(t) for t in as_tensors] == [chunks, size]
