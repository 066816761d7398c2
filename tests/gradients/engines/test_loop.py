"""The loop engine trains what TensorFlow cannot vectorize, and agrees with the other engines."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tests.helpers import sgd
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import exact, loop
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import ENGINES, bounded_sum, choose_engine
from tfdp.gradients.testing import assert_equal_sums, loop_bounded_sum, run_engine

ROWS = 5


def compiled(*stack, loss="mse"):
    model = keras.Sequential(stack)
    model.compile(loss=loss)
    return model


def dense():
    return compiled(keras.Input((6,)), layers.Dense(5, "tanh"), layers.Dense(3))


def recurrent():
    return compiled(keras.Input((6, 2)), layers.LSTM(3), layers.Dense(3))


class Searched(layers.Layer):
    """Has a loop, a search and a set of unknown size, which TensorFlow cannot vectorize."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        kinds = tf.size(tf.unique(tf.reshape(tf.round(x), [-1])).y)
        steps = tf.while_loop(
            lambda i, x: i < 3 + 0 * kinds, lambda i, x: (i + 1, x * self.kernel), (0, x)
        )
        return tf.sort(steps[1], axis=-1) / tf.cast(kinds, x.dtype)


def searched():
    return compiled(keras.Input((6,)), layers.Dense(4), Searched(), layers.Dense(3))


def run(engine, model, weight=None, **options):
    shape = (ROWS, *model.input_shape[1:])
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=shape), draw.normal(size=(ROWS, 3))
    weight = tf.ones([ROWS]) if weight is None else tf.constant(weight, tf.float32)
    arguments = (Forward(model), GlobalL2Clip(0.3), tf.constant(x, "float32"))
    arguments += (tf.constant(y, "float32"), weight)
    return [run_engine(each, *arguments, **options) for each in engine]


@pytest.mark.parametrize("make", [dense, recurrent, searched])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_it_equals_the_definition(make, jit_compile):
    if make is searched and jit_compile:
        pytest.skip("XLA has no operation for sets of unknown size")
    weight = [1.0, 2.0, 0.0, 0.5, 1.0]
    ours, expected = run((loop.bounded_sum, loop_bounded_sum), make(), weight)
    assert_equal_sums(ours, expected)
    assert np.sum(ours.clipped) > 0 and not ours.present[2]


def test_microbatches_and_chunks_are_those_of_the_exact_engine():
    model = dense()
    assert_equal_sums(*run((loop.bounded_sum, exact.bounded_sum), model, microbatch_size=1))
    x, y = tf.random.normal((6, 6)), tf.random.normal((6, 3))

    def summed(engine, **options):
        def step(x, y):
            lot = bounded_sum(
                engine, Forward(model), GlobalL2Clip(0.3), x, y, tf.ones([6]), **options
            )
            return lot.sums

        return tf.function(step, autograph=False)(x, y)

    for options in ({"microbatch_size": 3}, {"physical_batch_size": 4}):
        ours, expected = (summed(e.bounded_sum, **options) for e in (loop, exact))
        for a, b in zip(ours, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_bad_row_changes_no_bit_of_the_others():
    model = dense()
    x = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    y = np.zeros((4, 3), "float32")
    arguments = (Forward(model), GlobalL2Clip(0.3))
    good = run_engine(loop.bounded_sum, *arguments, x, y, tf.constant([1.0, 0.0, 1.0, 1.0]))
    x[1] = np.nan
    lot = run_engine(loop.bounded_sum, *arguments, x, y, tf.ones([4]))
    assert int(lot.non_finite) == 1
    for a, b in zip(lot.sums, good.sums, strict=True):
        np.testing.assert_array_equal(a, b)


def test_rows_chunks_and_steps_draw_numbers_of_their_own():
    model = compiled(keras.Input((200,)), layers.Dropout(0.5), layers.Dense(1, use_bias=False))
    x, y, forward = tf.ones((3, 200)), tf.ones((3, 1)), Forward(model)

    @tf.function(autograph=False)
    def dropped(chunk):
        gradients, *_, after = loop.per_example_gradients(forward, x, y, tf.ones([3]), chunk)
        return tf.not_equal(gradients[0][..., 0], 0.0), after

    masks, after = dropped(tf.constant(0))
    more, _ = dropped(tf.constant(1))
    forward.advance(forward.state(), after)
    later, _ = dropped(tf.constant(0))
    rows = np.concatenate([masks, more, later])
    agreement = (rows[:, np.newaxis] == rows).mean(-1)[~np.eye(9, dtype=bool)]
    assert agreement.min() > 0.3 and agreement.max() < 0.7


@pytest.mark.parametrize("name", ["sort", "ctc", "scan", "map_fn"])
def test_it_trains_what_the_other_engines_refuse(name):
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 6)).astype("float32"), rng.normal(size=(8, 2)).astype("float32")
    loss, head = "mse", [layers.Dense(2)]
    if name == "ctc":
        loss, head = keras.losses.CTC(), [layers.Reshape((4, 4))]
        y = np.array([[1, 2]] * 8)
    functions = {
        "sort": lambda x: tf.sort(x, axis=-1),
        "ctc": lambda x: tf.tile(x, [1, 4])[:, :16],
        "scan": lambda x: tf.scan(lambda a, b: a + tf.sin(b), x, reverse=True),
        "map_fn": lambda x: tf.map_fn(tf.math.cumsum, x),
    }
    stack = [keras.Input((6,)), layers.Dense(6), layers.Lambda(functions[name])]
    model = tfdp.make_private(keras.Sequential([*stack, *head]), engine="loop")
    model.compile(sgd(noise=0.0, clip=1e6, rate=0.01), loss=loss, jit_compile=False)
    before = model.get_weights()[0]
    # Always the same rows: the lots of `fit` are drawn, and their losses need not fall.
    history = [float(model.train_on_batch(x, y)) for _ in range(4)]
    assert np.all(np.isfinite(history)) and history[-1] < history[0]
    assert np.any(before != model.get_weights()[0])


def test_it_is_taken_only_by_name():
    assert "loop" in ENGINES
    assert choose_engine("loop", searched()) is loop.bounded_sum
    with pytest.raises(NotImplementedError, match="engine='loop'"):
        run([choose_engine("auto", searched())], searched())
