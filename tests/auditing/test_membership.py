"""Black-box attacks: strong against a model that remembers, held down by what is proven."""

import keras
import numpy as np
import pytest
from keras import layers

import tfdp
from tfdp.auditing import ApproximateDP, ExampleCanaries, membership_inference
from tfdp.auditing.membership import log_odds

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def canaries(count=80):
    """Random labels, which can only be learned by heart."""
    draw = np.random.default_rng(0)
    return ExampleCanaries(
        draw.normal(size=(count, 30)).astype("float32"), draw.integers(0, 2, count)
    )


def remembering(world):
    x, y, weight = world.data()
    model = keras.Sequential([keras.Input((30,)), layers.Dense(2)])
    model.compile(keras.optimizers.Adam(0.05), LOSS)
    model.fit(x, y, sample_weight=weight, batch_size=80, epochs=40, verbose=0)
    return model


def private(world):
    x, y, weight = world.data()
    model = tfdp.make_private(keras.Sequential([keras.Input((30,)), layers.Dense(2)]))
    model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=8.0), LOSS)
    lots = tfdp.data.make_lots("cyclic", x, y, lot_size=40, sample_weight=weight)
    model.fit(lots, epochs=5, verbose=0)
    return model


def test_a_model_that_remembers_is_attacked_and_a_private_one_is_not():
    open_model = membership_inference(remembering, canaries(), models=6)
    assert open_model.loss.auc > 0.7 and open_model.lira.auc > 0.7
    assert open_model.guarantee is None and open_model.table()[0][3] is None
    closed = membership_inference(private, canaries(), models=6)
    assert abs(closed.loss.auc - 0.5) < 0.12 and abs(closed.lira.auc - 0.5) < 0.12
    fpr, of_loss, of_lira, allowed = closed.table()[-1]
    expected = ApproximateDP(closed.guarantee.epsilon, 1e-5).largest_tpr(fpr)
    assert allowed == pytest.approx(float(expected)) and max(of_loss, of_lira) < allowed


def test_absent_examples_count_nothing():
    own = canaries(10)
    moved = []
    for _ in range(2):
        world = own.world(0, included=np.arange(10) < 5)
        model = tfdp.make_private(keras.Sequential([keras.Input((30,)), layers.Dense(2)]))
        model.set_weights([np.zeros((30, 2)), np.zeros(2)])
        model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=0.0), LOSS)
        x, y, weight = world.data()
        model.fit(x, y, sample_weight=weight, batch_size=10, shuffle=False, verbose=0)
        moved.append(model.get_weights()[0])
        own.x[5:] = 1e3  # what nobody sees
    np.testing.assert_array_equal(*moved)


def test_logits_and_probabilities_give_the_same_confidence():
    x = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
    logits = keras.Sequential([keras.Input((3,)), layers.Dense(4)])
    probabilities = keras.Sequential([logits, layers.Softmax()])
    y = np.array([0, 1, 2, 3, 0, 1])
    np.testing.assert_allclose(log_odds(logits, x, y), log_odds(probabilities, x, y), rtol=1e-3)


def test_examples_without_labels_are_refused():
    with pytest.raises(ValueError, match="label"):
        ExampleCanaries(np.zeros((3, 2)), np.zeros((3, 2)))
    with pytest.raises(ValueError, match="label"):
        ExampleCanaries(np.zeros((3, 2)), np.zeros(4))
