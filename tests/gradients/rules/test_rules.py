"""Every rule equals the exact engine, on hyperparameters drawn by hypothesis."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keras import layers

from tests.helpers import EVERY_CONVOLUTION, needs_every_convolution
from tfdp.gradients.engines import ghost
from tfdp.gradients.rules import Instantiated, Rule, register, rule_for
from tfdp.gradients.rules.per_example_gradient import Lookups, OuterProducts
from tfdp.gradients.testing import check_rule

few = settings(
    max_examples=5,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@few
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    units=st.integers(1, 6),
    use_bias=st.booleans(),
    activation=st.sampled_from([None, "relu", "softmax"]),
)
def test_dense(shape, units, use_bias, activation):
    check_rule(layers.Dense(units, use_bias=use_bias, activation=activation), tuple(shape))


def test_dense_long_sequence_is_instantiated():
    check_rule(layers.Dense(3), (40, 2))


def test_dense_unknown_length():
    check_rule(layers.Dense(3), (None, 4))


@pytest.mark.parametrize("rank", [1, 2])
@few
@given(data=st.data())
def test_conv(rank, data):
    size = data.draw(st.tuples(*[st.integers(1, 4)] * rank), "kernel_size")
    strides = data.draw(st.tuples(*[st.integers(1, 3)] * rank), "strides")
    dilation = data.draw(st.tuples(*[st.integers(1, 2)] * rank), "dilation")
    if max(strides) > 1:  # Keras does not allow both strides and dilations
        dilation = (1,) * rank
    # TensorFlow's gradient of unequal strides is not defined on a CPU.
    strides = (strides[0],) * rank
    padding = data.draw(st.sampled_from(["valid", "same", "causal"][: 3 if rank == 1 else 2]))
    groups = data.draw(st.sampled_from([1, 1, 1, 2]), "groups")
    channels = groups * data.draw(st.integers(1, 7 // groups), "channels")
    filters = groups * data.draw(st.integers(1, 3), "filters")
    lengths = data.draw(st.tuples(*[st.integers(7, 11)] * rank), "lengths")
    kind = getattr(layers, f"Conv{rank}D")
    layer = kind(
        filters,
        size,
        strides=strides,
        dilation_rate=dilation,
        padding=padding,
        groups=groups,
        use_bias=data.draw(st.booleans(), "use_bias"),
        activation="tanh",
    )
    check_rule(layer, (*lengths, channels), rows=3)


@pytest.mark.parametrize("shape", [(9, 12, 1), (13, 7, 1)])
@pytest.mark.parametrize("strides", [1, 2, 3])
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_conv2d_one_channel(shape, strides, padding):
    check_rule(layers.Conv2D(3, (4, 5), strides=strides, padding=padding), shape)


@pytest.mark.parametrize("channels", [2, 6])
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_conv3d(channels, padding):
    layer = layers.Conv3D(3, (2, 3, 1), strides=2, padding=padding)
    check_rule(layer, (5, 4, 3, channels), rows=3)


@pytest.mark.parametrize("strides", [(2, 3), (3, 1)])
def test_conv2d_uneven_strides(strides):
    check_rule(layers.Conv2D(3, (4, 3), strides=strides, padding="same"), (13, 11, 6), rows=3)


def test_conv2d_many_channels_small_image():
    check_rule(layers.Conv2D(40, 3, padding="same"), (2, 2, 48))


def test_conv_unknown_length():
    check_rule(layers.Conv1D(3, 3, padding="same"), (None, 6))


@pytest.mark.parametrize("rank", [1, 2])
@few
@given(data=st.data())
def test_conv_transpose(rank, data):
    stride = data.draw(st.integers(1, 3), "stride")
    dilates = stride == 1 and EVERY_CONVOLUTION
    dilation = data.draw(st.integers(1, 2), "dilation") if dilates else 1
    layer = getattr(layers, f"Conv{rank}DTranspose")(
        data.draw(st.integers(1, 6), "filters"),
        data.draw(st.tuples(*[st.integers(1, 4)] * rank), "kernel_size"),
        strides=stride,
        dilation_rate=dilation,
        padding=data.draw(st.sampled_from(["valid", "same"]), "padding"),
        use_bias=data.draw(st.booleans(), "use_bias"),
        activation="tanh",
    )
    lengths = data.draw(st.tuples(*[st.integers(3, 6)] * rank), "lengths")
    check_rule(layer, (*lengths, data.draw(st.integers(1, 6), "channels")), rows=3)


@pytest.mark.parametrize("padding", ["valid", "same"])
def test_conv_transpose_with_output_padding(padding):
    layer = layers.Conv2DTranspose(2, 3, strides=2, padding=padding, output_padding=(1, 0))
    check_rule(layer, (4, 5, 6), rows=3)


def test_conv3d_transpose():
    check_rule(layers.Conv3DTranspose(3, 2, strides=2), (3, 4, 3, 2), rows=3)


@needs_every_convolution
@pytest.mark.parametrize(
    "layer",
    [
        layers.Conv1D(4, 3, data_format="channels_first"),
        layers.Conv2D(4, 3, data_format="channels_first"),
        layers.Conv2DTranspose(4, 3, data_format="channels_first"),
        layers.DepthwiseConv2D(3, data_format="channels_first"),
        layers.SeparableConv2D(4, 3, data_format="channels_first"),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_channels_first(layer):
    check_rule(layer, (2, 8, 5)[: layer.rank + 1], rows=3)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (layers.Conv2D(4, 3, data_format="channels_first"), (2, 8, 6)),  # outputs (4, 6, 4)
        (layers.SeparableConv2D(4, 3, data_format="channels_first"), (2, 8, 6)),
        (layers.EinsumDense("abc,cd->abd", (5, 5), bias_axes="b"), (5, 3)),
        (layers.EinsumDense("abcd,de->abce", (5, 5, 3), bias_axes="c"), (5, 5, 2)),
        (layers.RMSNormalization(axis=1), (5, 5)),
    ],
    ids=["conv", "separable", "einsum", "einsum_middle", "rms"],
)
def test_layers_whose_vector_keras_puts_on_another_axis_are_refused(layer, shape):
    # Keras applies the vector along the last axis. A rule for the right axis would be wrong.
    model = keras.Sequential([keras.Input(shape), layer])
    assert "axis" in ghost.supports(model) or "axes" in ghost.supports(model)
    assert f"'{layer.name}'" in ghost.supports(model)
    layer.trainable = False
    assert ghost.supports(keras.Sequential([keras.Input(shape), layer, layers.Dense(2)])) is None


@few
@given(
    shape=st.lists(st.integers(2, 5), min_size=1, max_size=3),
    scale=st.booleans(),
    data=st.data(),
)
def test_layer_normalization(shape, scale, data):
    axes = st.sets(st.integers(1, len(shape)), min_size=1)
    axis = sorted(data.draw(axes, "axis"))
    check_rule(layers.LayerNormalization(axis=axis, scale=scale), tuple(shape), tolerance=3e-5)


@pytest.mark.parametrize(("axis", "groups"), [(-1, 2), (-1, 1), (-1, -1), (1, 2)])
@pytest.mark.parametrize("center", [True, False])
def test_group_normalization(axis, groups, center):
    layer = layers.GroupNormalization(groups, axis=axis, center=center)
    check_rule(layer, (4, 5, 4), tolerance=3e-5)


@pytest.mark.parametrize("mask_zero", [True, False])
@pytest.mark.parametrize("shape", [(7,), (2, 3), (1,)])
def test_embedding(mask_zero, shape):
    check_rule(layers.Embedding(5, 3, mask_zero=mask_zero), shape, integers=5)


class _Scale(layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=shape[-1:])

    def call(self, inputs):
        return inputs * self.factor


class _ScaleRule(Rule):
    def variables(self):
        return [self.layer.factor]

    def call(self, record, inputs):
        return record(inputs * self.layer.factor, inputs=inputs)

    def gradients(self, calls):
        (call,) = calls
        return [(self.layer.factor, Instantiated(call.gradient * call["inputs"]))]


class _WrongRule(_ScaleRule):
    def gradients(self, calls):
        (call,) = calls
        inputs = tf.roll(call["inputs"], 1, axis=1)
        return [(self.layer.factor, Instantiated(call.gradient * inputs))]


def test_rule_of_ones_own(monkeypatch):
    from tfdp.gradients import rules

    monkeypatch.setattr(rules, "_REGISTRY", dict(rules._REGISTRY))
    assert rule_for(_Scale()) is None
    register(_Scale)(_ScaleRule)
    check_rule(_Scale(), (7,))


def test_a_wrong_rule_is_caught(monkeypatch):
    from tfdp.gradients import rules

    monkeypatch.setattr(rules, "_REGISTRY", dict(rules._REGISTRY))
    register(_Scale)(_WrongRule)
    with pytest.raises(AssertionError, match="relative difference"):
        check_rule(_Scale(), (7,))


def test_a_subclass_is_not_matched():
    class Doubled(layers.Dense):
        def call(self, inputs):
            return 2.0 * super().call(inputs)

    assert rule_for(Doubled(3)) is None
    with pytest.raises(AssertionError, match="Doubled"):
        check_rule(Doubled(3), (4,))


def test_an_instance_with_its_own_call_is_not_matched():
    layer = layers.Dense(3)
    object.__setattr__(layer, "call", lambda inputs: inputs)
    assert rule_for(layer) is None


def _random(*shape):
    return tf.random.stateless_normal(shape, seed=[1, shape[-1]])


@pytest.mark.parametrize("positions", [1, 3, 50])
def test_outer_products_equal_what_they_stand_for(positions):
    left, right = _random(6, positions, 4), _random(6, positions, 5)
    whole = tf.matmul(left, right, transpose_a=True)
    products = OuterProducts(left, right)
    weights = _random(6)
    for ours, theirs in ((products, Instantiated(whole)), (products.grouped(2), None)):
        theirs = theirs or Instantiated(whole).grouped(2)
        tf.debugging.assert_near(ours.square_norms(), theirs.square_norms(), rtol=1e-5)
        rows = ours.square_norms().shape[0]
        weights = _random(6)[:rows]
        tf.debugging.assert_near(
            ours.weighted_sum(weights), theirs.weighted_sum(weights), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("positions", [1, 5])
@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e-19, 1e-17, 1e-12, 1.0, 1e12, 1e17, 1e19, 1e30])
def test_norms_never_understate(positions, scale):
    # Squared separately, one factor overflows and the other underflows. An example could choose such
    # factors, and a norm of zero would not be clipped.
    # With five positions of 300 and 200 numbers, the norms are computed by Gram matrices.
    left, right = scale * _random(4, positions, 300), _random(4, positions, 200) / scale
    if positions == 1:
        left, right = left[:, 0], right[:, 0]
    products = OuterProducts(left, right)
    found = np.array(products.square_norms(), float)
    assert products._products is None
    left, right = (np.array(f, float).reshape(4, positions, -1) for f in (left, right))
    exact = np.square(np.einsum("ntp,ntq->npq", left, right)).sum(axis=(1, 2))
    assert np.all(~np.isfinite(found) | (found >= exact * (1 - 1e-5)))
    if 1e-10 < scale < 1e10:
        np.testing.assert_allclose(found, exact, rtol=1e-4)


def test_cancellation_never_understates_a_norm():
    # The outer products of the two positions cancel up to rounding. Gram matrices compute their
    # difference from numbers that are 1e8 times larger.
    left = tf.tile(_random(1, 1, 500), [1, 2, 1])
    right = _random(1, 1, 400)
    right = tf.concat([right, -right * (1 + 1e-4)], axis=1)
    products = OuterProducts(left, right)
    ours = products.square_norms()[0]
    assert products._products is None  # computed by Gram matrices
    exact = Instantiated(tf.matmul(left, right, transpose_a=True)).square_norms()[0]
    assert ours >= exact


def test_lookups_add_up_before_they_are_squared():
    vectors = _random(4, 6, 3)
    indices = tf.constant([[0, 1, 2, 1, 1, 4], [3, 3, 3, 3, 3, 3], [0, 1, 2, 3, 4, 0], [2] * 6])
    table = tf.einsum("ntv,ntd->nvd", tf.one_hot(indices, 5), vectors)
    lookups = Lookups(indices, vectors, 5)
    tf.debugging.assert_near(lookups.square_norms(), Instantiated(table).square_norms(), rtol=1e-5)
    grouped = Instantiated(table).grouped(2).square_norms()
    tf.debugging.assert_near(lookups.grouped(2).square_norms(), grouped, rtol=1e-5)


def test_registry_loads_without_a_model():
    assert rule_for(keras.layers.Dense(1)) is not None
    assert rule_for(keras.layers.BatchNormalization()) is None
