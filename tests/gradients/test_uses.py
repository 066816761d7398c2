"""Weights in operations of any kind: their gradients are those of batches of one, and bounded."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tests.gradients.checking import check_engines, check_traced, lot_for, side_by_side, summing
from tests.helpers import needs_every_convolution
from tests.rounding import assert_close, terms_of
from tfdp._compat.graphs import Dependence
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import ghost
from tfdp.gradients.factors import Lookups, OuterProducts
from tfdp.gradients.uses import uses_of


class Own(layers.Layer):
    """A layer with weights of the given shapes, and a function of (inputs, *weights)."""

    def __init__(self, function, *shapes):
        super().__init__()
        self.function, self.shapes = function, shapes

    def build(self, shape):
        self.own = [self.add_weight(shape=shape) for shape in self.shapes]

    def call(self, inputs):
        return self.function(inputs, *self.own)


class Positions(layers.Layer):
    """The position embedding of KerasHub, for sequences that may be shorter than its table."""

    def __init__(self, length):
        super().__init__()
        self.length = length

    def build(self, shape):
        self.table = self.add_weight(shape=(self.length, shape[-1]))

    def call(self, inputs):
        shape = ops.shape(inputs)
        taken = ops.slice(ops.convert_to_tensor(self.table), (0, 0), (shape[-2], shape[-1]))
        return inputs + ops.broadcast_to(taken, shape)


class OwnDense(layers.Dense):
    def call(self, inputs):
        return super().call(inputs) * 2.0


def rms(x, scale):
    square = ops.mean(ops.square(x), axis=-1, keepdims=True)
    return x * ops.rsqrt(square + 1e-6) * (1 + scale)


def with_a_class_token(x, token):
    token = ops.broadcast_to(token, (ops.shape(x)[0], 1, x.shape[-1]))
    return ops.concatenate([token, x], axis=1)


def relative_bias(x, table):
    steps = np.arange(x.shape[1])
    near = np.clip(steps[:, np.newaxis] - steps, -2, 2) + 2
    scores = ops.matmul(x, ops.transpose(x, (0, 2, 1))) + ops.take(table, near, axis=0)[..., 0]
    return ops.matmul(ops.softmax(scores), x)


def looked_up(x, table):
    return ops.take(table, ops.cast(ops.abs(x * 3) % 9, "int32"), axis=0)


def products_and_look_ups():
    return [
        Own(lambda x, a, b: ops.matmul(ops.matmul(x, a), b), (4, 2), (2, 4)),
        Own(lambda x, a: ops.matmul(x, ops.transpose(a)), (6, 4)),
        Own(looked_up, (9, 4)),
        Own(lambda x, t: x + t[1:6], (9, 4)),
        Positions(700),
        OwnDense(4, activation="tanh"),
    ]


def other_operations():
    return [
        Own(rms, (4,)),
        Own(lambda x, b: x + b, (4,)),
        Own(lambda x, b: x * b, ()),
        Own(lambda x, a: ops.matmul(x, a * a), (4, 3)),
        Own(lambda x, a: ops.matmul(x, a) + ops.sum(a), (4, 3)),
        Own(with_a_class_token, (1, 1, 4)),
        Own(relative_bias, (5, 1)),
        Own(lambda x, t: x + ops.take(t, 2, axis=0), (9, 4)),
        Own(lambda x, t: x, (9, 4)),
        Positions(5),
    ]


@pytest.mark.parametrize("make", [products_and_look_ups, other_operations])
def test_weights_of_layers_of_ones_own(make):
    check_engines(side_by_side((5, 4), layers.Dense(4), *make()), engines=["ghost"])


def parts_of_weights():
    """Weights of which parts are taken, by slices, splits and single indices."""
    return [
        Own(lambda x, a: ops.matmul(x, a[:, :3]) + ops.matmul(x, a[:, 2:5]), (4, 6)),
        Own(lambda x, a: ops.matmul(x, ops.split(a, 2, axis=1)[1]), (4, 6)),
        Own(lambda x, a: sum(ops.matmul(x, part) for part in ops.unstack(a)), (2, 4, 3)),
        Own(lambda x, a: x * a[1] - a[-1], (3, 4)),
        Own(lambda x, a: ops.matmul(x, -3.0 * ops.reshape(a, (4, 3))), (3, 4)),
        Own(lambda x, a, b: ops.matmul(x, ops.concatenate([a, b, a], axis=1)), (4, 2), (4, 3)),
        Own(lambda x, a, b: ops.matmul(x, ops.concatenate([a, b])), (1, 3), (3, 3)),
        Own(lambda x, a, b: looked_up(x, ops.concatenate([a, b], axis=-1)), (9, 2), (9, 1)),
        Own(lambda x, a, b: x * ops.concatenate([a, b]), (1,), (3,)),
    ]


def forms(model, **options) -> dict:
    """The classes of the gradients of the weights, by the names of the weights."""
    forward, _, x, y, weight = lot_for(model, **options)
    found = {}

    @tf.function(autograph=False)
    def traced():
        gradients, *_ = ghost.per_example_gradients(forward, x, y, weight, tf.constant(0))
        found.update(zip([v.path for v in forward.variables], map(type, gradients), strict=True))
        return 0

    traced()
    return found


def test_weights_side_by_side_stay_factors():
    layer = Own(lambda x, q, k: ops.matmul(x, ops.concatenate([q, k], axis=1)), (4, 2), (4, 3))
    found = forms(keras.Sequential([keras.Input((5, 4)), layer]))
    assert [*found.values()] == [OuterProducts, OuterProducts]


def test_parts_of_weights():
    check_engines(side_by_side((5, 4), layers.Dense(4), *parts_of_weights()), engines=["ghost"])


def adapted():
    """A layer of each kind with adapters."""
    tokens = keras.Input((5,), dtype="int32")
    stack = [
        layers.Embedding(9, 4),
        layers.Dense(6, activation="tanh"),
        layers.EinsumDense("abc,cde->abde", (None, 2, 3)),
        layers.EinsumDense("abde,def->abf", (None, 4)),
    ]
    x = tokens
    for layer in stack:
        x = layer(x)
    for layer in stack:
        layer.enable_lora(2, lora_alpha=3)
    return keras.Model(tokens, x)


def test_no_gradient_of_an_adapter_is_written_out():
    found = forms(adapted(), integers=9)
    assert {form for path, form in found.items() if "lora" in path} == {Lookups, OuterProducts}


def test_a_convolution_of_ones_own():
    layer = Own(lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), (2, 2, 3, 2))
    check_engines(side_by_side((4, 5, 3), layer), engines=["ghost"])


@needs_every_convolution
def test_a_convolution_of_groups_is_no_unknown_operation():
    inputs = keras.Input((4, 5, 4))
    x = layers.Conv2D(6, 2, groups=2)(inputs)  # Keras compiles it by XLA, in a function
    model = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))
    check_engines(model, engines=["ghost"])
    forward, *_ = lot_for(model)

    @tf.function(autograph=False)
    def unknown(x):
        reads = [tf.identity(v) for v in forward.variables]
        forward.outputs(reads, forward.state(), x)
        uses = [use for read in reads for use in uses_of(read, Dependence())]
        found.extend(use.unknown for use in uses)
        return 0

    found = []
    unknown(tf.zeros([1, 4, 5, 4]))
    assert found == [None] * 4


@pytest.mark.parametrize("large", [True, False])
def test_a_large_weight_that_is_written_out_gives_a_warning(large, caplog):
    width = 300 if large else 3
    layer = Own(lambda x, w: ops.matmul(x, ops.exp(ops.transpose(w))), (width, width))
    model = keras.Model(x := keras.Input((width,)), layer(x))
    with caplog.at_level("WARNING"):
        check_engines(model, engines=["ghost"])
    told = [one.getMessage() for one in caplog.records if "written out" in one.getMessage()]
    assert len(told) == large and all("operation Exp" in message for message in told)


@pytest.mark.slow
def test_under_xla_and_in_microbatches():
    stack = [*products_and_look_ups()[2:5], other_operations()[4]]
    check_traced(side_by_side((5, 4), *stack), rows=4, jit_compile=True, microbatch_size=2)


def weighted_words():
    """Weighted words of an embedding of one's own, so that huge terms can cancel."""
    tokens, factors = keras.Input((4,), dtype="int32"), keras.Input((4, 1))
    words = Own(lambda t, table: ops.take(table, t, axis=0), (9, 4))(tokens)
    scaled = Own(lambda x, a, b: ops.matmul(x, a) * b, (1, 4), (4,))(factors)
    both = layers.Add()([layers.Multiply()([words, factors]), scaled])
    return keras.Model([tokens, factors], layers.Dense(3)(layers.GlobalAveragePooling1D()(both)))


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_one_example_moves_the_sum_by_the_clip_norm_at_most(jit_compile):
    forward, _, (tokens, factors), y, present = lot_for(weighted_words(), rows=64, integers=9)
    sums = summing(ghost.bounded_sum, forward, GlobalL2Clip(1.0), jit_compile)
    absent = tf.cast(tf.range(64) > 0, tf.float32)
    signs = np.array([[1e12], [-1e12], [1e12], [-1e12]], np.float32)
    for token, factor in ((7, signs), (7, 1e15), (7, np.nan), (9, 1.0)):
        words, numbers = np.array(tokens), np.array(factors)
        words[0], numbers[0] = token, factor
        x = [tf.constant(words), tf.constant(numbers)]
        (with_it, bad), (without, _) = sums(x, y, present), sums(x, y, absent)
        assert np.all(np.isfinite(without))
        assert tf.norm(with_it - without) <= 1.0
        if token == 9 or factor is np.nan:
            assert int(bad) == 1
            assert_close(with_it, without, terms_of(forward.model, 64))  # GPUs add in any order


def test_indices_that_wrap_around():
    """An index of 64 bits beyond the table is none of its rows, although its lower 32 bits are."""
    table = tf.zeros([9, 4])

    @tf.function(autograph=False)
    def exist(indices):
        read = tf.identity(table)
        vectors = tf.gather(read, indices)
        (use,) = uses_of(read, lambda tensor: tensor is not read)
        gradients = use.gradient(tf.ones_like(vectors)[tf.newaxis], indices[tf.newaxis])
        return tf.math.is_finite(gradients.square_norms())

    for indices, all_exist in (([2, 3], True), ([2, 2**32 + 3], False), ([2, -1], False)):
        assert exist(tf.constant(indices, tf.int64)) == all_exist


def test_what_depends_on_the_row():
    frozen = tf.Variable([[1.0, 2.0]])

    @tf.function(autograph=False)
    def row(rows):
        def one(row):
            weight = tf.identity(frozen)
            public = tf.matmul(weight, weight, transpose_b=True)
            drawn = tf.random.uniform([1])  # a vectorized map draws for each row
            tensors = [weight, public, row * public, tf.cast(tf.reduce_sum(row), tf.int32), drawn]
            found.append([*map(Dependence(), tensors)])
            return tf.reduce_sum(row)

        return tf.vectorized_map(one, rows)

    found = []
    row(tf.ones([3, 1]))
    assert found[0] == [False, False, True, True, True]
