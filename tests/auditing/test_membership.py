"""Black-box attacks: strong against scores that tell, held down by what is proven."""

import keras
import numpy as np
import pytest
from keras import layers

import tfdp
from tests.rounding import FUNCTION, assert_close
from tfdp.auditing import ExampleCanaries, membership_inference
from tfdp.auditing.membership import log_odds

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def canaries(count=80):
    draw = np.random.default_rng(0)
    return ExampleCanaries(
        draw.normal(size=(count, 30)).astype("float32"), draw.integers(0, 2, count)
    )


def test_the_likelihood_ratio_knows_which_examples_are_hard():
    draw, worlds = np.random.default_rng(0), []
    difficulty = draw.normal(scale=5.0, size=300)

    def train(world):
        worlds.append(world)
        return keras.Sequential()

    def confidence(model, x, y):
        return difficulty + 2.0 * worlds[-1].included + draw.normal(size=300)

    found = membership_inference(train, canaries(300), models=16, confidence=confidence)
    # An attacker who knew both laws would have 0.92.
    assert found.attacks["lira"].auc > 0.88 and 0.52 < found.attacks["loss"].auc < 0.7
    assert found.guarantee is None and "allowed" not in found.rates[0.1]


def private(world):
    x, y, weight = world.data()
    model = tfdp.make_private(keras.Sequential([keras.Input((30,)), layers.Dense(2)]))
    model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=8.0), LOSS)
    lots = tfdp.data.make_lots("cyclic", x, y, lot_size=40, sample_weight=weight)
    model.fit(lots, epochs=5, verbose=0)
    return model


def test_a_private_model_is_not_attacked():
    found = membership_inference(private, canaries(), models=4)
    assert all(abs(scores.auc - 0.5) < 0.2 for scores in found.attacks.values())
    row = found.to_dict()["rates"][-1]
    assert max(row["loss"], row["lira"]) < row["allowed"] < 1 and "proven epsilon" in str(found)


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


def test_examples_that_are_among_the_data_are_left_out_there():
    x, y = np.arange(10.0)[:, None], np.arange(10)
    rows = np.array([7, 2])
    own = ExampleCanaries(x[rows], y[rows], rows)
    seen, labels, weight = own.world(0, included=[True, False]).data(x, y)
    assert (
        seen[:, 0].tolist() == [7, 2, 0, 1, 3, 4, 5, 6, 8, 9]
        and labels.tolist() == seen[:, 0].tolist()
    )
    assert weight.tolist() == [1.0, 0.0] + 8 * [1.0]


@pytest.mark.parametrize(("units", "activation"), [(1, "sigmoid"), (4, "softmax")])
def test_logits_and_probabilities_give_the_same_confidence(units, activation):
    x = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
    logits = keras.Sequential([keras.Input((3,)), layers.Dense(units)])
    probabilities = keras.Sequential([logits, layers.Activation(activation)])
    y = np.array([0, 1, 1, 0, 0, 1])
    found = log_odds(logits, x, y)
    # The rounding of a probability near 1 is large beside its distance from 1.
    condition = np.exp(np.max(np.abs(found)))
    assert_close(found, log_odds(probabilities, x, y), 3 + 4 * FUNCTION, condition)
    if units == 1:
        assert_close(found, (2 * y - 1) * logits(x).numpy()[:, 0], 3 + 2 * FUNCTION)
        with pytest.raises(ValueError, match="confidence="):
            log_odds(logits, x, y + 1)


def test_rows_and_labels_have_to_be_those_of_the_canaries():
    x, y = np.arange(10.0)[:, None], np.arange(10)
    for rows in ([1, 2], [1, 12]):
        own = ExampleCanaries(x[:2], y[:2, None], rows)
        with pytest.raises(ValueError, match="the same order"):
            own.world(0).data(x, y)
    for rows, match in (([-1, 0], "at least 0"), ([2, 2], "different")):
        with pytest.raises(ValueError, match=match):
            ExampleCanaries(x[:2], y[:2], rows)
    with pytest.raises(ValueError, match="label"):
        ExampleCanaries(np.zeros((3, 2)), np.zeros(4))
