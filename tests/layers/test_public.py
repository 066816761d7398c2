"""Batch normalization by public examples: its values, its dependencies and its files."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tests.rounding import FUNCTION, assert_close, terms_of
from tests.seeds import seed_keras
from tfdp.layers import PublicBatchNormalization, PublicExamples

EPSILON = 1e-5


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def image_stack(norm, deep=True):
    stack = [keras.Input((6, 6, 2)), layers.Conv2D(4, 3), norm(), layers.ReLU()]
    if deep:
        stack += [layers.Conv2D(3, 3, padding="same"), norm(), layers.ReLU()]
    return [*stack, layers.Flatten(), layers.Dense(3)]


def ours(public, deep=True, statistics="example", seed=0):
    seed_keras(seed)
    network = keras.Sequential(image_stack(PublicBatchNormalization, deep))
    examples = PublicExamples(network, public, statistics)
    return keras.Sequential([keras.Input((6, 6, 2)), examples])


def literal(model, public, x):
    """The papers' test phase with stock Keras: each example in a batch with the public ones."""
    stock = keras.Sequential(
        image_stack(lambda: layers.BatchNormalization(epsilon=EPSILON), _is_deep(model))
    )
    network = model.layers[-1].network
    for old, new in zip(network.layers, stock.layers, strict=True):
        for variable, value in zip(new.trainable_variables, old.trainable_variables, strict=True):
            variable.assign(value)
    rows = [stock(np.concatenate([x[i : i + 1], public]), training=True)[0] for i in range(len(x))]
    return np.stack(rows)


def _is_deep(model):
    return sum(isinstance(la, PublicBatchNormalization) for la in model._flatten_layers()) > 1


def test_one_normalization_equals_the_literal_form():
    public, x = draw(7, 6, 6, 2), draw(5, 6, 6, 2, seed=1)
    model = ours(public, deep=False)
    assert_close(model(x), literal(model, public, x), terms_of(model))


def test_dense_features_equal_the_literal_form():
    public, x = draw(4, 5), 3.0 + draw(6, 5, seed=1)
    network = keras.Sequential([keras.Input((5,)), PublicBatchNormalization(epsilon=0.1)])
    stock = layers.BatchNormalization(epsilon=0.1)
    expected = [stock(np.concatenate([x[i : i + 1], public]), training=True)[0] for i in range(6)]
    assert_close(PublicExamples(network, public)(x), expected, 2 * 5 + 2 * FUNCTION)


def test_batch_statistics_at_inference_are_the_literal_form():
    public, x = draw(7, 6, 6, 2), draw(5, 6, 6, 2, seed=1)
    model = ours(public, statistics="batch")
    assert_close(model.predict(x, verbose=0), literal(model, public, x), terms_of(model))


@pytest.mark.parametrize("statistics", ["example", "batch"])
def test_an_output_depends_on_its_own_example_only(statistics):
    model = ours(draw(7, 6, 6, 2), statistics=statistics)
    x = draw(5, 6, 6, 2, seed=1)
    others = np.concatenate([x[:1], 100.0 * draw(4, 6, 6, 2, seed=2)])
    assert_close(model(x)[0], model(others)[0], terms_of(model))
    if statistics == "example":  # also in training
        ours_, alone = model(x, training=True), model(x[:1], training=True)
        assert_close(ours_[0], alone[0], terms_of(model))
        np.testing.assert_array_equal(ours_, model(x, training=False))
    else:
        changed = np.abs(model(x, training=True)[0] - model(others, training=True)[0]).max()
        assert changed > 0.1


def test_rows_that_are_absent_do_not_enter_batch_statistics():
    from tfdp.layers.lot_statistics import running_lot

    model, x = ours(draw(7, 6, 6, 2), statistics="batch"), draw(5, 6, 6, 2, seed=1)
    x[3:] = np.nan
    with running_lot(tf.constant([True, True, True, False, False])):
        padded = model(x, training=True)
    assert_close(padded[:3], model(x[:3], training=True), terms_of(model))


def test_several_inputs():
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    hidden = layers.Concatenate()([PublicBatchNormalization()(layers.Dense(5)(a)), b])
    network = keras.Model({"a": a, "b": b}, layers.Dense(2)(hidden))
    layer = PublicExamples(network, {"a": draw(6, 4), "b": draw(6, 3)})
    x = {"a": draw(5, 4, seed=1), "b": draw(5, 3, seed=1)}
    assert layer(x).shape == (5, 2)
    assert set(layer.examples) == {"a", "b"}


# -- files ---------------------------------------------------------------------------------------


def test_a_file_carries_the_examples_and_a_configuration_alone_gives_no_numbers(tmp_path):
    model, x = ours(draw(7, 6, 6, 2), statistics="batch"), draw(5, 6, 6, 2, seed=1)
    tfdp.export(model, tmp_path / "release.keras")
    loaded = keras.models.load_model(tmp_path / "release.keras")
    assert_close(loaded(x), model(x), terms_of(model))
    empty = keras.Sequential.from_config(model.get_config())
    assert empty.layers[-1].statistics == "batch"
    assert np.all(np.isnan(empty.predict(x, verbose=0)))
    empty.set_weights(model.get_weights())
    assert_close(empty(x), model(x), terms_of(model))
    np.testing.assert_array_equal(empty.layers[-1].examples, draw(7, 6, 6, 2))


# -- what is refused -----------------------------------------------------------------------------


def test_without_public_examples_it_says_what_to_do():
    model = keras.Sequential([keras.Input((4,)), PublicBatchNormalization(name="lonely")])
    with pytest.raises(RuntimeError, match="lonely"):
        model(draw(2, 4))
    with pytest.raises(ValueError, match="lonely"):
        tfdp.make_private(model)


def network():
    return keras.Sequential([keras.Input((4,)), PublicBatchNormalization(), layers.Dense(2)])


@pytest.mark.parametrize(
    "make",
    [
        lambda: PublicExamples(network(), draw(1, 4)),
        lambda: PublicExamples(network(), np.full((3, 4), np.nan)),
        lambda: PublicExamples(network(), draw(3, 4), "lot"),
        lambda: PublicBatchNormalization(epsilon=float("nan")),
        lambda: PublicBatchNormalization(axis=-2).build((None, 4)),
    ],
    ids=["one", "nan", "statistics", "epsilon", "axis"],
)
def test_bad_arguments(make):
    with pytest.raises(ValueError, match=r"examples|statistics|epsilon|axis"):
        make()
