"""Batch statistics over a whole lot: each example moves all others, and that is what is declared."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tests.gradients.checking import normal
from tests.gradients.reference import in_a_graph
from tests.helpers import LOSS
from tests.rounding import FUNCTION, assert_close, rounding, terms_of
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import lotwise
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import choose_engine
from tfdp.layers import PublicBatchNormalization, PublicExamples


def features():
    stack = [
        layers.Dense(5),
        PublicBatchNormalization(),
        layers.Activation("tanh"),
        layers.Dense(3),
    ]
    network = keras.Sequential([keras.Input((4,)), *stack])
    return keras.Sequential([keras.Input((4,)), PublicExamples(network, normal(6, 4), "batch")])


def lot_of(rows):
    return normal(rows, 4, seed=1), np.arange(rows) % 3


def summing(model, clip=1.0, views=1):
    """Returns a function of (x, y, weight) that is traced once: the sum, and the rows not finite."""
    model.compile(loss=LOSS)
    forward, bound = Forward(model), GlobalL2Clip(clip)

    @tf.function(autograph=False)
    def summed(x, y, weight):
        lot = lotwise.bounded_sum(forward, bound, x, y, weight, tf.constant(0), views=views)
        declared.append(lot.relative_sensitivity)
        return tf.concat([tf.reshape(part, [-1]) for part in lot.sums], 0), lot.non_finite

    def run(x, y, weight=None):
        weight = np.ones(len(x)) if weight is None else weight
        total, bad = summed(tf.constant(x), tf.constant(y), tf.constant(weight, tf.float32))
        return total.numpy(), int(bad)

    declared = run.declared = []
    return run


@pytest.mark.parametrize("views", [1, 2])
def test_an_example_moves_all_others(views):
    (model, (x, y)), weight = (features(), lot_of(6)), np.ones(6)
    x[:views] *= 1e4
    weight[:views] = 0.0
    run = summing(model, views=views)
    (whole, _), (without, _) = run(x, y), run(x, y, weight)
    assert 1.5 < np.linalg.norm(whole - without) <= run.declared[0] == 2 * 6 / views - 1


def attack(statistics, size):
    """Records are at 1, public examples around 0; the outlier flips the signs of all gradients."""
    public = np.linspace(-0.1, 0.1, 30).astype("float32")[:, np.newaxis]
    normalization = PublicBatchNormalization(center=False, scale=False)
    dense = layers.Dense(1, use_bias=False, kernel_initializer="ones")
    network = keras.Sequential([keras.Input((1,)), normalization, dense])
    model = keras.Sequential([keras.Input((1,)), PublicExamples(network, public, statistics)])
    x, y, weight = np.ones((3, size, 1), "float32")
    x[-1], y[-1] = 1000.0, -1.0
    model.compile(loss=lambda y, y_pred: -1e4 * y * y_pred)
    run = in_a_graph(choose_engine("auto", model), Forward(model), GlobalL2Clip(1.0))
    sums = []
    for weight[-1] in (0.0, 1.0):
        lot = run(*map(tf.constant, (x, y, weight[:, 0])))
        sums.append(float(np.ravel(lot.sums[0])[0]))
    return abs(sums[1] - sums[0]), lot.relative_sensitivity


# 32 examples beside 30 public ones, and the moments of all.
ROUNDED = rounding(32 + 30 + 8 * FUNCTION)


def test_the_bound_is_attained():
    assert attack("batch", 32) == (pytest.approx(63, rel=ROUNDED), 63)
    assert attack("example", 32) == (pytest.approx(1.0, rel=ROUNDED), 1.0)


@pytest.mark.parametrize("views", [1, 2])
def test_gradients_through_the_lot_equal_a_loop(views):
    model, (x, y) = features(), lot_of(4)
    ours, _ = summing(model, clip=0.3, views=views)(x, y)
    examples = model.layers[-1]
    stack = [layers.Dense(5), layers.BatchNormalization(epsilon=1e-5)]
    stack += [layers.Activation("tanh"), layers.Dense(3)]
    stock, total = keras.Sequential([keras.Input((4,)), *stack]), 0.0
    for mine, theirs in zip(examples.trainable_variables, stock.trainable_variables, strict=True):
        theirs.assign(mine)
    for own in np.split(np.arange(4), 4 // views):
        with tf.GradientTape() as tape:
            logits = stock(np.concatenate([x, examples.examples]), training=True)
            loss = LOSS(y[own], tf.gather(logits, own))  # a mean
        gradients = tape.gradient(loss, [v.value for v in stock.trainable_variables])
        flat = np.concatenate([np.ravel(g) for g in gradients])
        total = total + flat * min(1.0, 0.3 / np.linalg.norm(flat))
    assert_close(ours, total, terms_of(model, 4))


def test_absent_rows_do_not_enter_the_statistics():
    model, (x, y) = features(), lot_of(5)
    run = summing(model)
    alone, _ = run(x[:3], y[:3])
    x[3:] = np.nan
    padded, bad = run(x, y, [1, 1, 1, 0, 0])
    assert_close(padded, alone, terms_of(model, 5))
    assert bad == 0


def test_a_lot_with_a_nan_counts_zero():
    model, (x, y) = features(), lot_of(4)
    x[1] = np.nan
    total, bad = summing(model)(x, y)
    assert bad == 4 and not total.any()


def test_the_ghost_engine_is_refused():
    assert choose_engine("vectorized", features()) is lotwise.bounded_sum
    with pytest.raises(ValueError, match="statistics='batch'"):
        choose_engine("ghost", features())


def private(**kwargs):
    model = tfdp.make_private(features(), **kwargs)
    options = {"l2_norm_clip": 1.0, "noise_multiplier": 20.0, "learning_rate": 0.5}
    model.compile(tfdp.DPKerasSGDOptimizer(**options), loss=LOSS)
    return model


def test_the_accounting_knows_the_larger_sensitivity():
    model = private()
    model.fit(*lot_of(24), batch_size=8, shuffle=False, verbose=0)
    assert model.privacy.spent(1e-5).details["sensitivity"] == 2 * 8 - 1
    (run,) = model.privacy.ledger.runs
    assert run.contribution.public_examples == 6 and run.contribution.batch_statistics


def test_physical_batches_are_refused():
    model = private(physical_batch_size=4)
    with pytest.raises(NotImplementedError, match="statistics='batch'"):
        model.fit(*lot_of(24), batch_size=8, shuffle=False, verbose=0)
    assert model.privacy.steps_taken == 0
