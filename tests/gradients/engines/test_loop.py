"""The loop engine trains what TensorFlow cannot vectorize, and agrees with the definition."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tests.gradients.checking import lot_for, normal, terms_for
from tests.gradients.reference import assert_equal_sums, loop_bounded_sum, run_engine
from tests.helpers import sgd
from tests.rounding import assert_close, terms_of
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import exact, loop
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum, choose_engine


def dense():
    return keras.Sequential([keras.Input((6,)), layers.Dense(5, "tanh"), layers.Dense(3)])


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
    return keras.Sequential([keras.Input((6,)), layers.Dense(4), Searched(), layers.Dense(3)])


WEIGHT = [1.0, 2.0, 0.0, 0.5, 1.0]


def test_it_equals_the_definition():
    lot = lot_for(searched(), rows=5, weight=WEIGHT)
    ours = run_engine(loop.bounded_sum, *lot)
    assert_equal_sums(ours, loop_bounded_sum(*lot, tf.constant(0)), terms_for(lot[0].model, 5))
    assert np.sum(ours.clipped) > 0 and not ours.present[2]


@pytest.mark.parametrize("options", [{"microbatch_size": 3}, {"physical_batch_size": 4}])
def test_microbatches_and_chunks_are_those_of_the_exact_engine(options):
    forward, _, *rows = lot_for(dense(), rows=6)

    def summed(engine):
        return bounded_sum(engine.bounded_sum, forward, GlobalL2Clip(0.3), *rows, **options).sums

    for a, b in zip(summed(loop), summed(exact), strict=True):
        assert_close(a, b, terms_of(forward.model, 6))


def test_a_bad_row_changes_no_bit_of_the_others():
    forward, _, x, y, _ = lot_for(dense(), rows=4)
    bad = tf.tensor_scatter_nd_update(x, [[1, 0]], [np.nan])
    bound, absent = GlobalL2Clip(0.3), tf.constant([1.0, 0.0, 1.0, 1.0])
    good = run_engine(loop.bounded_sum, forward, bound, x, y, absent)
    lot = run_engine(loop.bounded_sum, forward, bound, bad, y, tf.ones([4]))
    assert int(lot.non_finite) == 1
    for a, b in zip(lot.sums, good.sums, strict=True):
        np.testing.assert_array_equal(a, b)


def test_rows_and_steps_draw_numbers_of_their_own():
    stack = [keras.Input((200,)), layers.Dropout(0.5), layers.Dense(1, use_bias=False)]
    model = keras.Sequential(stack)
    model.compile(loss="mse")
    x, y, forward = tf.ones((3, 200)), tf.ones((3, 1)), Forward(model)

    @tf.function(autograph=False)
    def dropped(first):
        gradients, *_, after = loop.per_example_gradients(forward, x, y, tf.ones([3]), first)
        return tf.not_equal(gradients[0].values[..., 0], 0.0), after

    masks, after = dropped(tf.constant(0))
    shifted, _ = dropped(tf.constant(2))
    more, _ = dropped(tf.constant(3))
    forward.advance(forward.state(), after)
    later, _ = dropped(tf.constant(0))
    np.testing.assert_array_equal(shifted[0], masks[2])  # they follow from the place of the row
    rows = np.concatenate([masks, more, later])
    agreement = (rows[:, np.newaxis] == rows).mean(-1)[~np.eye(9, dtype=bool)]
    assert agreement.min() > 0.3 and agreement.max() < 0.7


@pytest.mark.parametrize("name", ["sort", "ctc"])
def test_it_trains_what_the_other_engines_refuse(name):
    x, y, loss, head = normal(8, 6), normal(8, 2, seed=1), "mse", [layers.Dense(2)]
    in_row = lambda x: tf.transpose(tf.sort(x, axis=-1))  # noqa: E731
    function = lambda x: tf.transpose(tf.scan(lambda a, b: a + tf.sin(b), in_row(x)))  # noqa: E731
    if name == "ctc":
        loss, head, y = keras.losses.CTC(), [layers.Reshape((4, 4))], np.array([[1, 2]] * 8)
        function = lambda x: tf.tile(x, [1, 4])[:, :16]  # noqa: E731
    stack = [keras.Input((6,)), layers.Dense(6), layers.Lambda(function), *head]
    model = tfdp.make_private(keras.Sequential(stack), engine="loop")
    model.compile(sgd(noise=0.0, clip=1e6, rate=0.01), loss=loss, jit_compile=False)
    history = [float(model.train_on_batch(x, y)) for _ in range(4)]
    assert np.all(np.isfinite(history)) and history[-1] < history[0]


def test_it_is_taken_only_by_name():
    model = searched()
    assert choose_engine("loop", model) is loop.bounded_sum
    with pytest.raises(NotImplementedError, match="engine='loop'"):
        run_engine(choose_engine("auto", model), *lot_for(model))
