"""Rules for sequences, attention and factored convolutions equal the exact engine."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfdp._compat import pfor_repairs
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import exact, ghost
from tfdp.gradients.forward import Forward
from tfdp.gradients.per_example import per_example_gradients
from tfdp.gradients.rules import UnsupportedModelError
from tfdp.gradients.rules.recording import owners
from tfdp.gradients.rules.separate_rows import rows_are_separate
from tfdp.gradients.testing import (
    assert_equal_sums,
    check_model,
    check_rule,
    loop_bounded_sum,
    run_engine,
)
from tfdp.layers.noisy import NoisyConv1D, NoisyConv2D, NoisyConv3D, NoisyDense
from tfdp.layers.noisy_lstm import NoisyLSTM

RECURRENT = [layers.SimpleRNN, layers.LSTM, layers.GRU]


@pytest.mark.parametrize(
    ("equation", "shape", "output", "bias_axes"),
    [
        ("ab,bc->ac", (3,), 4, "c"),
        ("...x,xy->...y", (5, 3), 4, "y"),
        ("abc,cde->abde", (5, 3), (5, 2, 3), "de"),
        ("abc,dce->abde", (5, 3), (5, 2, 3), "e"),
        ("abcd,cde->abe", (5, 2, 3), (5, 4), "e"),
        ("abc,bcd->abd", (5, 3), (5, 4), "bd"),  # one kernel per position
        ("abc,cd->ad", (5, 3), 4, None),  # sums over positions
        ("abc,bd->adc", (5, 3), (4, 3), "d"),
    ],
)
def test_einsum_dense(equation, shape, output, bias_axes):
    layer = layers.EinsumDense(equation, output, bias_axes=bias_axes, activation="tanh")
    check_rule(layer, shape)


def test_einsum_dense_across_the_batch_is_refused():
    layer = layers.EinsumDense("ab,ac->bc", (4,), name="odd")
    try:
        layer.build((5, 3))
    except ValueError:
        pytest.skip("this Keras does not build such a layer")
    from tfdp.gradients.rules import rule_for

    assert "batch axis" in rule_for(layer).refusal()


@pytest.mark.parametrize(
    "options",
    [{}, {"strides": 2, "padding": "same", "depth_multiplier": 2}, {"dilation_rate": 2}],
    ids=str,
)
def test_depthwise_and_separable(options):
    check_rule(layers.DepthwiseConv2D(3, activation="tanh", **options), (9, 8, 2), rows=3)
    check_rule(layers.SeparableConv2D(4, 3, activation="tanh", **options), (9, 8, 2), rows=3)


def test_depthwise_and_separable_in_one_dimension():
    check_rule(layers.DepthwiseConv1D(3, strides=2, use_bias=False), (9, 4), rows=3)
    check_rule(layers.SeparableConv1D(5, 3, use_bias=False), (9, 4), rows=3)


def test_rms_normalization_and_prelu():
    check_rule(layers.RMSNormalization(), (3, 4), tolerance=3e-5)
    check_rule(layers.PReLU(), (3, 4))
    check_rule(layers.PReLU(shared_axes=[1]), (3, 4))


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent(kind):
    check_rule(kind(4), (6, 3), tolerance=3e-5)
    layer = kind(4, return_sequences=True, go_backwards=True, dropout=0.5, use_bias=False)
    check_rule(layer, (6, 3), tolerance=3e-5)


@pytest.mark.parametrize("use_bias", [True, False])
def test_gru_that_resets_before_the_product(use_bias):
    layer = layers.GRU(3, reset_after=False, use_bias=use_bias, return_sequences=True)
    check_rule(layer, (4, 5), tolerance=3e-5)


def test_gru_that_resets_before_the_product_with_a_mask():
    tokens = keras.Input((5,), dtype="int32")
    hidden = layers.Embedding(3, 2, mask_zero=True)(tokens)
    model = keras.Model(tokens, layers.GRU(3, reset_after=False)(hidden))
    check_model(model, rows=3, integers=3, tolerance=3e-5, vectorizes=False)


@pytest.mark.parametrize(
    ("kind", "zero_output_for_mask"),
    [
        (layers.LSTM, True),
        pytest.param(layers.LSTM, False, marks=pytest.mark.slow),
        pytest.param(layers.GRU, False, marks=pytest.mark.slow),
        pytest.param(layers.SimpleRNN, False, marks=pytest.mark.slow),
    ],
)
def test_recurrent_with_masks(kind, zero_output_for_mask):
    tokens = keras.Input((None,), dtype="int32")
    hidden = layers.Embedding(4, 3, mask_zero=True)(tokens)
    both = layers.Bidirectional(
        kind(2, return_sequences=True, zero_output_for_mask=zero_output_for_mask)
    )(hidden)
    model = keras.Model(
        tokens, [both, kind(2, go_backwards=True, zero_output_for_mask=zero_output_for_mask)(both)]
    )
    assert rows_are_separate(model, owners(model))
    check_model(model, rows=3, integers=4, tolerance=3e-5, vectorizes=False)


@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU, layers.SimpleRNN])
def test_masked_backward_loops_in_the_exact_engine(kind):
    # Keras' own unrolled loop would hide the outputs with a mask that it does not turn round.
    tokens = keras.Input((4,), dtype="int32")
    hidden = layers.Embedding(4, 3, mask_zero=True)(tokens)
    both = layers.Bidirectional(kind(2, return_sequences=True))(hidden)
    last = kind(2, go_backwards=True, zero_output_for_mask=True)(hidden)
    model = keras.Model(tokens, [both, last])
    model.compile(loss=["mse", "mse"])
    x = np.array([[1, 2, 3, 0], [3, 2, 0, 0], [1, 0, 0, 0]], "int32")
    y = [np.ones((3, 4, 4), "float32"), np.ones((3, 2), "float32")]
    vectorized = per_example_gradients(model, x, y)
    one_by_one = per_example_gradients(model, x, y, method="loop")
    for ours, expected in zip(vectorized, one_by_one, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)


def test_a_sequence_of_unknown_length_is_named():
    # The exact engine unrolls layers with functions that it does not know.
    layer = layers.LSTM(2, activation=lambda x: keras.ops.tanh(x), name="rolled")
    model = keras.Sequential([keras.Input((None, 3)), layer, layers.Dense(1)])
    model.compile(loss="mse")
    specs = tf.TensorSpec((2, None, 3)), tf.TensorSpec((2, 1))
    with pytest.raises(NotImplementedError, match=r"'rolled' .* unknown length"):
        tf.function(lambda x, y: per_example_gradients(model, x, y)).get_concrete_function(*specs)


def test_padding_in_front_of_a_volume_convolution():
    # TensorFlow merges the padding into the convolution, and forgets that this one has its own.
    model = keras.Sequential(
        [
            keras.Input((3, 5, 4, 1)),
            layers.ZeroPadding3D(2),
            layers.Conv3D(1, 2, padding="same", use_bias=False),
        ]
    )
    check_model(model, rows=3)


def test_recurrent_with_states_from_another_layer():
    sequence, start = keras.Input((4, 3)), keras.Input((2,))
    states = [layers.Dense(5)(start), layers.Dense(5)(start)]
    output, h, c = layers.LSTM(5, return_state=True)(sequence, initial_state=states)
    check_model(keras.Model([sequence, start], [output, h, c]), tolerance=3e-5)


DROPPING = {
    "lstm": lambda: layers.LSTM(3, dropout=0.3, recurrent_dropout=0.4),
    "gru": lambda: layers.GRU(3, dropout=0.3, recurrent_dropout=0.4, return_sequences=True),
    "simple": lambda: layers.SimpleRNN(3, recurrent_dropout=0.4, go_backwards=True),
    "bidirectional": lambda: layers.Bidirectional(layers.LSTM(3, recurrent_dropout=0.4)),
}


@pytest.mark.parametrize("name", DROPPING)
def test_recurrent_dropout_has_the_masks_of_the_exact_engine(name):
    check_rule(DROPPING[name](), (5, 2))


@pytest.mark.parametrize("name", ["lstm", "gru", "simple"])
def test_recurrent_layers_keep_their_loop_row_by_row(name, monkeypatch):
    taken = []
    row_by_row = ghost._row_by_row
    monkeypatch.setattr(ghost, "_row_by_row", lambda *a: taken.append(1) or row_by_row(*a))
    stack = [layers.Masking(), layers.Dense(3), layers.Lambda(lambda x: x * 1.0), DROPPING[name]()]
    check_model(keras.Sequential([keras.Input((5, 2)), *stack, layers.Flatten(), layers.Dense(2)]))
    assert taken


def test_recurrent_layers_beyond_the_rule_are_refused():
    layer = layers.GRU(3, recurrent_dropout=0.5, reset_after=False)
    assert "reset_after=False" in ghost.supports(keras.Sequential([keras.Input((4, 2)), layer]))
    cell = layers.RNN(layers.LSTMCell(3), name="by_hand")
    reason = ghost.supports(keras.Sequential([keras.Input((4, 2)), cell]))
    assert "has no rule" in reason


def transformer(mask_zero=True):
    tokens = keras.Input((7,), dtype="int32")
    x = layers.Embedding(9, 6, mask_zero=mask_zero)(tokens)
    attended = layers.MultiHeadAttention(2, 3, dropout=0.2)(x, x)
    x = layers.LayerNormalization()(layers.Add()([x, attended]))
    x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(6, activation="gelu")(x)]))
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(tokens, layers.Dense(2)(layers.Dropout(0.1)(x)))


@pytest.mark.parametrize("mask_zero", [True, False])
def test_transformer(mask_zero):
    model = transformer(mask_zero)
    assert rows_are_separate(model, owners(model))
    check_model(model, integers=9, tolerance=3e-5)


def test_cross_attention():
    check_rule(layers.MultiHeadAttention(2, 3, value_dim=4), (4, 6), (5, 6), tolerance=3e-5)


class RowByRow(keras.Model):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, inputs):
        return self.inner(inputs)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_row_by_row_and_compiled(jit_compile):
    inner = transformer()
    x = np.random.default_rng(0).integers(0, 9, (4, 7)).astype("int32")
    y = np.random.default_rng(1).normal(size=(4, 2)).astype("float32")
    results = []
    for model in (inner, RowByRow(inner)):
        model(x)
        model.compile(loss="mse")
        arguments = (Forward(model), GlobalL2Clip(0.1), x, y, tf.ones([4]), 2)
        results.append(run_engine(ghost.bounded_sum, *arguments, jit_compile=jit_compile))
    assert_equal_sums(*results, 3e-5)


@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU])
def test_recurrent_compiled(kind):
    model = keras.Sequential([keras.Input((5,)), layers.Embedding(9, 3), kind(4)])
    model.compile(loss="mse")
    x = np.random.default_rng(0).integers(0, 9, (4, 5)).astype("int32")
    y = np.random.default_rng(1).normal(size=(4, 4)).astype("float32")
    arguments = (Forward(model), GlobalL2Clip(0.1), x, y, tf.ones([4]), 2)
    plain = run_engine(ghost.bounded_sum, *arguments)
    assert_equal_sums(run_engine(ghost.bounded_sum, *arguments, jit_compile=True), plain, 3e-5)


def test_recurrent_layers_in_code_of_ones_own():
    inner = keras.Sequential([keras.Input((4, 2)), layers.LSTM(3)])
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 4, 2)).astype("float32"), rng.normal(size=(4, 3)).astype("float32")
    results = []
    for model in (inner, RowByRow(inner)):
        model(x)
        model.compile(loss="mse")
        assert ghost.supports(model) is None
        arguments = (Forward(model), GlobalL2Clip(0.1), x, y, tf.ones([4]), 2)
        results.append(run_engine(ghost.bounded_sum, *arguments))
    assert_equal_sums(*results)
    with pytest.raises(UnsupportedModelError, match="XLA cannot run row by row"):
        run_engine(ghost.bounded_sum, *arguments, jit_compile=True)


NOISY = {
    "dense": (lambda: NoisyDense(4, noise_stddev=0.3), (5,)),
    "conv_1d": (
        lambda: NoisyConv1D(4, 3, noise_stddev=0.3, padding="causal", activation="tanh"),
        (6, 2),
    ),
    "conv_1d_strided": (
        lambda: NoisyConv1D(4, 3, noise_stddev=0.3, strides=2, groups=2, use_bias=False),
        (9, 4),
    ),
    "conv_2d": (lambda: NoisyConv2D(4, 3, noise_stddev=0.3, activation="relu"), (5, 6, 2)),
    "conv_3d": (lambda: NoisyConv3D(4, 2, noise_stddev=0.3, activation="tanh"), (3, 4, 3, 2)),
    "conv_3d_strided": (
        lambda: NoisyConv3D(3, 3, noise_stddev=0.3, strides=2, padding="same", use_bias=False),
        (4, 3, 5, 2),
    ),
    "lstm": (lambda: NoisyLSTM(4, noise_stddev=0.3), (5, 3)),
    "lstm_whole": (
        lambda: NoisyLSTM(3, noise_stddev=0.3, return_sequences=True, use_bias=False),
        (4, 2),
    ),
}


@pytest.mark.parametrize("name", NOISY)
def test_noisy_layers_share_one_draw(name):
    make, shape = NOISY[name]
    check_rule(make(), shape)
    x = keras.Input(shape)
    check_model(keras.Model(x, make()(x)), jit_compile=True, vectorizes=False)


@pytest.mark.parametrize("name", NOISY)
def test_noisy_layers_on_both_engines_equal_a_loop_over_batches_of_one(name):
    make, shape = NOISY[name]
    x = keras.Input(shape)
    model = keras.Model(x, layers.Dense(2)(layers.Flatten()(make()(x))))
    model.compile(loss="mse")
    generator = np.random.default_rng(0)
    x = generator.normal(size=(5, *shape)).astype("float32")
    y = generator.normal(size=(5, 2)).astype("float32")
    arguments = (Forward(model), GlobalL2Clip(0.5), x, y, tf.ones([5]))
    expected = run_engine(loop_bounded_sum, *arguments)
    assert_equal_sums(run_engine(ghost.bounded_sum, *arguments), expected)
    pfor_repairs.register()
    assert_equal_sums(run_engine(exact.bounded_sum, *arguments), expected)


@pytest.mark.parametrize("shape", [(3, 4), (1, 1, 3, 4)])
@pytest.mark.parametrize("transposed", [False, True])
def test_batched_products_of_a_batch_of_one(shape, transposed):
    pfor_repairs.register()
    x = tf.random.stateless_normal([5, 1, 6, 3], seed=[1, 2])
    k = tf.random.stateless_normal(shape, seed=[3, 4])
    stored = tf.linalg.matrix_transpose(k) if transposed else k

    @tf.function
    def run():
        def one(row):
            return tf.raw_ops.BatchMatMulV2(x=row, y=stored, adj_y=transposed)

        return tf.vectorized_map(one, x, fallback_to_while_loop=False)

    expected = np.asarray(x) @ np.asarray(k).reshape(3, 4)
    np.testing.assert_allclose(np.reshape(run(), expected.shape), expected, rtol=1e-5, atol=1e-5)
    assert run().shape.rank == (4 if len(shape) == 2 else 5)
