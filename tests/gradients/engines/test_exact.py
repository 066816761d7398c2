"""The exact engine equals the definition: gradients of one example at a time, clipped in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import exact
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum
from tfdp.gradients.per_example import per_example_gradients

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sequential(*stack, loss=LOSS):
    model = keras.Sequential(stack)
    model.compile(loss=loss)
    return model


def dense():
    return sequential(keras.Input((6,)), layers.Dense(5, activation="tanh"), layers.Dense(3))


def images():
    return sequential(
        keras.Input((8, 8, 2)),
        layers.Conv2D(3, 3, activation="relu"),
        layers.LayerNormalization(),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(3),
    )


def words(recurrent=layers.LSTM):
    stack = (
        keras.Input((4,), dtype="int32"),
        layers.Embedding(9, 3),
        recurrent(4),
        layers.Dense(3),
    )
    return sequential(*stack)


def branches():
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    shared = layers.Dense(4, activation="tanh")
    merged = layers.Concatenate()([shared(a), shared(b)])  # a layer that is used twice
    model = keras.Model([a, b], [layers.Dense(3)(merged), layers.Dense(1)(merged)])
    model.compile(loss=[LOSS, "mse"], loss_weights=[1.0, 0.5])
    return model


def nested():
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="relu")])
    x = keras.Input((6,))
    model = keras.Model(x, layers.Dense(3)(inner(x)))
    model.compile(loss=LOSS)
    return model


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = layers.Dense(4, activation="relu"), layers.Dense(3)

    def call(self, x):
        return self.out(self.hidden(x)) * 2.0


def subclassed():
    model = Subclassed()
    model(np.zeros((1, 6)))
    model.compile(loss=LOSS)
    return model


def penalized():
    return sequential(
        keras.Input((6,)),
        layers.Dense(4, activation="tanh", activity_regularizer=keras.regularizers.L2(0.3)),
        layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.1)),
    )


def frozen():
    model = dense()
    model.layers[0].trainable = False
    return model


def data(model, rows=5, seed=0):
    draw = np.random.default_rng(seed)
    x = [
        draw.integers(0, 9, (rows, *i.shape[1:])).astype("int32")
        if "int" in i.dtype
        else draw.normal(size=(rows, *i.shape[1:])).astype("float32")
        for i in getattr(model, "inputs", [keras.KerasTensor((None, 6))])
    ]
    y = draw.integers(0, 3, rows)
    if len(x) > 1:
        return tuple(x), (y, draw.normal(size=(rows, 1)).astype("float32"))
    return x[0], y


def reference(model, x, y, weight, clip):
    """Sum and norms by a plain GradientTape over one example at a time."""
    total, norms = None, []
    for row in range(len(weight)):
        x_i, y_i = tf.nest.map_structure(lambda a, r=row: tf.constant(a[r : r + 1]), (x, y))
        with tf.GradientTape() as tape:
            # compute_loss adds penalties on activities, which belong to an example, and on weights.
            loss = model.compute_loss(x_i, y_i, model(x_i, training=True))
            loss -= sum(v.regularizer(v) for v in model.trainable_variables if v.regularizer)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        gradients = [weight[row] * tf.convert_to_tensor(g).numpy().astype(float) for g in gradients]
        norms.append(np.sqrt(sum((g**2).sum() for g in gradients)))
        scale = min(1.0, clip / norms[-1]) if norms[-1] else 0.0
        gradients = [scale * g for g in gradients]
        total = (
            gradients if total is None else [a + b for a, b in zip(total, gradients, strict=True)]
        )
    return total, np.array(norms)


def run(model, x, y, weight, clip=1.0, jit_compile=False, engine=exact.bounded_sum, **kwargs):
    forward, bound = Forward(model), GlobalL2Clip(clip)
    static = {}

    @tf.function(autograph=False, jit_compile=jit_compile)
    def step(x, y, weight):
        lot = bounded_sum(engine, forward, bound, x, y, weight, **kwargs)
        static["sensitivity"] = lot.sensitivity
        fields = ("sums", "norms", "present", "clipped", "non_finite", "losses", "outputs", "state")
        return {f: getattr(lot, f) for f in fields}

    x, y = tf.nest.map_structure(tf.constant, (x, y))
    return step(x, y, tf.constant(weight, tf.float32)) | static


FAMILY = [dense, images, words, branches, nested, subclassed, penalized, frozen]


@pytest.mark.parametrize("make", FAMILY, ids=lambda f: f.__name__)
def test_equals_a_loop_over_batches_of_one(make):
    model = make()
    x, y = data(model)
    weight = np.array([1.0, 2.0, 1.0, 0.5, 1.0], np.float32)
    _, norms = reference(model, x, y, weight, 1.0)
    clip = 1.01 * float(np.median(norms))  # some examples are clipped and some are not
    sums, norms = reference(model, x, y, weight, clip)
    got = run(model, x, y, weight, clip)
    for a, b in zip(got["sums"], sums, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, clip))
    np.testing.assert_allclose(got["norms"], norms, rtol=1e-4)
    np.testing.assert_array_equal(got["clipped"], norms > clip)


@pytest.mark.slow
def test_gru_equals_a_loop_over_batches_of_one():
    test_equals_a_loop_over_batches_of_one(lambda: words(layers.GRU))


@pytest.mark.parametrize("make", [dense, images], ids=lambda f: f.__name__)
def test_xla_gives_the_same(make):
    model = make()
    x, y = data(model)
    plain = run(model, x, y, np.ones(5))
    compiled = run(model, x, y, np.ones(5), jit_compile=True)
    for a, b in zip(plain["sums"], compiled["sums"], strict=True):
        # With XLA, sums leave 3e-5 of themselves as room for rounding.
        np.testing.assert_allclose(a, b, rtol=5e-5, atol=2e-5)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_bad_and_absent_rows_count_exactly_zero(jit_compile):
    model = dense()
    x, y = data(model, rows=8)
    weight = np.ones(8, np.float32)
    good = run(model, x[[0, 2, 4]], y[[0, 2, 4]], weight[:3], jit_compile=jit_compile)
    x[1], x[3, 0], x[5, 2], x[6] = np.nan, np.inf, -np.inf, 3e38
    weight[[6, 7]] = 0.0  # padding; the huge row would not be finite
    got = run(model, x, y, weight, jit_compile=jit_compile)
    assert int(got["non_finite"]) in (1, 2, 3)  # tanh turns an infinite input into 1
    finite = np.isfinite(np.array(got["norms"]))
    assert finite.all()
    x[[3, 5]] = np.nan
    got = run(model, x, y, weight, jit_compile=jit_compile)
    assert int(got["non_finite"]) == 3
    for a, b in zip(got["sums"], good["sums"], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    empty = run(model, x, y, np.zeros(8), jit_compile=jit_compile)
    assert all(np.all(np.array(s) == 0.0) for s in empty["sums"])
    assert int(empty["non_finite"]) == 0 and not np.any(empty["present"])


def test_microbatches_bound_the_mean_of_a_group():
    model = dense()
    x, y = data(model, rows=6)
    clip = 0.4
    got = run(model, x, y, np.ones(6), clip, microbatch_size=3)
    total = None
    for group in (slice(0, 3), slice(3, 6)):
        rows, _ = reference(model, x[group], y[group], np.ones(3), 1e9)
        mean = [g / 3 for g in rows]
        norm = np.sqrt(sum((g**2).sum() for g in mean))
        mean = [g * min(1.0, clip / norm) for g in mean]
        total = mean if total is None else [a + b for a, b in zip(total, mean, strict=True)]
    for a, b in zip(got["sums"], total, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert got["norms"].shape == (2,)


@pytest.mark.parametrize("physical_batch_size", [1, 2, 3, 4, 7])
def test_physical_batches_give_the_whole(physical_batch_size):
    model = dense()
    x, y = data(model, rows=7)
    weight = np.array([1, 1, 0, 2, 1, 1, 1], np.float32)
    x[4] = np.nan
    whole = run(model, x, y, weight)
    parts = run(model, x, y, weight, physical_batch_size=physical_batch_size)
    for a, b in zip(whole["sums"], parts["sums"], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    np.testing.assert_allclose(whole["outputs"], parts["outputs"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(whole["losses"], parts["losses"], rtol=1e-5, atol=1e-6)
    assert int(parts["non_finite"]) == 1


def dropout():
    return sequential(
        keras.Input((40,)), layers.Dropout(0.5, seed=7), layers.Dense(3, use_bias=False)
    )


@pytest.mark.parametrize("physical_batch_size", [None, 3])
def test_dropout_masks_differ_between_examples_and_lots(physical_batch_size):
    model = dropout()
    x, y = np.ones((6, 40), np.float32), np.zeros(6, int)
    first = run(model, x, y, np.ones(6), physical_batch_size=physical_batch_size)
    again = run(model, x, y, np.ones(6), physical_batch_size=physical_batch_size)
    # The outputs are a function of the random state.
    np.testing.assert_array_equal(first["outputs"], again["outputs"])
    assert len({row.tobytes() for row in first["outputs"].numpy()}) == 6
    forward = Forward(model)
    forward.advance(forward.state(), first["state"])
    later = run(model, x, y, np.ones(6), physical_batch_size=physical_batch_size)
    assert not np.any(np.all(later["outputs"].numpy() == first["outputs"].numpy(), axis=1))


def test_norm_and_sum_come_from_one_dropout_mask():
    model = dropout()
    x, y = np.ones((1, 40), np.float32), np.zeros(1, int)
    got = run(model, x, y, np.ones(1), clip=1e9)
    norm = np.sqrt(sum((s.numpy() ** 2).sum() for s in got["sums"]))
    np.testing.assert_allclose(norm, got["norms"][0], rtol=1e-5)


def test_an_op_that_cannot_be_vectorized_is_named():
    class Odd(layers.Layer):
        def call(self, x):
            return x + tf.stop_gradient(tf.cast(tf.raw_ops.Unique(x=x[0]).idx, "float32"))

    model = sequential(keras.Input((6,)), layers.Dense(6), Odd(), layers.Dense(3))
    x, y = data(model)
    with pytest.raises(
        NotImplementedError, match=r"'odd' \(Odd\) .* cannot vectorize: .* op Unique"
    ):
        run(model, x, y, np.ones(5))


@pytest.mark.parametrize("layer", [layers.LSTM, layers.GRU, layers.SimpleRNN])
@pytest.mark.parametrize("rows", [1, 2])
def test_recurrent_layers_with_one_row(layer, rows):
    model = keras.Sequential([keras.Input((5, 3)), layer(4), layers.Dense(2)])
    model.compile(loss="mse")
    draw = np.random.default_rng(0).normal
    x, y = draw(size=(rows, 5, 3)).astype("float32"), draw(size=(rows, 2)).astype("float32")
    run = tf.function(lambda x, y: per_example_gradients(model, x, y), autograph=False)
    found = run(tf.constant(x), tf.constant(y))
    for row in range(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x[row : row + 1]) - y[row : row + 1]))
        expected = tape.gradient(loss, [v.value for v in model.trainable_variables])
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours[row], theirs, rtol=1e-4, atol=1e-6)
