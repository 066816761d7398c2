"""The exact engine equals the definition: gradients of one example at a time, clipped in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.gradients.checking import normal
from tests.rounding import assert_close, terms_of
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import exact, ghost
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
ENGINES = pytest.mark.parametrize("engine", [exact, ghost], ids=["vectorized", "ghost"])


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = layers.Dense(4, activation="relu"), layers.Dense(3)

    def call(self, x):
        return self.out(self.hidden(x)) * 2.0


def sequential(*stack):
    model = keras.Sequential(stack)
    model.compile(loss=LOSS)
    return model


def dense():
    return sequential(keras.Input((6,)), layers.Dense(5, activation="tanh"), layers.Dense(3))


def of_every_kind():
    """Three inputs and two losses; a shared, a nested, a frozen, a penalized and a subclassed part."""
    image, words, numbers = (
        keras.Input((6, 6, 2)),
        keras.Input((4,), dtype="int32"),
        keras.Input((6,)),
    )
    seen = layers.Conv2D(3, 3, activation="relu")(image)
    seen = layers.Flatten()(layers.MaxPooling2D()(layers.LayerNormalization()(seen)))
    read = layers.LSTM(4)(layers.Embedding(9, 3)(words))
    shared = layers.Dense(6, activation="tanh", activity_regularizer=keras.regularizers.L2(0.3))
    frozen = layers.Dense(6, trainable=False)
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="relu")])
    told = layers.Concatenate()([inner(shared(frozen(shared(numbers)))), Subclassed()(numbers)])
    merged = layers.Concatenate()([seen, read, told])
    first = layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.1))(merged)
    model = keras.Model([image, words, numbers], [first, layers.Dense(1)(merged)])
    model.compile(loss=[LOSS, "mse"], loss_weights=[1.0, 0.5])
    rows = 4
    x = (
        normal(rows, 6, 6, 2),
        np.random.default_rng(0).integers(0, 9, (rows, 4)).astype("int32"),
        normal(rows, 6),
    )
    return model, x, (np.arange(rows) % 3, normal(rows, 1, seed=1))


def of_rows(rows=5):
    return dense(), normal(rows, 6), np.arange(rows) % 3


def gradients_of(model, x, y, weight):
    """Returns [rows, weights]: weighted gradients by a plain GradientTape, one example at a time."""
    found = []
    for row in range(len(weight)):
        x_i, y_i = tf.nest.map_structure(lambda a, r=row: tf.constant(a[r : r + 1]), (x, y))
        with tf.GradientTape() as tape:
            # compute_loss adds penalties on activities, which belong to an example, and on weights.
            loss = model.compute_loss(x_i, y_i, model(x_i, training=True))
            loss -= sum(v.regularizer(v) for v in model.trainable_variables if v.regularizer)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        flat = np.concatenate([np.ravel(tf.convert_to_tensor(g)) for g in gradients])
        found.append(weight[row] * flat.astype(float))
    return np.array(found)


def reference(model, x, y, weight, clip):
    """Returns the clipped sum and the norms."""
    return clipped(gradients_of(model, x, y, weight), clip)


def clipped(gradients, clip):
    norms = np.linalg.norm(gradients, axis=1)
    return np.minimum(1.0, clip / np.maximum(norms, 1e-30)) @ gradients, norms


FIELDS = ("norms", "present", "clipped", "non_finite", "losses", "state")


def runner(model, clip=1.0, jit_compile=False, engine=exact, **kwargs):
    """Returns a function of (x, y, weight) that is traced once."""
    forward, bound = Forward(model), GlobalL2Clip(clip)

    @tf.function(autograph=False, jit_compile=jit_compile)
    def step(x, y, weight):
        lot = bounded_sum(engine.bounded_sum, forward, bound, x, y, weight, **kwargs)
        flat = tf.concat([tf.reshape(part, [-1]) for part in lot.sums], 0)
        found = {f: getattr(lot, f) for f in FIELDS}
        return found | {"outputs": lot.outputs.values, "sum": flat}

    def run(x, y, weight):
        x, y = tf.nest.map_structure(tf.constant, (x, y))
        return step(x, y, tf.constant(weight, tf.float32))

    return run


def run(model, x, y, weight, clip=1.0, **options):
    return runner(model, clip, **options)(x, y, weight)


def test_a_model_of_every_kind_equals_a_loop_over_batches_of_one():
    model, x, y = of_every_kind()
    weight = np.array([1.0, 2.0, 1.0, 0.5], np.float32)
    gradients = gradients_of(model, x, y, weight)
    # Some examples are clipped and some are not.
    clip = 1.01 * float(np.median(np.linalg.norm(gradients, axis=1)))
    expected, norms = clipped(gradients, clip)
    for engine in (exact, ghost):
        got = run(model, x, y, weight, clip, engine=engine)
        assert_close(got["sum"], expected, terms_of(model, len(weight)))
        assert_close(got["norms"], norms, terms_of(model), each=True)
        np.testing.assert_array_equal(got["clipped"], norms > clip)


@pytest.mark.parametrize(("engine", "clip"), [(exact, 0.01), (ghost, 100.0)])
def test_all_or_no_examples_are_clipped(engine, clip):
    model, x, y = of_rows()
    expected, norms = reference(model, x, y, np.ones(5), clip)
    assert np.all(norms > clip) or np.all(norms < clip)
    got = run(model, x, y, np.ones(5), clip, engine=engine)
    assert_close(got["sum"], expected, terms_of(model, 5))


XLA_ROOM = 2**9  # 2^-15 in units of 2^-24, see `lot._room_for_rounding`


def test_xla_gives_the_same():
    model, x, y = of_rows()
    plain, compiled = (run(model, x, y, np.ones(5), jit_compile=jit) for jit in (False, True))
    # With XLA, sums leave 2^-15 of themselves as room for rounding.
    assert_close(plain["sum"], compiled["sum"], terms_of(model, 5) + XLA_ROOM)


@ENGINES
def test_bad_and_absent_rows_count_exactly_zero(engine):
    model, x, y = of_rows(8)
    weight = np.ones(8, np.float32)
    x[[1, 3, 5]] = np.nan
    x[6] = 3e38
    weight[[6, 7]] = 0.0  # padding; the huge row would not be finite
    good, _ = reference(model, x[[0, 2, 4]], y[[0, 2, 4]], np.ones(3), 1.0)
    step = runner(model, engine=engine)
    got = step(x, y, weight)
    assert int(got["non_finite"]) == 3
    assert np.isfinite(got["norms"]).all()
    assert_close(got["sum"], good, terms_of(model, 8))
    empty = step(x, y, np.zeros(8))
    assert not np.any(empty["sum"]) and not np.any(empty["present"])
    assert int(empty["non_finite"]) == 0


@ENGINES
def test_microbatches_bound_the_mean_of_a_group(engine):
    (model, x, y), clip, total = of_rows(6), 0.4, 0.0
    got = run(model, x, y, np.ones(6), clip, microbatch_size=3, engine=engine)
    for group in (slice(0, 3), slice(3, 6)):
        mean = reference(model, x[group], y[group], np.ones(3), 1e9)[0] / 3
        total = total + mean * min(1.0, clip / np.linalg.norm(mean))
    assert_close(got["sum"], total, terms_of(model, 6))
    assert got["norms"].shape == (2,)


def test_physical_batches_give_the_whole():
    model, x, y = of_rows(7)
    weight = np.array([1, 1, 0, 2, 1, 1, 1], np.float32)
    x[4] = np.nan
    whole = run(model, x, y, weight)
    parts = run(model, x, y, weight, physical_batch_size=3)
    for field in ("sum", "outputs", "losses"):
        assert_close(whole[field], parts[field], terms_of(model, 7))
    assert int(parts["non_finite"]) == 1


def dropout():
    return sequential(
        keras.Input((40,)), layers.Dropout(0.5, seed=7), layers.Dense(3, use_bias=False)
    )


def test_dropout_masks_differ_between_examples_and_lots():
    model, x, y = dropout(), np.ones((6, 40), np.float32), np.zeros(6, int)
    step = runner(model, physical_batch_size=3)
    first, again = (step(x, y, np.ones(6)) for _ in range(2))
    # The outputs are a function of the random state.
    np.testing.assert_array_equal(first["outputs"], again["outputs"])
    assert len({row.tobytes() for row in first["outputs"].numpy()}) == 6
    forward = Forward(model)
    forward.advance(forward.state(), first["state"])
    later = step(x, y, np.ones(6))
    assert not np.any(np.all(later["outputs"].numpy() == first["outputs"].numpy(), axis=1))


@ENGINES
def test_norm_and_sum_come_from_one_dropout_mask(engine):
    x, y = np.ones((1, 40), np.float32), np.zeros(1, int)
    model = dropout()
    got = run(model, x, y, np.ones(1), clip=1e9, engine=engine)
    assert_close(np.linalg.norm(got["sum"]), got["norms"][0], terms_of(model))
