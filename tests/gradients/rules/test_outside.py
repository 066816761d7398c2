"""Weights of layers without a rule: equal to a loop over the rows, and bounded."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import ghost
from tfdp.gradients.forward import Forward
from tfdp.gradients.rules import rule_for
from tfdp.gradients.rules.outside import Reader, recorded_uses
from tfdp.gradients.rules.recording import owners, without_rule
from tfdp.gradients.testing import check_model


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


def own(function, *weights, shape=(5, 4)):
    return lambda: sequence(Own(function, *weights), shape)


def sequence(layer, shape=(5, 4)):
    stack = [keras.Input(shape), layers.Dense(shape[-1]), layer, layers.Dense(3)]
    return keras.Sequential(stack)


MODELS = {
    "scale": own(rms, (4,)),
    "bias": own(lambda x, b: x + b, (4,)),
    "one number": own(lambda x, b: x * b, ()),
    "bilinear": own(lambda x, a, b: ops.matmul(ops.matmul(x, a), b), (4, 2), (2, 4)),
    "transposed": own(lambda x, a: ops.matmul(x, ops.transpose(a)), (6, 4)),
    "squared": own(lambda x, a: ops.matmul(x, a * a), (4, 3)),
    "read twice": own(lambda x, a: ops.matmul(x, a) + ops.sum(a), (4, 3)),
    "convolution": own(lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), (2, 2, 3, 2), shape=(4, 5, 3)),
    "class token": own(with_a_class_token, (1, 1, 4)),
    "relative bias": own(relative_bias, (5, 1)),
    "looked up": own(looked_up, (9, 4)),
    "one row of a table": own(lambda x, t: x + ops.take(t, 2, axis=0), (9, 4)),
    "rows of a table": own(lambda x, t: x + t[1:6], (9, 4)),
    "never read": own(lambda x, t: x, (9, 4)),
    "positions": lambda: sequence(Positions(5)),
    "fewer positions": lambda: sequence(Positions(700)),
    "a call of its own": lambda: sequence(OwnDense(4, activation="tanh")),
}


@pytest.mark.parametrize("name", MODELS)
def test_equals_a_loop(name):
    model = MODELS[name]()
    assert without_rule(model, owners(model))
    check_model(model, rows=3, vectorizes=False)


@pytest.mark.parametrize("name", ["read twice", "looked up", "fewer positions"])
@pytest.mark.parametrize("options", [{"jit_compile": True}, {"microbatch_size": 2, "rows": 6}])
def test_under_xla_and_in_microbatches(name, options):
    check_model(MODELS[name](), **options)


def test_in_bfloat16():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = sequence(Positions(700))
    finally:
        keras.config.set_dtype_policy("float32")
    check_model(model, tolerance=0.05, vectorizes=False)


def test_products_and_look_ups_are_not_written_out(monkeypatch):
    def refused(self, call):
        raise AssertionError("written out")

    monkeypatch.setattr(Reader, "gradient", refused)
    for name in ("bilinear", "transposed", "looked up", "fewer positions"):
        check_model(MODELS[name](), rows=3, vectorizes=False)
    with pytest.raises(AssertionError, match="written out"):
        check_model(MODELS["scale"](), rows=3, vectorizes=False)


def test_a_weight_with_a_penalty():
    layer = Own(lambda x, a: ops.matmul(x, a), (4, 3))
    model = sequence(layer)
    layer.own[0].regularizer = keras.regularizers.L2(0.1)
    check_model(model, rows=3, vectorizes=False)


def test_a_layer_without_a_rule_has_none():
    model = MODELS["a call of its own"]()
    assert [rule_for(layer) is None for layer in model.layers] == [False, True, False]


# -- one example against all others ----------------------------------------------------------------


def bag():
    """Weighted words of an embedding of one's own, so that huge terms can cancel."""
    tokens, factors = keras.Input((4,), dtype="int32"), keras.Input((4, 1))
    words = Own(lambda t, table: ops.take(table, t, axis=0), (9, 4))(tokens)
    pooled = layers.GlobalAveragePooling1D()(layers.Multiply()([words, factors]))
    return keras.Model([tokens, factors], layers.Dense(3)(pooled))


def scaled():
    factors = keras.Input((4, 1))
    hidden = Own(lambda x, a, b: ops.matmul(x, a) * b, (1, 4), (4,))(factors)
    return keras.Model(factors, layers.Dense(3)(layers.GlobalAveragePooling1D()(hidden)))


SIGNS = np.array([[1e12], [-1e12], [1e12], [-1e12]], np.float32)
TERMS = {"cancelling": SIGNS, "huge": 1e15, "not finite": np.nan}


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("make", [bag, scaled])
def test_one_example_moves_the_sum_by_the_clip_norm_at_most(make, jit_compile):
    keras.utils.set_random_seed(0)
    model = make()
    model.compile(loss="mse")
    assert ghost.supports(model) is None
    forward, y = Forward(model), np.ones((64, 3), np.float32)
    generator = np.random.default_rng(0)

    @tf.function(jit_compile=jit_compile, autograph=False)
    def sums(x, weight):
        found = ghost.bounded_sum(forward, GlobalL2Clip(1.0), x, y, weight, tf.constant(0))
        total = tf.concat([tf.reshape(total, [-1]) for total in found.sums], axis=0)
        return total, found.non_finite

    present = np.ones(64, np.float32)
    absent = np.where(np.arange(64) == 0, 0.0, 1.0).astype(np.float32)
    cases = [*TERMS, "bad index"] if make is bag else TERMS
    for kind in cases:
        tokens = generator.integers(0, 9, (64, 4)).astype(np.int32)
        factors = generator.normal(size=(64, 4, 1)).astype(np.float32)
        if kind == "bad index":
            tokens[0, 1] = 9
        else:
            tokens[0], factors[0] = 7, TERMS[kind]
        x = (tokens, factors) if make is bag else factors
        with_it, bad = sums(x, present)
        without, _ = sums(x, absent)
        assert np.all(np.isfinite(without)), kind
        assert tf.norm(with_it - without) <= 1.0001, kind
        if kind in ("bad index", "not finite"):
            assert int(bad) == 1 and np.array_equal(with_it, without), kind


def test_indices_that_wrap_around():
    """An index of 64 bits beyond the table is none of its rows, although its lower 32 bits are."""
    table = tf.zeros([9, 4])

    @tf.function
    def taken(indices):
        read = tf.identity(table)
        tf.gather(read, indices)
        ((_, call),) = recorded_uses(read, None, None)
        return call["indices"]

    np.testing.assert_array_equal(taken(tf.constant([[2, 2**32 + 3, -1]], tf.int64)), [[2, -1, -1]])
