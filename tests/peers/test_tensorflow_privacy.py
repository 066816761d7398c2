"""What TensorFlow Privacy's own tests assert, of tfdp's optimizers, engines and statements.

Golden values: tensorflow/privacy at commit 03035d5d (after version 0.9.0), below
`tensorflow_privacy/privacy/`. Each test names the file and the test that it was read from. What
TensorFlow Privacy has and tfdp has not (trees, sparse noise, other queries) is in docs/peers.md.
"""

import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tests.peers.one_step import (
    check_engine,
    clipped_mean,
    flat,
    linear,
    mean_gradient,
    per_example,
    private,
)
from tfdp.accounting import Run, noise_for, proven
from tfdp.accounting.numerics import gaussian, subsampled
from tfdp.accounting.strategies import losses, sensitivity, sqrt_coefficients
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.optimizers.adaptive_clipping import AdaptiveClipping

SGD, ADAM, ADAGRAD = (
    tfdp.DPKerasSGDOptimizer,
    tfdp.DPKerasAdamOptimizer,
    tfdp.DPKerasAdagradOptimizer,
)
ENGINES = pytest.mark.parametrize("engine", ["auto", "vectorized"])


# ------------------------------------------------------------------ optimizers


def half_square(y, y_pred):
    """Half the squared distance of a row, whose gradient is the difference."""
    return keras.ops.sum(keras.ops.square(y_pred - y), axis=-1) / 2


def constants(*values):
    """A model whose outputs are three weights, whatever the input, as in the peer's tests."""
    return linear(1, len(values), weights=[np.zeros((1, len(values))), values])


# optimizers/dp_optimizer_keras_test.py: the data of testBaselineWithCallableLossNoNoise, whose mean
# gradient at (1, 2, 3) is (-2.5, -2.5, -0.5), and of testClippingNormMultipleVariables.
POINTS = np.float32([[3, 4, 8], [5, 6, 2], [7, 8, 3], [-1, 0, 1]])
FAR_POINTS = np.float32([[3, 6, 8], [5, 6, 2], [4, 8, 3], [-1, 0, 1]])
NOTHING = np.zeros((4, 1), "float32")


def biases(model):
    return model.get_weights()[1]


@pytest.mark.parametrize(
    ("cls", "microbatches", "engine"),
    [
        (SGD, 1, "auto"),
        (SGD, None, "vectorized"),
        (ADAM, 2, "auto"),
        (ADAGRAD, 4, "vectorized"),
        (tfdp.VectorizedDPKerasAdamOptimizer, None, "auto"),
    ],
)
def test_mean_gradient_without_noise(cls, microbatches, engine):
    """testBaselineWithCallableLossNoNoise; the update is then the plain optimizer's."""
    model = private(
        constants(1, 2, 3), half_square, cls=cls, clip=100.0, rate=2.0,
        num_microbatches=microbatches, make={"engine": engine},
    )  # fmt: skip
    model.train_on_batch(NOTHING, POINTS)
    kind = {SGD: keras.optimizers.SGD, ADAGRAD: keras.optimizers.Adagrad}
    plain = kind.get(cls, keras.optimizers.Adam)(2.0)
    expected = keras.Variable([1.0, 2.0, 3.0])
    plain.apply([tf.constant([-2.5, -2.5, -0.5])], [expected])
    np.testing.assert_allclose(biases(model), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("microbatches", "engine"), [(1, "vectorized"), (2, "auto"), (4, "vectorized")]
)
def test_clipping_over_several_variables(microbatches, engine):
    """testClippingNormMultipleVariables: clip norm 2.5 of the norm over all variables."""
    model = private(
        constants(1, 2, 3), half_square, clip=2.5, num_microbatches=microbatches,
        make={"engine": engine},
    )  # fmt: skip
    model.train_on_batch(NOTHING, FAR_POINTS)
    expected = clipped_mean(np.float32([1, 2, 3]) - FAR_POINTS, 2.5, microbatches)
    np.testing.assert_allclose([1, 2, 3] - biases(model), expected, rtol=1e-5)


def test_clipping_of_a_microbatch():
    """testClippingNorm (sparse): (3, 4) and (6, 8) in one microbatch, clipped at 1: (-0.6, -0.8)."""
    model = private(constants(0, 0), half_square, clip=1.0, num_microbatches=1)
    model.train_on_batch(np.zeros((2, 1), "float32"), np.float32([[3, 4], [6, 8]]))
    np.testing.assert_allclose(-biases(model), [-0.6, -0.8], rtol=1e-6)


# optimizers/dp_optimizer_keras_test.py and keras_models/dp_keras_model_test.py, testNoiseMultiplier:
# clip norm, noise multiplier, microbatches of 16 rows (None: each row).
NOISES = [(2.0, 4.0, 1), (4.0, 1.0, 4), (3.0, 2.0, 4), (8.0, 6.0, 8), (5.0, 2.0, None)]


@pytest.mark.parametrize(("clip", "noise", "microbatches"), NOISES)
def test_scale_of_the_noise(clip, noise, microbatches):
    """The standard deviation is clip norm times noise multiplier over the number of microbatches."""
    model = private(linear(2500), clip=clip, noise=noise, num_microbatches=microbatches)
    moved = mean_gradient(model, np.zeros((16, 2500), "float32"), np.zeros((16, 1), "float32"))
    expected = clip * noise / (microbatches or 16)
    # 2500 numbers: the standard deviation of the estimate is 1.4%. The peer's tolerance is 10%.
    assert np.std(moved) == pytest.approx(expected, rel=0.1)
    assert abs(np.mean(moved)) < 0.2 * expected


@pytest.mark.parametrize("microbatches", [1, None])
def test_a_linear_model_is_learned(microbatches):
    """testKerasModelBaselineNoNoise: weights (-5, 4, 3, 2) and bias 6 to within 0.05."""
    rng = np.random.default_rng(0)
    x = rng.normal(scale=3.0, size=(1000, 4)).astype("float32")
    truth = np.float32([[-5], [4], [3], [2]])
    model = private(linear(4), clip=100.0, rate=0.05, num_microbatches=microbatches)
    model.fit(x, x @ truth + 6, batch_size=8, epochs=1, shuffle=False, verbose=0)
    kernel, bias = model.get_weights()
    np.testing.assert_allclose(kernel, truth, atol=0.05)
    np.testing.assert_allclose(bias, [6.0], atol=0.05)


def test_gradients_of_ones_own_are_not_applied():
    """testRaisesOnNoCallOfComputeGradients, testNoGetGradients: nothing but a private step updates."""
    variable = keras.Variable([0.0])
    for cls in (SGD, ADAM, ADAGRAD):
        optimizer = cls(l2_norm_clip=100.0, noise_multiplier=0.0, learning_rate=2.0)
        with pytest.raises(RuntimeError):
            optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    assert variable.numpy() == 0.0


# optimizers/dp_optimizer_keras_test.py, testLargeBatchEmulationNoNoise: the rows of both small batches,
# and the weights (1, 2) and 3 after the first and the second large step.
EMULATED = np.float32([[2, 0], [0, 1], [4, 2], [2, 1]])


@pytest.mark.parametrize("cls", [SGD, ADAM])
def test_a_large_lot_in_small_chunks(cls):
    """Their gradient_accumulation_steps=2 is physical_batch_size=2 of a lot of 4 here."""

    def total(y, y_pred):
        return keras.ops.sum(y_pred + 0 * y, axis=-1)

    ends = []
    for size in (None, 2):
        model = private(
            linear(2, weights=[[[1.0], [2.0]], [3.0]]), total, cls=cls, clip=100.0,
            make={"physical_batch_size": size},
        )  # fmt: skip
        model.train_on_batch(EMULATED, NOTHING)
        ends.append(flat(model.get_weights()))
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-6)
    if cls is SGD:
        np.testing.assert_allclose(ends[0], [-1.0, 1.0, 2.0], rtol=4e-6)  # room for rounding
    with pytest.raises(ValueError, match="physical_batch_size"):
        cls(l2_norm_clip=1.0, noise_multiplier=0.0, gradient_accumulation_steps=2)


# optimizers/clip_and_aggregate_gradients_test.py, _get_true_grads: an embedding of four rows that six
# examples look up (the last one none), and a weight of its own for every example.
LOOKED_UP = np.int32([1, 1, 2, 3, 2, 0])
TARGETS = np.float32([[3, 4, -1], [5, 6, -2], [7, 8, -2], [-1, 0, -3], [-2, -1, -3], [0, 0, -4]])
EMBEDDING_GRADIENTS = {0: (-2, -3), 1: (-4, -5), 2: (-5, -6), 3: (4, 3), 4: (4, 3)}
WEIGHT_GRADIENTS = (2, 3, 4, 5, 6, 7)


def sparse_model():
    index, row = keras.Input((), dtype="int32"), keras.Input((), dtype="int32")
    found = layers.Embedding(4, 2, name="looked_up")(index)
    present = keras.ops.cast(row < 5, "float32")[:, None]
    own = layers.Embedding(6, 1, name="own")(row)
    model = keras.Model([index, row], layers.Concatenate()([found * present, own]))
    model.set_weights(
        [np.repeat(np.arange(4.0)[:, None], 2, axis=1), np.float32([[1, 1, 2, 2, 3, 3]]).T]
    )
    return model


def sparse_gradients():
    expected = np.zeros((6, 4 * 2 + 6))
    for row, gradient in EMBEDDING_GRADIENTS.items():
        expected[row, 2 * LOOKED_UP[row] : 2 * LOOKED_UP[row] + 2] = gradient
    expected[np.arange(6), 8 + np.arange(6)] = WEIGHT_GRADIENTS
    return expected


def test_gradients_of_looked_up_rows():
    model = sparse_model()
    model.compile("sgd", half_square)
    found = tfdp.per_example_gradients(model, [LOOKED_UP, np.arange(6, dtype="int32")], TARGETS)
    together = np.concatenate([g.numpy().reshape(6, -1) for g in found], axis=1)
    np.testing.assert_allclose(together, sparse_gradients(), atol=1e-6)


# Microbatches, clip norm and method of testCorrectTensor. There a group's losses are summed, here they
# are averaged, which for a clip norm is the same as a clip norm multiplied by the size of a group.
GROUPS = [
    (6, 1e9, "global", "auto"),
    (6, 1.0, "automatic", "vectorized"),
    (2, 1e9, "global", "vectorized"),
    (3, 1.0, "global", "auto"),
]


@pytest.mark.parametrize(("groups", "clip", "clipping", "engine"), GROUPS)
def test_clipped_sums_of_looked_up_rows(groups, clip, clipping, engine):
    model = private(
        sparse_model(), half_square, clip=clip, clipping=clipping,
        num_microbatches=None if groups == 6 else groups, make={"engine": engine},
    )  # fmt: skip
    moved = mean_gradient(model, [LOOKED_UP, np.arange(6, dtype="int32")], TARGETS)
    gradients = sparse_gradients()
    if clipping == "automatic":
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        expected = (clip * gradients / norms).mean(axis=0)
        np.testing.assert_allclose(moved, expected, atol=5e-3 * clip)
    else:
        np.testing.assert_allclose(moved, clipped_mean(gradients, clip, groups), atol=1e-5)


@ENGINES
def test_layers_that_the_loss_does_not_reach(engine):
    """testUnconnectedGradientsAsZeroPasses: such weights have a gradient of zero, without a flag."""

    class Unused(keras.Model):
        def __init__(self):
            super().__init__()
            self.used, self.unused = layers.Dense(1), layers.Dense(2)

        def call(self, x):
            self.unused(x)
            return self.used(x)

    model = Unused()
    model(np.ones((1, 3), "float32"))
    before = model.unused.kernel.numpy()
    model = private(model, clip=1.0, make={"engine": engine})
    moved = mean_gradient(model, np.ones((4, 3), "float32"), np.ones((4, 1), "float32"))
    assert np.any(moved)
    np.testing.assert_array_equal(model.unused.kernel, before)


# ------------------------------------------------------------------ models


# keras_models/dp_keras_model_test.py, get_data: x = (3, 4), y = 15, gradient -(90, 120, 30) at zero.
ONE_X, ONE_Y, ONE_GRADIENT = np.float32([[3, 4]]), np.float32([[15]]), np.float32([-90, -120, -30])


@pytest.mark.parametrize(
    ("clip", "engine"), [(10.0, "auto"), (40.0, "vectorized"), (200.0, "auto"), (1e9, "vectorized")]
)
def test_clipping_of_a_weighted_example(clip, engine):
    """testBaseline and testClippingNorm: the weighted gradient is clipped, and the loss is weighted."""
    model = private(linear(), clip=clip, rate=0.01, make={"engine": engine})
    start = model.get_weights()
    for weight in (1.0, 0.18):
        model.set_weights(start)
        model.reset_metrics()
        loss = model.train_on_batch(ONE_X, ONE_Y, sample_weight=np.float32([weight]))
        gradient = ONE_GRADIENT * weight
        expected = -0.01 * gradient * min(1.0, clip / np.linalg.norm(gradient))
        np.testing.assert_allclose(flat(model.get_weights()), expected, rtol=1e-5)
        assert float(loss) == pytest.approx(225.0 * weight, rel=1e-5)


# testMicrobatches: y of each x, at weights zero and without a bias, clipped at 1.
FOUR_X = np.float32([[2, 3], [4, 5], [6, 7], [8, 9]])
FOUR_Y = np.float32([[1], [3], [-2], [-4]])


@pytest.mark.parametrize(
    ("microbatches", "engine"),
    [(None, "auto"), (None, "vectorized"), (1, "auto"), (2, "vectorized"), (4, "auto")],
)
def test_microbatches(microbatches, engine):
    model = private(
        linear(bias=False), clip=1.0, num_microbatches=microbatches, make={"engine": engine}
    )
    start = model.get_weights()
    for weights in ((1, 1, 1, 1), (0.1, 0.2, 0.3, 0.4)):
        model.set_weights(start)
        weights = np.float32(weights)
        gradients = per_example(model, FOUR_X, FOUR_Y, keras.losses.mean_squared_error, weights)
        found = mean_gradient(model, FOUR_X, FOUR_Y, weights)
        np.testing.assert_allclose(found, clipped_mean(gradients, 1.0, microbatches), rtol=1e-5)


@ENGINES
def test_regularizers_are_not_clipped(engine):
    """testRegularizationGradient: weights 1 become 1 - 2 * 0.025 where the loss has no gradient."""
    inputs = keras.Input((10,))
    dense = layers.Dense(
        1,
        use_bias=False,
        kernel_initializer="ones",
        kernel_regularizer=keras.regularizers.L2(0.025),
    )
    model = private(keras.Model(inputs, dense(inputs) * 0.0), clip=0.01, make={"engine": engine})
    model.train_on_batch(np.ones((2, 10), "float32"), np.zeros((2, 1), "float32"))
    np.testing.assert_allclose(model.get_weights()[0], np.full((10, 1), 0.95), rtol=1e-6)


@pytest.mark.parametrize(("microbatches", "engine"), [(None, "vectorized"), (2, "auto")])
def test_two_weighted_outputs(microbatches, engine):
    """testWeightedLoss: without clipping and noise, a step is the plain model's."""

    def build():
        inputs = {k: keras.Input((10,), name=k) for k in ("foo", "bar")}
        outputs = {
            k: layers.Dense(1, kernel_initializer="ones", name=f"out_{k}")(v)
            for k, v in inputs.items()
        }
        return keras.Model(inputs, outputs)

    x = np.arange(40, dtype="float32").reshape(4, 10) / 40
    data = {"foo": x, "bar": 2 * x}
    y = {"foo": np.zeros((4, 1), "float32"), "bar": np.ones((4, 1), "float32")}
    losses = {"foo": keras.losses.MeanSquaredError(), "bar": keras.losses.MeanAbsoluteError()}
    plain = build()
    plain.compile(keras.optimizers.SGD(1.0), losses, loss_weights={"foo": 0.4, "bar": 0.6})
    plain.train_on_batch(data, y)
    model = tfdp.make_private(build(), engine=engine)
    optimizer = SGD(
        l2_norm_clip=1e9, noise_multiplier=0.0, learning_rate=1.0, num_microbatches=microbatches
    )
    model.compile(optimizer, losses, loss_weights={"foo": 0.4, "bar": 0.6}, jit_compile=False)
    model.train_on_batch(data, y)
    np.testing.assert_allclose(flat(model.get_weights()), flat(plain.get_weights()), rtol=1e-5)


def test_a_model_is_saved_before_its_first_step(tmp_path):
    """optimizers/dp_optimizer_keras_test.py, testKerasModelBaselineAfterSavingLoading."""
    model = private(linear(4), cls=ADAM, clip=1.0, noise=1.0)
    model.save(tmp_path / "model.keras")
    loaded = tfdp.make_private(keras.models.load_model(tmp_path / "model.keras"))
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    loaded.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    assert loaded.privacy.steps_taken == 1


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "none"])
def test_reductions_of_the_loss(reduction):
    """fast_gradient_clipping/clip_grads_test.py, test_clipped_gradients_on_different_losses.

    There "sum" multiplies the noise and the bound by the lot, and "none" raises. Here each row is
    clipped by itself and the divisor is the lot, so that the reduction changes nothing.
    """
    x, y, clip = FOUR_X, FOUR_Y, 30.0
    model = private(linear(), keras.losses.MeanSquaredError(reduction=reduction), clip=clip)
    gradients = per_example(model, x, y, keras.losses.mean_squared_error)
    np.testing.assert_allclose(mean_gradient(model, x, y), clipped_mean(gradients, clip), rtol=1e-5)


# ------------------------------------------------------------------ norms of layers


def sweep(names, cases, ghost, exact):
    """Every case on both engines; only those at the given places run outside of the slow lane.

    Tracing a model for an engine takes about a second, and the whole sweep some minutes.

    Args:
        names: names of the parameters of a case.
        cases: tuples of parameters.
        ghost, exact: places of the cases in the usual lane, for each engine.
    """
    made = []
    for engine, usual in (("ghost", ghost), ("exact", exact)):
        for place, case in enumerate(cases):
            marks = [] if place in usual else [pytest.mark.slow]
            made.append(pytest.param(engine, *case, marks=marks))
    return pytest.mark.parametrize(("engine", *names), made)


def layer_model(layer, shape, **options):
    inputs = keras.Input(shape, **options)
    return keras.Model(inputs, layer(inputs))


DENSE = [(k, m) for k in ("one layer", "two layers", "two towers") for m in (None, 3)]


@sweep(("kind", "microbatches"), DENSE, ghost=(1, 4), exact=(3,))
def test_dense(engine, kind, microbatches):
    """fast_gradient_clipping/registry_functions/dense_test.py, with a sigmoid and nested layers."""
    inputs = keras.Input((4,))
    towers = []
    for tower in range(2 if kind == "two towers" else 1):
        x = layers.Dense(2, activation="sigmoid", name=f"first_{tower}")(inputs)
        towers.append(x if kind == "one layer" else layers.Dense(1, name=f"second_{tower}")(x))
    outputs = towers[0] if len(towers) == 1 else layers.Concatenate()(towers)
    x = np.random.default_rng(1).normal(size=(6, 4)).astype("float32")
    check_engine(engine, keras.Model(inputs, outputs), x, microbatches)


# registry_functions/einsum_dense_test.py, get_einsum_parameter_tuples: equation, shape of an input and
# of an output, axes of the bias.
EINSUMS = [
    ("ab,bc->ac", (2,), (3,), None),
    ("ab,bc->ac", (2,), (3,), "c"),
    ("abc,cd->abd", (2, 3), (2, 4), None),
    ("abc,cd->abd", (2, 3), (2, 4), "b"),
    ("abc,cd->abd", (2, 3), (2, 4), "d"),
    ("abc,cd->abd", (2, 3), (2, 4), "bd"),
    ("abc,cef->abef", (2, 3), (2, 4, 5), None),
    ("abc,cef->abef", (2, 3), (2, 4, 5), "bf"),
    ("...b,bc->...c", (2, 3), (4,), None),
    ("...b,bc->...c", (2, 3), (4,), "c"),
    ("...ab,bc->...ac", (2, 3), (2, 4), None),
    ("...ab,bc->...ac", (2, 4), (2, 4), "c"),
    ("...abc,cd->...abd", (2, 3, 4), (2, 3, 5), None),
    ("...abc,cd->...abd", (2, 3, 4), (2, 3, 5), "b"),
    ("...abc,cd->...abd", (2, 3, 4), (2, 3, 5), "d"),
    ("...abc,cd->...abd", (2, 3, 4), (2, 3, 5), "bd"),
    ("...abc,cef->...abef", (2, 3, 4), (2, 3, 5, 6), None),
    ("...abc,cef->...abef", (2, 3, 4), (2, 3, 5, 6), "bf"),
    ("ab...,bc->ac...", (2, 3), (4, 3), None),
    ("ab...,bc->ac...", (2, 3), (4, 3), "c"),
    ("abc...,cd->abd...", (2, 3, 4), (2, 5, 4), None),
    ("abc...,cd->abd...", (2, 3, 4), (2, 5, 4), "b"),
    ("abc...,cd->abd...", (2, 3, 4), (2, 5, 4), "d"),
    ("abc...,cd->abd...", (2, 3, 4), (2, 5, 4), "bd"),
    ("abc...,cef->abef...", (2, 3, 4), (2, 5, 6, 4), None),
    ("abc...,cef->abef...", (2, 3, 4), (2, 5, 6, 4), "bf"),
]


@sweep(
    ("equation", "shape", "output", "bias"), EINSUMS, ghost=(3, 5, 7, 17, 19, 25), exact=(3, 17, 19)
)  # fmt: skip
def test_einsum_dense(engine, equation, shape, output, bias):
    layer = layers.EinsumDense(equation, output, bias_axes=bias, activation="sigmoid")
    x = np.random.default_rng(2).normal(size=(3, *shape)).astype("float32")
    check_engine(engine, layer_model(layer, shape), x)


# registry_functions/embedding_test.py, get_embedding_inputs, and nlp_on_device_embedding_test.py; rows
# of unequal length are filled up, since Keras 3 has no ragged inputs.
LOOKUPS = [
    [[0, 1], [1, 1], [0, 0]],
    [[[0, 1]], [[1, 1]], [[0, 0]]],
    [[0, 0], [1, 0], [0, 0], [0, 0], [0, 1], [1, 0], [1, 1], [0, 1]],
]


BAGS = [(ids, kind) for ids in LOOKUPS for kind in ("bag", "dense bag", "weighted bag")]


@sweep(("ids", "kind"), BAGS, ghost=(0, 5, 7), exact=(8,))
def test_embedding(engine, ids, kind):
    ids = np.int32(ids)
    inputs = keras.Input(ids.shape[1:], dtype="int32")
    found = layers.Embedding(10, 2)(inputs)
    if kind == "weighted bag":
        size = int(np.prod(found.shape[1:]))
        found = found * np.arange(size, dtype="float32").reshape(found.shape[1:])
    bag = layers.Flatten()(found)
    if kind == "dense bag":
        bag = layers.Dense(1)(bag)
    check_engine(engine, keras.Model(inputs, bag), ids, 4 if len(ids) == 8 else None)


# registry_functions/layer_normalization_test.py, get_layer_norm_parameter_tuples.
NORMALIZED = [
    ((3,), -1), ((3,), [1]), ((3, 4), -1), ((3, 4), [1]), ((3, 4), [1, 2]), ((3, 4, 5), -1),
    ((3, 4, 5), [1]), ((3, 4, 5), [2]), ((3, 4, 5), [1, 2]), ((3, 4, 5), [1, 3]),
    ((3, 4, 5), [2, 3]), ((3, 4, 5), [1, 2, 3]),
]  # fmt: skip


@sweep(("shape", "axis"), NORMALIZED, ghost=(0, 4, 6, 9), exact=(8,))
def test_layer_normalization(engine, shape, axis):
    x = np.random.default_rng(3).normal(size=(4, *shape)).astype("float32")
    check_engine(engine, layer_model(layers.LayerNormalization(axis=axis), shape), x)


# registry_functions/multi_head_attention_test.py, get_attention_parameter_tuples.
ATTENTIONS = [
    ({},),
    ({"use_key": True},),
    ({"use_bias": False},),
    ({"output_shape": (3,)},),
    ({"num_heads": 1, "output_shape": (3,)},),
    ({"use_mask": True},),
]


@sweep(("changes",), ATTENTIONS, ghost=(1, 5), exact=(3,))
def test_multi_head_attention(engine, changes):
    options = dict(num_heads=2, key_dim=2, value_dim=3) | changes
    use_key, use_mask = options.pop("use_key", False), options.pop("use_mask", False)
    query, value = keras.Input((2, 3)), keras.Input((3, 4))
    key, mask = keras.Input((3, 4)), keras.Input((2, 3))
    calls = {"key": key} if use_key else {}
    calls |= {"attention_mask": mask} if use_mask else {}
    inputs = [query, value, *calls.values()]
    outputs = layers.MultiHeadAttention(**options)(query, value, **calls)
    model = keras.Model(inputs, layers.Dense(1)(outputs))
    rng = np.random.default_rng(4)
    x = [rng.normal(size=(4, *i.shape[1:])).astype("float32") for i in inputs]
    if use_mask:
        x[-1] = (rng.random((4, 2, 3)) < 0.6).astype("float32")
    check_engine(engine, model, x, tolerance=1e-4)


class PositionEmbedding(keras.layers.Layer):
    """Weights of their own for every position along an axis, as in TensorFlow Models."""

    def __init__(self, max_length, axis):
        super().__init__()
        self.max_length, self.axis = max_length, axis

    def build(self, shape):
        self.table = self.add_weight(shape=(self.max_length, shape[-1]), initializer="normal")

    def call(self, x):
        used = self.table[: x.shape[self.axis]]
        shape = [1] * len(x.shape)
        shape[self.axis], shape[-1] = used.shape
        return x + keras.ops.broadcast_to(keras.ops.reshape(used, shape), keras.ops.shape(x))


# registry_functions/nlp_position_embedding_test.py, get_nlp_position_embedding_inputs.
POSITIONS = [((3, 2), 6, 1), ((4, 3, 2), 8, 1), ((4, 3, 2), 3, 2)]


@pytest.mark.parametrize(("shape", "length", "axis"), POSITIONS)
def test_position_embedding(shape, length, axis):
    """A layer of one's own has no rule; the graph shows the ghost engine what becomes of its table."""
    x = np.random.default_rng(5).normal(size=(6, *shape)).astype("float32")
    for engine in ("ghost", "exact"):
        model = layer_model(PositionEmbedding(length, axis), shape)
        check_engine(engine, model, x, microbatches=2)


@pytest.mark.parametrize("uses", ["three inputs", "one input three times", "slices"])
def test_shared_layers(uses):
    """clip_grads_test.py, SharedLayerTest: upper bounds there, the exact norms here."""
    shared = layers.Dense(1, use_bias=False)
    rng = np.random.default_rng(6)
    if uses == "three inputs":
        inputs = [keras.Input((3,)) for _ in range(3)]
        outputs = layers.Add()([shared(i) for i in inputs])
        x = [rng.normal(size=(4, 3)).astype("float32") for _ in inputs]
    elif uses == "one input three times":
        inputs = keras.Input((3,))
        outputs = layers.Add()([shared(inputs) for _ in range(3)])
        x = rng.normal(size=(4, 3)).astype("float32")
    else:
        inputs = keras.Input((3, 2))
        outputs = shared(inputs[:, :, 0]) + shared(inputs[:, :, 1])
        x = rng.normal(size=(4, 3, 2)).astype("float32")
    model = keras.Model(inputs, outputs)
    check_engine("ghost", model, x)
    check_engine("exact", model, x)


# ------------------------------------------------------------------ queries


def test_sums_of_a_gaussian_query():
    """dp_query/gaussian_query_test.py: (-6, 8) clipped at 5 and (4, -3) add up to (1, 1)."""
    for records, clip in (([[2, 0], [-1, 1]], 10.0), ([[-6, 8], [4, -3]], 5.0)):
        squares = tf.constant(np.sum(np.square(records), axis=1, keepdims=True), tf.float32)
        scales = GlobalL2Clip(clip).scales(squares).numpy()
        np.testing.assert_allclose(np.sum(scales * np.array(records), axis=0), [1, 1], rtol=1e-6)


# dp_query/quantile_adaptive_clip_sum_query_test.py, the geometric cases: quantile, first clip norm,
# norms of the two records, clip norms after every step.
ROOT = math.sqrt(2.0)
ADAPTATIONS = [
    (0.0, 16.0, (5.0, 2.5), (8.0, 4.0, 4 / ROOT, 2.0, 2.0)),
    (1.0, 0.5, (1.5, 3.0), (1.0, 2.0, 2 * ROOT, 4.0, 4.0)),
]


def adapt(clipping, clip, norms, first):
    unclipped = np.sum(np.asarray(norms) <= clip)
    count = tf.constant(unclipped - len(norms) / 2, tf.float32)
    return float(clipping.next_clip_norm(tf.constant(clip, tf.float32), count, len(norms), first))


@pytest.mark.parametrize(("quantile", "clip", "norms", "expected"), ADAPTATIONS)
def test_adaptive_clip_norms(quantile, clip, norms, expected):
    clipping, first = AdaptiveClipping(0.0, quantile, math.log(2.0)), clip
    for wanted in expected:
        clip = adapt(clipping, clip, norms, first)
        assert clip == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("start", [1.0, 10.0])
@pytest.mark.parametrize(
    "norms", [np.linspace(0, 10, 21), np.full(20, 5.0)], ids=["spread", "equal"]
)
def test_the_clip_norm_finds_the_median(norms, start):
    """test_adaptation_linspace and test_adaptation_all_equal, with geometric updates: 5 after 40."""
    clip = start
    for step in range(50):
        rate = 1.0 / math.sqrt(step + 1) if norms[0] == norms[-1] else 1.0
        clip = adapt(AdaptiveClipping(0.0, 0.5, rate), clip, norms, start)
        if step > 40:
            assert clip == pytest.approx(5.0, abs=0.5)


# ------------------------------------------------------------------ accounting


# analysis/compute_dp_sgd_privacy_test.py, test_compute_dp_sgd_privacy: epsilon by Rényi divergences.
BY_RENYI = [
    (60000, 150, 1.3, 15, 1e-5, 0.7242234026109595),
    (100000, 100, 1.0, 30, 1e-7, 1.4154988495444842),
    (100000000, 1024, 0.1, 10, 1e-7, 5907982.3113984),
]


@pytest.mark.parametrize(("n", "lot", "noise", "epochs", "delta", "expected"), BY_RENYI)
def test_epsilon_of_poisson_lots(n, lot, noise, epochs, delta, expected):
    """The proven epsilon is at most theirs, which is a Rényi bound; ours is close to it."""
    epsilon, _ = tfdp.compute_dp_sgd_privacy(n, lot, noise, epochs, delta)
    assert epsilon <= expected * (1 + 1e-6)
    if expected < 100:
        run = Run(
            mechanism="dpsgd", sampling="poisson", num_examples=n, lot_size=lot,
            steps=math.ceil(epochs * n / lot), noise_multiplier=noise,
        )  # fmt: skip
        bound = proven(run, delta).details["epsilon_rdp"]
        assert expected * 0.98 <= bound <= expected * (1 + 1e-6)


# test_compute_dp_sgd_example_privacy: 1.2 epochs, noise multiplier 0.7, delta 1e-5; epsilon without and
# with Poisson sampling of probability 0.01, by privacy loss distributions and by Rényi divergences.
EXAMPLE_PLD = {(False, None): 10.1224946, (True, None): 24.7160779, (False, 0.01): 2.4612381}
EXAMPLE_RDP = {(False, None): 10.8602036, (True, None): 26.2880374, (False, 0.01): 3.2392676}


@pytest.mark.parametrize(("microbatches", "q"), EXAMPLE_PLD)
def test_epsilon_of_an_example(microbatches, q):
    """1.2 epochs are two participations of an example, or 120 steps of probability 0.01."""
    run = Run(
        mechanism="dpsgd", sampling="cyclic" if q is None else "poisson", num_examples=1000,
        lot_size=10, steps=200 if q is None else 120, noise_multiplier=0.7,
        microbatch_size=2 if microbatches else 1,
    )  # fmt: skip
    found = proven(run, 1e-5).epsilon
    assert found == pytest.approx(EXAMPLE_PLD[microbatches, q], rel=1e-4)
    assert found < EXAMPLE_RDP[microbatches, q]


def figures(**changes):
    """The epsilons of our statement for 10,000 examples, lots of 64, 5 epochs and noise 2.0."""
    settings = dict(
        number_of_examples=10000, batch_size=64, num_epochs=5.0, noise_multiplier=2.0, delta=1e-6
    )
    text = tfdp.compute_dp_sgd_privacy_statement(**(settings | changes))
    head = text.partition("Privacy statement")[0]
    found = re.findall(r"^  proven if (each epoch|lots were).*: +(\S+)$", head, re.M)
    return [math.inf if epsilon == "infinite" else float(epsilon) for _, epsilon in found], text


def test_statement_of_the_epochs():
    """test_dp_sgd_privacy_statement_no_user_dp_with_pld: 12.595 for microbatches and whole epochs.

    With microbatches theirs says 1.199 for Poisson lots. Here nothing is amplified then, because a
    record that is left out moves every later one to another microbatch; without microbatches ours is
    below theirs.
    """
    (poisson, epochs), text = figures()
    assert epochs == pytest.approx(12.595, abs=6e-3)
    assert poisson > epochs and "with microbatches" in text
    (single, _), _ = figures(used_microbatching=False)
    assert 0.3 < single < 1.199


def test_statement_of_users():
    """test_dp_sgd_privacy_statement_user_dp_with_pld: two examples of a user, 30.579 and 2.532.

    Group privacy of a Gaussian is exact here, so the epochs cost less than there.
    """
    found, _ = figures(max_examples_per_user=2)
    assert len(found) == 4
    exact = gaussian.epsilon_of_mu(2 * 2 * math.sqrt(5) / 2, 1e-6)
    assert found[3] == pytest.approx(exact, abs=6e-3) and exact < 30.579
    single, _ = figures(max_examples_per_user=2, used_microbatching=False)
    assert single[0] < single[2] < 2.532


def test_one_example_of_a_user():
    """test_user_privacy_one_example_per_user."""
    found, _ = figures(max_examples_per_user=1, used_microbatching=False)
    assert found[:2] == found[2:]


# logistic_regression/multinomial_logistic_test.py, test_compute_dpsgd_noise_multiplier.
@pytest.mark.parametrize(
    ("n", "epsilon", "lot", "tolerance"), [(500, 0.1, 50, 1e-2), (5000, 10, 10, 1e-3)]
)
def test_noise_of_a_budget(n, epsilon, lot, tolerance):
    run = Run(
        mechanism="dpsgd", sampling="poisson", num_examples=n, lot_size=lot, epochs=40,
        noise_multiplier=1.0,
    )  # fmt: skip
    noise = noise_for(epsilon, 1e-5, run)
    costs = [proven(run.with_noise(noise + d), 1e-5).epsilon for d in (tolerance, -tolerance)]
    assert costs[0] < epsilon < costs[1]


# analysis/tree_aggregation_accountant_test.py, test_compute_eps_tree: noise multiplier and published
# epsilon of 1600 steps, each example in one of them, at delta 1e-6.
@pytest.mark.parametrize(("noise", "published"), [(1.13, 19.74), (8.83, 2.04)])
def test_a_tree_and_the_square_root(noise, published):
    """tfdp has no tree, but the square root strategy: less private noise and a smaller error.

    A tree over 1600 leaves has 11 nodes above a leaf; a prefix sum adds up to 11 nodes.
    """
    nodes = 11
    assert gaussian.epsilon_of_mu(math.sqrt(nodes) / noise, 1e-6) < published
    column = sqrt_coefficients(1600)
    assert sensitivity(column, 1600) < 0.6 * math.sqrt(nodes)
    assert sensitivity(column, 1600) * losses(column, 1600)[1] < 0.5 * nodes


def test_concentrated_privacy_of_a_published_model():
    """test_gaussian_zcdp_to_epsilon: rho = 0.81 is epsilon 8.92 at delta 1e-10 by their orders."""
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
    by_orders, _ = subsampled.rdp_to_epsilon(0.81 * np.array(orders), 1e-10, orders)
    assert by_orders == pytest.approx(8.92, abs=0.01)
    assert 8.0 < gaussian.epsilon_of_mu(math.sqrt(2 * 0.81), 1e-10) < by_orders


# logistic_regression/multinomial_logistic_test.py, test_logistic_dpsgd: accuracy on separable data.
def test_accuracy_on_separable_data():
    """Two classes in three dimensions, epsilon 1 at delta 1e-5: at least 95% are right."""
    rng = np.random.default_rng(0)
    normal = rng.normal(size=3)
    x = rng.normal(size=(5500, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = (x @ normal > 0).astype("int32")
    x = x.astype("float32")
    model = tfdp.make_private(linear(3, 2))
    run = Run(
        mechanism="dpsgd", sampling="poisson", num_examples=5000, lot_size=250, epochs=10,
        noise_multiplier=1.0,
    )  # fmt: skip
    optimizer = SGD(
        l2_norm_clip=1.0, noise_multiplier=noise_for(1.0, 1e-5, run), learning_rate=2.0, seed=0
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    model.fit(x[:5000], y[:5000], batch_size=250, epochs=10, verbose=0)
    right = np.argmax(model.predict(x[5000:], verbose=0), axis=1) == y[5000:]
    assert right.mean() > 0.95
