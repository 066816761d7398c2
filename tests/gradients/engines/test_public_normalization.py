"""Private training with public batch normalization: engines agree, and one example moves only C."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tests.helpers import LOSS, needs_every_convolution
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import exact, ghost, lotwise
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import choose_engine
from tfdp.gradients.testing import check_model, run_engine
from tfdp.layers import PublicBatchNormalization, PublicExamples


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def wrapped(*stack, shape, count=6, **kwargs):
    network = keras.Sequential([keras.Input(shape), *stack])
    examples = PublicExamples(network, draw(count, *shape), **kwargs)
    return keras.Sequential([keras.Input(shape), examples])


def images(**kwargs):
    return wrapped(
        layers.Conv2D(4, 3),
        PublicBatchNormalization(),
        layers.ReLU(),
        layers.Conv2D(3, 3, strides=2),
        PublicBatchNormalization(center=False),
        layers.ReLU(),
        layers.Flatten(),
        layers.Dense(5),
        PublicBatchNormalization(scale=False),
        layers.Dense(3),
        shape=(7, 7, 2),
        **kwargs,
    )


def features(**kwargs):
    return wrapped(
        layers.Dense(5),
        PublicBatchNormalization(),
        layers.Activation("tanh"),
        layers.Dense(3),
        shape=(4,),
        **kwargs,
    )


def sequences(**kwargs):
    return wrapped(
        layers.Conv1D(4, 2), PublicBatchNormalization(), layers.LSTM(3), shape=(6, 3), **kwargs
    )


def without_weights(**kwargs):
    return wrapped(
        layers.Dense(5, use_bias=False),
        PublicBatchNormalization(center=False, scale=False),
        layers.ReLU(),
        layers.Dense(3),
        shape=(3, 4),
        **kwargs,
    )


def residual(**kwargs):
    inputs = keras.Input((6, 6, 2))
    x = layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs)
    x = layers.ReLU()(PublicBatchNormalization()(x))
    y = layers.Conv2D(4, 3, padding="same", groups=2, use_bias=False)(x)
    y = PublicBatchNormalization()(y)
    y = layers.GlobalAveragePooling2D()(layers.Add()([x, y]))
    network = keras.Model(inputs, layers.Dense(3)(y))
    outer = keras.Input((6, 6, 2))
    return keras.Model(outer, PublicExamples(network, draw(6, 6, 6, 2), **kwargs)(outer))


class Doubled(layers.Layer):
    """A layer without a rule, so that the ghost engine computes it row by row."""

    def call(self, x):
        return 2.0 * x


def with_a_layer_of_ones_own(**kwargs):
    stack = (layers.Dense(5), PublicBatchNormalization(), Doubled(), layers.Dense(3))
    return wrapped(*stack, shape=(4,), **kwargs)


def weights_further_up(**kwargs):
    """The moments depend on the weights of two layers."""
    stack = (layers.Dense(5), layers.Dense(4), PublicBatchNormalization(), layers.Dense(3))
    return wrapped(*stack, shape=(4,), **kwargs)


def activation_between(**kwargs):
    stack = (layers.Dense(5, activation="softmax"), PublicBatchNormalization(), layers.Dense(3))
    return wrapped(*stack, shape=(4,), **kwargs)


@pytest.mark.parametrize("gradient", ["local", "stopped"])
@pytest.mark.parametrize(
    "make",
    [
        images,
        features,
        sequences,
        without_weights,
        pytest.param(residual, marks=needs_every_convolution),
    ],
    ids=lambda f: f.__name__,
)
def test_the_ghost_engine_equals_the_exact_engine(make, gradient):
    check_model(make(gradient=gradient), tolerance=5e-5)


@pytest.mark.parametrize(
    "make",
    [with_a_layer_of_ones_own, weights_further_up, activation_between],
    ids=lambda f: f.__name__,
)
def test_what_only_stopped_gradients_let_the_ghost_engine_do(make):
    check_model(make(gradient="stopped"), tolerance=5e-5)
    assert "Public" in ghost.supports(make(gradient="local"))
    assert "gradient='exact'" in ghost.supports(make(gradient="exact"))


def test_gradients_differ_by_what_they_go_through():
    x, y, found = draw(3, 7, 7, 2, seed=1), np.array([0, 1, 2]), {}
    for gradient in ("local", "stopped", "exact"):
        keras.utils.set_random_seed(0)
        model = images(gradient=gradient)
        found[gradient], _ = bounded(model, exact.bounded_sum, x, y, clip=1e6)
    names = [v.path for v in model.trainable_variables]
    sizes = [int(np.prod(v.shape)) for v in model.trainable_variables]
    parts = {k: np.split(v, np.cumsum(sizes)[:-1]) for k, v in found.items()}
    last, first = names.index(_only(names, "dense_", "/kernel")[0]), 0
    # "local" is exact for layers after the last normalization, and not for layers before.
    np.testing.assert_allclose(parts["local"][last], parts["exact"][last], rtol=1e-3, atol=1e-4)
    assert np.abs(parts["local"][first] - parts["exact"][first]).max() > 1e-3
    assert np.abs(parts["local"][last] - parts["stopped"][last]).max() > 1e-3
    # A bias before a normalization has no effect, so its gradient is zero, but not with "stopped".
    biases = [parts[k][1] for k in ("local", "exact", "stopped")]
    assert [np.abs(b).max() > 1e-4 for b in biases] == [False, False, True]


def _only(names, kind, end):
    return [n for n in names if kind in n.split("/")[-2] + "_" and n.endswith(end)]


def test_microbatches():
    check_model(features(), rows=6, microbatch_size=2, tolerance=5e-5)


def test_auto_takes_the_ghost_engine():
    model = images()
    assert ghost.supports(model) is None
    assert choose_engine("ghost", model) is ghost.bounded_sum
    assert choose_engine("auto", model).__name__ == "auto"  # the ghost engine with a fall-back


def test_a_frozen_normalization_has_no_gradient():
    model = images()
    network = model.layers[-1].network
    network.layers[1].trainable = False
    check_model(model, tolerance=5e-5)


# -- sensitivity ---------------------------------------------------------------------------------


def bounded(model, engine, x, y, present=None, clip=1.0):
    model.compile(loss=LOSS)
    weight = np.ones(len(x)) if present is None else np.asarray(present, float)
    forward, bound = Forward(model), GlobalL2Clip(clip)
    x, y, weight = tf.constant(x), tf.constant(y), tf.constant(weight, tf.float32)
    lot = run_engine(engine, forward, bound, x, y, weight)
    return np.concatenate([np.ravel(total) for total in lot.sums]), lot


@pytest.mark.parametrize("engine", [ghost, exact], ids=["ghost", "vectorized"])
@pytest.mark.parametrize("outlier", [0.1, 1e4])
def test_an_example_moves_the_sum_by_at_most_the_clip_norm(engine, outlier):
    model = features()
    x, y = draw(6, 4, seed=1), np.array([0, 1, 2, 0, 1, 2])
    x[2] *= outlier
    for clip in (0.01, 1.0):
        whole, lot = bounded(model, engine.bounded_sum, x, y, clip=clip)
        without, _ = bounded(model, engine.bounded_sum, x, y, [1, 1, 0, 1, 1, 1], clip=clip)
        moved = np.linalg.norm(whole - without)
        assert moved <= lot.sensitivity * (1 + 1e-5)
        assert lot.sensitivity == clip


def test_batch_statistics_break_that_bound():
    # With statistics over the lot, the same neighbours move the sum by more than C.
    model = features(statistics="batch")
    x, y = draw(6, 4, seed=1), np.array([0, 1, 2, 0, 1, 2])
    x[2] *= 1e4
    whole, lot = bounded(model, lotwise.bounded_sum, x, y)
    without, _ = bounded(model, lotwise.bounded_sum, x, y, [1, 1, 0, 1, 1, 1])
    assert 1.5 < np.linalg.norm(whole - without) <= lot.sensitivity == 2 * 6 - 1


def attack(statistics, size):
    """Records are at 1, public examples around 0; the outlier flips the signs of all gradients."""
    public = np.linspace(-0.1, 0.1, 30).astype("float32")[:, np.newaxis]
    network = keras.Sequential(
        [
            keras.Input((1,)),
            PublicBatchNormalization(center=False, scale=False),
            layers.Dense(1, use_bias=False, kernel_initializer="ones"),
        ]
    )
    examples = PublicExamples(network, public, statistics)
    model = keras.Sequential([keras.Input((1,)), examples])
    x = np.ones((size, 1), "float32")
    y = np.ones((size, 1), "float32")
    x[-1], y[-1] = 1000.0, -1.0
    engine = choose_engine("auto", model)
    model.compile(loss=lambda y, y_pred: -1e4 * y * y_pred)
    forward, bound = Forward(model), GlobalL2Clip(1.0)
    present = np.ones(size, "float32")
    sums = []
    for present[-1] in (0.0, 1.0):
        weight = tf.constant(present)
        lot = run_engine(engine, forward, bound, tf.constant(x), tf.constant(y), weight)
        sums.append(float(np.ravel(lot.sums[0])[0]))
    return abs(sums[1] - sums[0]), lot.sensitivity


@pytest.mark.parametrize(("size", "change"), [(2, 3), (8, 15), (32, 63)])
def test_the_attack_on_batch_statistics_attains_the_bound(size, change):
    moved, sensitivity = attack("batch", size)
    assert moved == pytest.approx(change, rel=1e-5)
    assert sensitivity == change
    assert attack("example", size) == (pytest.approx(1.0, rel=1e-5), 1.0)


# -- statistics over the lot ---------------------------------------------------------------------


def test_gradients_through_the_lot_equal_a_loop():
    model = features(statistics="batch")
    x, y = draw(5, 4, seed=1), np.array([0, 1, 2, 0, 1])
    ours, _ = bounded(model, lotwise.bounded_sum, x, y, clip=0.3)

    examples = model.layers[-1]
    stock = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(5),
            layers.BatchNormalization(epsilon=1e-5),
            layers.Activation("tanh"),
            layers.Dense(3),
        ]
    )
    for mine, theirs in zip(examples.trainable_variables, stock.trainable_variables, strict=True):
        theirs.assign(mine)
    total = 0.0
    for row in range(5):
        with tf.GradientTape() as tape:
            logits = stock(np.concatenate([x, examples.examples]), training=True)
            loss = LOSS(y[row : row + 1], logits[row : row + 1])
        gradients = tape.gradient(loss, [v.value for v in stock.trainable_variables])
        flat = np.concatenate([np.ravel(g) for g in gradients])
        total = total + flat * min(1.0, 0.3 / np.linalg.norm(flat))
    np.testing.assert_allclose(ours, total, rtol=1e-4, atol=1e-6)


def test_padding_does_not_enter_batch_statistics():
    model = images(statistics="batch")
    x, y = draw(5, 7, 7, 2, seed=1), np.array([0, 1, 2, 0, 1])
    alone, _ = bounded(model, lotwise.bounded_sum, x[:3], y[:3])
    x[3:] = np.nan
    padded, lot = bounded(model, lotwise.bounded_sum, x, y, [1, 1, 1, 0, 0])
    np.testing.assert_allclose(padded, alone, rtol=1e-5, atol=1e-6)
    assert int(lot.non_finite) == 0


def test_a_lot_with_a_nan_counts_zero():
    model = features(statistics="batch")
    x, y = draw(4, 4, seed=1), np.array([0, 1, 2, 0])
    x[1] = np.nan
    total, lot = bounded(model, lotwise.bounded_sum, x, y)
    assert int(lot.non_finite) == 4 and not total.any()


def test_engines_for_batch_statistics():
    model = images(statistics="batch")
    assert choose_engine("auto", model) is lotwise.bounded_sum
    assert choose_engine("vectorized", model) is lotwise.bounded_sum
    with pytest.raises(ValueError, match="statistics='batch'"):
        choose_engine("ghost", model)


# -- training ------------------------------------------------------------------------------------


def private(model, noise=1.0, **kwargs):
    model = tfdp.make_private(model, **kwargs)
    optimizer = tfdp.DPKerasSGDOptimizer(
        l2_norm_clip=1.0, noise_multiplier=noise, learning_rate=0.1
    )
    model.compile(optimizer, loss=LOSS, metrics=["accuracy"])
    return model


def labels(rows):
    return np.arange(rows) % 3


@pytest.mark.parametrize("jit_compile", [False, True], ids=["plain", "xla"])
@pytest.mark.parametrize("statistics", ["example", "batch"])
def test_training(statistics, jit_compile):
    model = tfdp.make_private(features(statistics=statistics))
    optimizer = tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=0.0, learning_rate=0.5)
    model.compile(optimizer, loss=LOSS, jit_compile=jit_compile)
    x = draw(24, 4, seed=1)
    y = np.argmax(x[:, :3], axis=1)
    history = model.fit(x, y, batch_size=24, epochs=15, shuffle=False, verbose=0)
    assert history.history["loss"][-1] < 0.8 * history.history["loss"][0]
    (run,) = model.privacy.ledger.runs
    assert run.public_examples == 6
    assert run.batch_statistics == (statistics == "batch")


def test_batch_statistics_are_accounted():
    x, y = draw(24, 4, seed=1), labels(24)
    spent = {}
    for statistics in ("example", "batch"):
        model = private(features(statistics=statistics), noise=20.0)
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        spent[statistics] = model.privacy.spent(1e-5).details["sensitivity"]
        assert "6 public examples" in model.privacy.statement(1e-5)
    assert spent == {"example": 1.0, "batch": 15.0}


def test_poisson_lots_with_batch_statistics_have_no_finite_guarantee():
    model = private(features(statistics="batch"))
    model.fit(draw(24, 4, seed=1), labels(24), batch_size=8, verbose=0)
    assert model.privacy.spent(1e-5).epsilon == float("inf")


def test_batch_statistics_refuse_physical_batches():
    model = private(features(statistics="batch"), physical_batch_size=4)
    with pytest.raises(NotImplementedError, match=r"statistics='batch'.*physical"):
        model.fit(draw(24, 4, seed=1), labels(24), batch_size=8, shuffle=False, verbose=0)
    assert model.privacy.steps_taken == 0


def test_physical_batches_do_not_matter_with_statistics_of_the_example():
    x, y, found = draw(24, 4, seed=1), labels(24), []
    for physical in (None, 4):
        keras.utils.set_random_seed(0)
        model = private(features(), noise=0.0, physical_batch_size=physical)
        model.fit(x, y, batch_size=12, shuffle=False, verbose=0)
        found.append(np.concatenate([np.ravel(w) for w in model.get_weights()]))
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


def test_si_dpsgd_trains_too():
    model = tfdp.make_private(features())
    optimizer = tfdp.SIDPSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    model.compile(optimizer, loss=LOSS)
    before = model.layers[-1].examples
    model.fit(draw(24, 4, seed=1), labels(24), batch_size=8, shuffle=False, verbose=0)
    np.testing.assert_array_equal(model.layers[-1].examples, before)  # public examples get no noise
    assert model.privacy.ledger.runs[-1].mechanism_name == "si_dpsgd"


# -- public and private data are disjoint --------------------------------------------------------


@pytest.mark.parametrize("kind", ["arrays", "lots", "float64"])
def test_a_private_example_among_the_public_ones_is_refused(kind):
    model = private(features())
    x, y = draw(24, 4, seed=1), labels(24)
    x[17] = draw(6, 4)[2]
    if kind == "lots":
        x, y = tfdp.data.make_lots("shuffle", x, y, lot_size=8), None
    elif kind == "float64":
        x = x.astype(float)
    options = {} if kind == "lots" else {"batch_size": 8}
    with pytest.raises(ValueError, match=r"1 private examples .*index 17.*disjoint"):
        model.fit(x, y, verbose=0, **options)
    assert model.privacy.ledger.runs == []
