"""Weights for parts of a row reach the loss of that row alone, as in a batch that has only that row."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tests.rounding import assert_close, terms_of
from tests.seeds import seed_keras
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum, choose_engine
from tfdp.gradients.targets import apart, weighted

ROWS, TOKENS = 6, 5
TOKEN_WEIGHTS = np.random.default_rng(0).choice([0.0, 1.0, 2.5], (ROWS, TOKENS)).astype("float32")
TOKEN_WEIGHTS[1] = 0.0  # an absent row
ROW_WEIGHTS = np.array([1.0, 0.0, 2.0, 0.5, 1.0, 3.0], "float32")


def language_model(mask=False, loss_options=None, **options):
    seed_keras(1)
    model = keras.Sequential(
        [
            keras.Input((TOKENS,), dtype="int32"),
            layers.Embedding(7, 4, mask_zero=mask),
            layers.Dense(3, activation="tanh"),
            layers.Dense(7),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **(loss_options or {}))
    model.compile(loss=loss, **options)
    x = np.random.default_rng(1).integers(0, 7, (ROWS, TOKENS)).astype("int32")
    x[:, 0] = 1  # no row is masked as a whole
    return model, x, (x * 3 + 1) % 7


def two_outputs(kind=dict):
    seed_keras(2)
    inputs = keras.Input((TOKENS, 2))
    tokens = layers.Dense(1, name="tokens")(inputs)
    whole = layers.Dense(1, name="whole")(layers.Flatten()(inputs))
    outputs = {"tokens": tokens, "whole": whole} if kind is dict else kind((tokens, whole))
    model = keras.Model(inputs, outputs)
    losses = {"tokens": "mae", "whole": "mse"} if kind is dict else ["mae", "mse"]
    loss_weights = {"tokens": 2.0, "whole": 0.5} if kind is dict else [2.0, 0.5]
    model.compile(loss=losses, loss_weights=loss_weights)
    x = np.random.default_rng(1).normal(size=(ROWS, TOKENS, 2)).astype("float32")
    y = {"tokens": x[..., :1] + 1, "whole": x[:, 0, :1]}
    return model, x, y if kind is dict else kind(y.values())


def sliced(tree, row):
    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else leaf[row : row + 1], tree, none_is_leaf=True
    )


def one_by_one(model, x, y, sample_weight):
    """Gradients of the loss that Keras computes for each row alone."""
    found = []
    for row in range(len(tf.nest.flatten(x)[0])):
        x_i, y_i, weight = (sliced(tree, row) for tree in (x, y, sample_weight))
        with tf.GradientTape() as tape:
            y_pred = model(x_i, training=True)
            loss = model.compute_loss(x_i, y_i, y_pred, weight, training=True)
        found.append(tape.gradient(loss, [v.value for v in model.trainable_variables]))
    return [
        tf.stack([tf.convert_to_tensor(g) for g in each]).numpy()
        for each in zip(*found, strict=True)
    ]


CASES = {
    "tokens and mask": lambda: (*language_model(mask=True), TOKEN_WEIGHTS),
    "tokens, mean of weights": lambda: (
        *language_model(loss_options={"reduction": "mean_with_sample_weight"}),
        TOKEN_WEIGHTS + np.float32(0.5),
    ),
    "outputs, one without": lambda: (*two_outputs(), {"tokens": TOKEN_WEIGHTS, "whole": None}),
    "list of outputs": lambda: (*two_outputs(list), [TOKEN_WEIGHTS, ROW_WEIGHTS[:, None]]),
}


@pytest.mark.parametrize("case", CASES)
def test_each_row_has_its_own_weights(case):
    model, x, y, sample_weight = CASES[case]()
    expected = one_by_one(model, x, y, sample_weight)
    assert all(np.abs(e).max() > 1e-3 for e in expected)
    found = tfdp.per_example_gradients(model, x, y, sample_weight)
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, terms_of(model))
    flat = np.concatenate([e.reshape(ROWS, -1) for e in expected], axis=1)
    clip = float(np.median(np.linalg.norm(flat, axis=1)))
    scale = np.minimum(1.0, clip / np.maximum(np.linalg.norm(flat, axis=1), 1e-9))
    targets, present = weighted(tensors(y), tensors(sample_weight), ROWS)
    run, rows = choose_engine("ghost", model), (tensors(x), targets, present)
    lot = bounded_sum(run, Forward(model), GlobalL2Clip(clip), *rows, physical_batch_size=4)
    for total, gradients in zip(lot.sums, expected, strict=True):
        assert_close(total, np.tensordot(scale, gradients, 1), terms_of(model, ROWS))


def tensors(tree):
    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else tf.convert_to_tensor(leaf), tree, none_is_leaf=True
    )


def test_a_row_without_any_weight_is_absent_whatever_it_holds():
    model, x, y = two_outputs()
    model.compute_loss(x, y, model(x))  # builds the loss
    x[1], y["whole"][1] = np.nan, np.inf
    weights = {"tokens": TOKEN_WEIGHTS, "whole": ROW_WEIGHTS}
    targets, present = weighted(tensors(y), tensors(weights), ROWS)
    np.testing.assert_array_equal(present, [1, 0, 1, 1, 1, 1])
    run = choose_engine("ghost", model)
    whole = bounded_sum(run, Forward(model), GlobalL2Clip(1.0), tensors(x), targets, present)
    keep = [0, 2, 3, 4, 5]
    x, y, weights = keras.tree.map_structure(lambda leaf: leaf[keep], (x, y, weights))
    targets, present = weighted(tensors(y), tensors(weights), 5)
    without = bounded_sum(run, Forward(model), GlobalL2Clip(1.0), tensors(x), targets, present)
    assert int(whole.non_finite) == 0
    for a, b in zip(whole.sums, without.sums, strict=True):
        assert_close(a, b, terms_of(model, ROWS))


def test_one_number_for_each_row_stays_a_factor():
    y = tf.zeros([ROWS, TOKENS])
    for shape in ((ROWS,), (ROWS, 1)):
        targets, factor = weighted(y, ROW_WEIGHTS.reshape(shape), ROWS)
        assert targets is y
        np.testing.assert_array_equal(factor, ROW_WEIGHTS)
    assert apart(y) == (y, None)


@pytest.mark.parametrize(
    ("y", "sample_weight"),
    [
        ({"a": 0, "b": 0}, {"a": 0}),
        ({"a": 0, "b": 0}, [0, 0]),
        (0, {"a": 0}),
        ({"a": 0, "b": 0}, 1),
    ],
)
def test_weights_that_do_not_fit_the_targets_are_refused(y, sample_weight):
    y = keras.tree.map_structure(lambda _: tf.zeros([ROWS, 3]), y)
    sample_weight = keras.tree.map_structure(lambda _: tf.ones([ROWS, 3]), sample_weight)
    with pytest.raises((ValueError, TypeError), match=r"targets|structure"):
        weighted(y, sample_weight, ROWS)


def test_one_weight_for_the_whole_lot_is_refused():
    with pytest.raises(ValueError, match="each example"):
        weighted(tf.zeros([ROWS]), tf.ones([]), ROWS)
