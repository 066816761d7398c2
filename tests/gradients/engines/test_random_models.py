"""On architectures drawn by hypothesis, the engines agree, and one row moves only the clip norm.

`python -m pytest -m slow tests/gradients/engines/test_random_models.py` draws many more of them.
"""

import os
import subprocess
import sys

import keras
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from keras import layers

from tests.gradients.checking import lot_for, terms_for
from tests.gradients.reference import check_model, in_a_graph
from tests.helpers import EVERY_CONVOLUTION
from tests.rounding import rounding
from tfdp.gradients.bounds import make_bound
from tfdp.gradients.engines import exact, ghost

ROWS = 4
EPSILON = 0.1  # normalizing nearly equal numbers would multiply their rounding errors
MERGES = ("Add", "Multiply", "Concatenate", "Maximum", "Subtract", "Average")


class Drawing:
    """Draws layers one after the other, and keeps them so that some can be frozen later.

    Args:
        choose: function of a sequence that returns one of its elements.
        dropout: whether random layers may be among them.
    """

    def __init__(self, choose, dropout=True):
        self.choose = choose
        self.dropout = dropout
        self.layers = []

    def flip(self):
        return self.choose((True, False))

    def made(self, layer):
        self.layers.append(layer)
        return layer

    def affine(self, width=None):
        """A layer that changes only the last axis, to `width` unless that is None."""
        width = width or self.choose((1, 3))
        options = {"use_bias": self.flip(), "activation": self.choose((None, "tanh", "relu"))}
        return self.made(layers.Dense(width, **options))

    def any_rank(self, x):
        """Layers for tensors of any rank."""
        kind = self.choose(("dense", "normalization", "activation", "dropout", "merge", "gate"))
        if kind == "normalization":
            scale, center = self.flip(), self.flip()
            layer = layers.LayerNormalization(scale=scale, center=center, epsilon=EPSILON)
            return self.made(layer)(x)
        if kind == "activation":
            return layers.Activation(self.choose(("tanh", "softplus", "gelu")))(x)
        if kind == "dropout" and self.dropout:
            return self.made(layers.Dropout(0.4))(x)
        if kind == "merge":
            parts = [self.affine(x.shape[-1])(x) for _ in range(2)]
            kind = self.choose(MERGES)
            return getattr(layers, kind)()(parts if kind == "Subtract" else [x, *parts])
        if kind == "gate":
            return self.affine(x.shape[-1])(x) * keras.ops.sigmoid(x)
        return self.affine()(x)

    def vector(self, x):
        return self.any_rank(x)

    def image(self, x):
        kind = self.choose(("conv", "conv", "transpose", "pooling", "groups", "other", "shape"))
        filters, channels = 2 * self.choose((1, 2)), x.shape[-1]
        padding, use_bias = self.choose(("same", "valid")), self.flip()
        size = min(self.choose((1, 2, 3)), x.shape[1], x.shape[2])
        if kind == "conv":
            others = ((1, 2),) if EVERY_CONVOLUTION else ()
            strides, dilation = self.choose(((1, 1), (2, 1), *others))
            if padding == "valid" and (size - 1) * dilation >= min(x.shape[1:3]):
                padding = "same"
            grouped = EVERY_CONVOLUTION and channels % 2 == 0
            groups = self.choose((1, 2)) if grouped else 1
            layer = layers.Conv2D(
                filters, size, strides, padding, dilation_rate=dilation, groups=groups,
                use_bias=use_bias, activation=self.choose((None, "tanh")),
            )  # fmt: skip
            return self.made(layer)(x)
        if kind == "transpose" and max(x.shape[1:3]) < 6:
            # TensorFlow 2.21 corrupts memory if a kernel of size one with strides meets one row.
            strides = self.choose((1, 2)) if size > 1 else 1
            return self.made(
                layers.Conv2DTranspose(filters, size, strides, padding, use_bias=use_bias)
            )(x)
        if kind == "pooling" and min(x.shape[1:3]) > 1:
            return getattr(layers, self.choose(("MaxPooling2D", "AveragePooling2D")))(2)(x)
        if kind == "groups":
            groups = 2 if channels % 2 == 0 else 1
            return self.made(layers.GroupNormalization(groups, epsilon=EPSILON))(x)
        if kind == "shape" and self.dropout:
            x = layers.SpatialDropout2D(0.3)(x)
            return layers.ZeroPadding2D(1)(x) if max(x.shape[1:3]) < 6 else x
        return self.any_rank(x)

    def sequence(self, x):
        kind = self.choose(("conv", "attention", "recurrent", "einsum", "other"))
        width = self.choose((2, 3))
        if kind == "conv":
            padding = self.choose(("same", "causal"))
            dilation = self.choose((1, 2))
            return self.made(layers.Conv1D(width, 2, padding=padding, dilation_rate=dilation))(x)
        if kind == "attention":
            rate = 0.2 * (self.dropout and self.flip())
            attended = self.made(layers.MultiHeadAttention(2, 2, dropout=rate))(x, x)
            return layers.Add()([x, attended])
        if kind == "recurrent":
            recurrent = self.choose((layers.LSTM, layers.GRU, layers.SimpleRNN))
            layer = self.made(recurrent(width, return_sequences=True, use_bias=self.flip()))
            return layers.Bidirectional(layer)(x) if self.flip() else layer(x)
        if kind == "einsum":
            return self.made(layers.EinsumDense("abc,cd->abd", (x.shape[1], width), bias_axes="d"))(
                x
            )
        return self.any_rank(x)

    def block(self, name, x, depth):
        for _ in range(depth):
            x = getattr(self, name)(x)
        return x

    def nested(self, name, x):
        """Puts some layers into a model inside the model."""
        inner = keras.Input(x.shape[1:])
        outputs = self.block(name, inner, 2)
        if outputs is inner:
            return x
        return keras.Model(inner, outputs)(x)


def tokens_to_sequence(drawing, x):
    mask_zero = drawing.flip()
    embedded = drawing.made(layers.Embedding(5, 3, mask_zero=mask_zero))(x)
    if mask_zero:
        # test_recurrent.py tests recurrent layers with masks.
        pooled = layers.GlobalAveragePooling1D()(drawing.affine()(embedded))
        return layers.RepeatVector(3)(pooled)
    return embedded


SHAPES = {"vector": (3,), "image": (5, 4, 2), "sequence": (3, 2)}


def of_the_batch(x):
    return x / (1.0 + keras.ops.max(keras.ops.abs(x), axis=0, keepdims=True))


class Gate(layers.Layer):
    """A layer of one's own."""

    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * keras.ops.sigmoid(self.factor)


def twice(x):
    layer = layers.Dense(x.shape[-1], activation="tanh")
    return layer(layer(x))


# What people put behind a stock network; some of it mixes rows in a batch.
EXTRAS = (
    lambda x: x,
    lambda x: layers.Lambda(of_the_batch)(x),
    lambda x: layers.Dense(3, activation=of_the_batch)(x),
    lambda x: layers.Dense(3, activation=keras.ops.flip)(x),
    lambda x: layers.LayerNormalization(-2, center=False, scale=False)(x),
    lambda x: layers.Dense(3, activity_regularizer="l2")(x),
    lambda x: Gate()(x),
    twice,
)


def draw_model(choose, family, depth):
    """Draws a model of one or two inputs and outputs, with merging branches and nested parts."""
    drawing = Drawing(choose)
    tokens = family == "tokens"
    name = "sequence" if tokens else family
    shape = (4,) if tokens else SHAPES[family]
    inputs = [keras.Input(shape, dtype="int32" if tokens else None) for _ in range(choose((1, 2)))]
    ends = []
    for start in inputs:
        x = tokens_to_sequence(drawing, start) if tokens else start
        x = drawing.nested(name, x) if drawing.flip() else x
        x = drawing.block(name, x, choose(range(1, depth + 1)))
        ends.append(layers.Flatten()(x) if len(x.shape) > 2 else x)
    x = layers.Concatenate()(ends) if len(ends) > 1 else ends[0]
    if drawing.flip():  # a branch that merges with the main path
        side = drawing.affine(x.shape[-1])(x)
        x = getattr(layers, choose(MERGES))()([x, side])
    x = choose(EXTRAS)(x)
    first = drawing.made(layers.Dense(2, use_bias=drawing.flip(), name="first"))
    second = drawing.made(layers.Dense(1, name="second"))
    outputs = [first(x), second(x)] if drawing.flip() else [first(x)]
    for layer in drawing.layers:
        if layer is not first and choose(range(5)) == 0:
            layer.trainable = False
    return keras.Model(inputs, outputs)


def drawn(data, family, depth):
    """Draws a model, and options of a comparison."""
    choose = lambda options: data.draw(st.sampled_from(options))  # noqa: E731
    keras.backend.clear_session()
    model = draw_model(choose, family, depth)
    paths = [variable.path for variable in model.trainable_variables]
    kinds = choose(("global", "per_layer", "each_layer", "automatic"))
    weight = choose(([1.0] * ROWS, [0.0, 1.0, 2.0, 0.5], [1.0, 1.0, 0.0, 1.0]))
    options = {"rows": ROWS, "integers": 5 if family == "tokens" else None}
    return model, options | {"bound": make_bound(kinds, 0.5, paths)}, weight


def check_neighbours(run, bound, terms, x, y, weight, extreme):
    """The last row is extreme in one lot, and absent in the other; `run` is an engine in a graph."""
    last = tf.range(ROWS) == ROWS - 1

    def spoilt(part):
        rows = tf.reshape(last, [-1] + [1] * (part.shape.rank - 1))
        return tf.where(rows, tf.cast(9 if part.dtype.is_integer else extreme, part.dtype), part)

    x = tf.nest.map_structure(spoilt, x)
    one, other = run(x, y, weight).sums, run(x, y, tf.where(last, 0.0, weight)).sums
    moved = tf.linalg.global_norm([a - b for a, b in zip(one, other, strict=True)])
    assert moved <= bound.l2_norm_clip * bound.relative_sensitivity() * (1 + rounding(terms))


FAMILIES = ["vector", "image", "sequence", "tokens"]
many = settings(
    max_examples=60,
    derandomize=False,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # without shrinking, which takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@many
@given(data=st.data())
def test_many_random_models_keep_the_sensitivity(family, data):
    model, options, weight = drawn(data, family, depth=5)
    extreme = data.draw(st.sampled_from((0.0, 1.0, 1e4, 1e12, 1e30, float("nan"), float("inf"))))
    engine = data.draw(st.sampled_from((ghost, exact)))
    forward, bound, *rows = lot_for(model, weight=weight, **options)
    run = in_a_graph(engine.bounded_sum, forward, bound)
    check_neighbours(run, bound, terms_for(model, ROWS), *rows, extreme)


@many
@given(data=st.data())
def compare_with_a_loop(family, jit_compile, data):
    # One of 69 such models had losses (sums that nearly cancel) that differed by 1.2e-5. One of 60
    # models with attention on recurrent layers had a sum that moved by 1e-4 when the last digits of
    # the weights changed.
    model, options, weight = drawn(data, family, depth=5)
    options |= {"sample_weight": weight, "microbatch_size": data.draw(st.sampled_from((1, 1, 2)))}
    print(model.to_json(), options, flush=True)
    check_model(model, jit_compile=jit_compile, ill_conditioned=True, **options)


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_many_random_models(family, jit_compile):
    """In a process of its own: where a kernel of TensorFlow crashes, the last line names the model."""
    program = f"from {__name__} import *; compare_with_a_loop({family!r}, {jit_compile})"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
