"""Black-box attacks: strong against a model that remembers, held down by what is proven."""

import keras
import numpy as np
import pytest
from keras import layers

import tfdp
from tfdp.auditing import ExampleCanaries, membership_inference
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
    model.compile(keras.optimizers.Adam(0.1), LOSS)
    model.fit(x, y, sample_weight=weight, batch_size=80, epochs=20, verbose=0)
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
    assert open_model.guarantee is None and open_model.rates[0]["allowed"] is None
    closed = membership_inference(private, canaries(), models=4)
    assert abs(closed.loss.auc - 0.5) < 0.2 and abs(closed.lira.auc - 0.5) < 0.2
    row = closed.to_dict()["rates"][-1]
    assert max(row["loss"], row["lira"]) < row["allowed"] < 1 and "proven epsilon" in str(closed)


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
    np.testing.assert_allclose(found, log_odds(probabilities, x, y), rtol=1e-3, atol=1e-4)
    if units == 1:
        np.testing.assert_allclose(found, (2 * y - 1) * logits(x).numpy()[:, 0], rtol=1e-5)
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
