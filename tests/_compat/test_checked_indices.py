"""An index that does not exist counts its own example zero, in all engines that pass examples alone."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfdp._compat.checked_indices import checked
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import exact, ghost, loop
from tfdp.gradients.forward import Forward

TABLE = tf.reshape(tf.range(12.0), (3, 4))
OPERATIONS = {
    "gather": lambda i: tf.gather(TABLE, i),
    "take": lambda i: keras.ops.take(TABLE, i, axis=1),
    "unknown axis": lambda i: tf.gather(TABLE, i, axis=tf.size(i) - 1),
    "gather_nd": lambda i: tf.gather_nd(TABLE, i[:, tf.newaxis]),
    "update": lambda i: tf.tensor_scatter_nd_update(TABLE, i[:, tf.newaxis], tf.zeros([2, 4])),
    "scatter": lambda i: keras.ops.scatter(i[:, tf.newaxis], tf.ones([2, 4]), [3, 4]),
    "slice": lambda i: TABLE[:, i[0]],
    "slice from the end": lambda i: TABLE[tf.newaxis, ..., i[0]],
    "labels": lambda i: tf.nn.sparse_softmax_cross_entropy_with_logits(i, TABLE[:2]),
    "bincount": lambda i: tf.math.bincount(i, minlength=3, maxlength=3),
    "segments": lambda i: keras.ops.segment_sum(tf.ones([2]), i, 3),
}
LEFT_OUT = {("segments", 9), ("segments", -9), ("bincount", 9)}  # as TensorFlow documents it


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_with_a_bad_index_has_no_number(name):
    function = OPERATIONS[name]

    @tf.function(autograph=False)
    def run(indices):
        with checked(vectorized=False):
            return function(indices)

    good = tf.constant([0, 2])
    np.testing.assert_array_equal(run(good), function(good))
    for bad in (9, -9):
        found = run(tf.constant([bad, 1])).numpy()
        if (name, bad) in LEFT_OUT:
            np.testing.assert_array_equal(found, [0, 1, 0])
        else:
            least = found.dtype.kind == "i" and found.min() == np.iinfo(found.dtype).min
            assert least or np.isnan(found).any(), bad


def test_nothing_is_checked_elsewhere():
    assert np.all(tf.math.unsorted_segment_sum(tf.ones([2]), [0, -1], 3) == [1, 0, 0])
    with pytest.raises(tf.errors.InvalidArgumentError), tf.device("CPU"):
        tf.function(lambda i: tf.gather(TABLE, i))(tf.constant([9]))


class Looks(layers.Layer):
    """Adds to each row something that depends on its indices."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x, indices):
        return x + tf.cast(tf.reduce_mean(self.function(x, indices[0])), x.dtype)


INSIDE = [
    (ghost, lambda x, i: keras.ops.take(x, i, axis=1)),
    (exact, lambda x, i: keras.ops.take(x, i, axis=1)),
    (loop, lambda x, i: keras.ops.take(x, i, axis=1)),
    (exact, lambda x, i: tf.gather(x, i, axis=tf.size(i) - 1)),
    (ghost, lambda x, i: tf.tensor_scatter_nd_update(x[0], i[:, tf.newaxis], [0.0, 1.0])),
    (exact, lambda x, i: keras.ops.scatter(i[:, tf.newaxis], x[0, :2], [4])),
    (ghost, lambda x, i: x[:, i[0]]),
]


@pytest.mark.parametrize(("engine", "function"), INSIDE)
def test_a_row_with_a_bad_index_counts_zero(engine, function):
    keras.utils.set_random_seed(0)
    x, indices = keras.Input((4,)), keras.Input((2,), dtype="int32")
    hidden = Looks(function)(layers.Dense(4, activation="tanh")(x), indices)
    model = keras.Model([x, indices], layers.Dense(3)(hidden))
    model.compile(loss="mse")
    forward = Forward(model)
    generator = np.random.default_rng(0)
    data = generator.normal(size=(5, 4)).astype(np.float32)
    places = generator.integers(0, 4, (5, 2)).astype(np.int32)
    bad = np.array(places)
    bad[1, 0] = 9

    @tf.function(autograph=False)
    def sums(indices, weight):
        y = tf.ones([5, 3])
        arguments = (forward, GlobalL2Clip(1.0), (data, indices), y, weight, tf.constant(0))
        found = engine.bounded_sum(*arguments)
        return tf.concat([tf.reshape(part, [-1]) for part in found.sums], 0), found.non_finite

    with_it, counted = sums(tf.constant(bad), tf.ones([5]))
    without, none = sums(tf.constant(places), tf.constant([1.0, 0, 1, 1, 1]))
    whole, _ = sums(tf.constant(places), tf.ones([5]))
    np.testing.assert_array_equal(with_it, without)
    assert np.linalg.norm(whole - without) > 0.1
    assert (int(counted), int(none)) == (1, 0)


def test_labels_that_are_no_class_in_the_loop_engine():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, forward = tf.ones([3, 4]), Forward(model)

    @tf.function(autograph=False)
    def bad_rows(y):
        arguments = (forward, GlobalL2Clip(1.0), x, y, tf.ones([3]), tf.constant(0))
        return loop.bounded_sum(*arguments).non_finite

    assert int(bad_rows(tf.constant([0, 3, -1]))) == 2
    assert int(bad_rows(tf.constant([0, 1, 2]))) == 0
