"""Batch normalization by public examples: its values, its dependencies and its files."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
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
    keras.utils.set_random_seed(seed)
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
    np.testing.assert_allclose(model(x), literal(model, public, x), atol=1e-5)


def test_dense_features_equal_the_literal_form():
    public, x = draw(4, 5), 3.0 + draw(6, 5, seed=1)
    network = keras.Sequential([keras.Input((5,)), PublicBatchNormalization(epsilon=0.1)])
    stock = layers.BatchNormalization(epsilon=0.1)
    expected = [stock(np.concatenate([x[i : i + 1], public]), training=True)[0] for i in range(6)]
    np.testing.assert_allclose(PublicExamples(network, public)(x), expected, atol=1e-5)


def test_deep_networks_approach_the_literal_form_with_more_public_examples():
    # After the first normalization the two differ. In the literal form, public examples are also
    # normalized together with the private one, which has weight 1 / (M + 1).
    x, distance = draw(5, 6, 6, 2, seed=1), {}
    for count in (8, 256):
        public = draw(count, 6, 6, 2)
        model = ours(public)
        exact = literal(model, public, x)
        distance[count] = np.abs(model(x) - exact).max() / np.abs(exact).max()
    assert 0 < distance[256] < distance[8] / 8
    assert distance[8] < 0.1


def test_batch_statistics_at_inference_are_the_literal_form():
    public, x = draw(7, 6, 6, 2), draw(5, 6, 6, 2, seed=1)
    model = ours(public, statistics="batch")
    np.testing.assert_allclose(
        model.predict(x, verbose=0), literal(model, public, x), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("statistics", ["example", "batch"])
def test_an_output_depends_on_its_own_example_only(statistics):
    model = ours(draw(7, 6, 6, 2), statistics=statistics)
    x = draw(5, 6, 6, 2, seed=1)
    others = np.concatenate([x[:1], 100.0 * draw(4, 6, 6, 2, seed=2)])
    np.testing.assert_allclose(model(x)[0], model(others)[0], rtol=1e-5, atol=1e-6)
    if statistics == "example":  # also in training
        ours_, alone = model(x, training=True), model(x[:1], training=True)
        np.testing.assert_allclose(ours_[0], alone[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(ours_, model(x, training=False))
    else:
        changed = np.abs(model(x, training=True)[0] - model(others, training=True)[0]).max()
        assert changed > 0.1


def test_public_examples_matter():
    x = draw(5, 6, 6, 2, seed=1)
    assert np.abs(ours(draw(7, 6, 6, 2))(x) - ours(draw(7, 6, 6, 2, seed=3))(x)).max() > 1e-3


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "xla"])
def test_eager_and_compiled_agree(compiled):
    model, x = ours(draw(7, 6, 6, 2)), draw(5, 6, 6, 2, seed=1)
    run = tf.function(model, jit_compile=True) if compiled else model
    np.testing.assert_allclose(run(x), model.predict(x, verbose=0), rtol=1e-5, atol=1e-5)


def test_rows_that_are_absent_do_not_enter_batch_statistics():
    from tfdp.layers.lot_statistics import present_rows

    model, x = ours(draw(7, 6, 6, 2), statistics="batch"), draw(5, 6, 6, 2, seed=1)
    x[3:] = np.nan
    with present_rows(tf.constant([True, True, True, False, False])):
        padded = model(x, training=True)
    np.testing.assert_allclose(padded[:3], model(x[:3], training=True), rtol=1e-5, atol=1e-5)


def test_dropout_does_not_touch_the_public_examples():
    network = keras.Sequential(
        [keras.Input((4,)), layers.Dropout(0.5, seed=1), PublicBatchNormalization()]
    )
    public = draw(6, 4)
    layer = PublicExamples(network, public)
    x = draw(3, 4, seed=1)
    outputs = np.asarray(layer(x, training=True))
    kept = np.asarray(keras.layers.Dropout(0.5, seed=1)(x, training=True))
    mean, w = public.mean(0), 1 / 7
    variance = (1 - w) * public.var(0) + w * (1 - w) * (kept - mean) ** 2
    expected = (kept - mean - w * (kept - mean)) / np.sqrt(variance + EPSILON)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)


def test_several_inputs():
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    hidden = layers.Concatenate()([PublicBatchNormalization()(layers.Dense(5)(a)), b])
    network = keras.Model({"a": a, "b": b}, layers.Dense(2)(hidden))
    layer = PublicExamples(network, {"a": draw(6, 4), "b": draw(6, 3)})
    x = {"a": draw(5, 4, seed=1), "b": draw(5, 3, seed=1)}
    assert layer(x).shape == (5, 2)
    assert set(layer.examples) == {"a", "b"}


# -- files ---------------------------------------------------------------------------------------


def test_a_file_carries_the_examples_into_another_process(tmp_path):
    model, x = ours(draw(7, 6, 6, 2)), draw(5, 6, 6, 2, seed=1)
    model.save(tmp_path / "model.keras")
    tfdp.export(model, tmp_path / "release.keras")
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, keras, numpy as np, tfdp.layers\n"
        "folder = sys.argv[1]\n"
        "x = np.load(f'{folder}/x.npy')\n"
        "a, b = (keras.models.load_model(f'{folder}/{n}.keras')(x) for n in ('model', 'release'))\n"
        "np.testing.assert_array_equal(a, b)\n"
        "np.save(f'{folder}/y.npy', a)\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, timeout=120)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), model(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("statistics", ["example", "batch"])
def test_a_configuration_alone_refuses_to_run(statistics):
    model, x = ours(draw(7, 6, 6, 2), statistics=statistics), draw(5, 6, 6, 2, seed=1)
    empty = keras.Sequential.from_config(model.get_config())
    assert empty.layers[-1].statistics == statistics
    for run in (empty, lambda x: empty.predict(x, verbose=0)):
        with pytest.raises(RuntimeError, match="holds no public examples"):
            run(x)
    private = tfdp.make_private
    with pytest.raises(ValueError, match="holds no public examples"):
        private(empty)
    empty.set_weights(model.get_weights())
    np.testing.assert_allclose(empty.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5)
    np.testing.assert_array_equal(empty.layers[-1].examples, draw(7, 6, 6, 2))


def test_normalization_round_trip():
    layer = PublicBatchNormalization(axis=1, epsilon=0.01, center=False, scale=False, name="n")
    again = PublicBatchNormalization.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()


# -- what is refused -----------------------------------------------------------------------------


def test_without_public_examples_it_says_what_to_do():
    model = keras.Sequential([keras.Input((4,)), PublicBatchNormalization(name="lonely")])
    with pytest.raises(RuntimeError, match=r"'lonely'.*tfdp.fix"):
        model(draw(2, 4))
    with pytest.raises(ValueError, match=r"'lonely'.*PublicExamples"):
        tfdp.make_private(model)


def network():
    return keras.Sequential([keras.Input((4,)), PublicBatchNormalization(), layers.Dense(2)])


@pytest.mark.parametrize(
    "make",
    [
        lambda: PublicExamples(network(), None),
        lambda: PublicExamples(network(), draw(1, 4)),
        lambda: PublicExamples(network(), np.full((3, 4), np.nan)),
        lambda: PublicExamples(network(), draw(3, 4), "lot"),
        lambda: PublicExamples(keras.Sequential([layers.Dense(2)]), draw(3, 4)),
        lambda: PublicExamples(layers.Dense(2), draw(3, 4)),
        lambda: PublicBatchNormalization(axis=0),
        lambda: PublicBatchNormalization(axis=[1, 2]),
        lambda: PublicBatchNormalization(epsilon=0.0),
        lambda: PublicBatchNormalization(epsilon=float("nan")),
        lambda: PublicBatchNormalization(axis=-2).build((None, 4)),
    ],
    ids=[
        "none",
        "one",
        "nan",
        "lot",
        "unbuilt",
        "layer",
        "axis0",
        "axes",
        "eps0",
        "epsnan",
        "rank",
    ],
)
def test_bad_arguments(make):
    with pytest.raises(ValueError, match="Expected"):
        make()


def test_masks_are_refused():
    inputs = keras.Input((4,), dtype="int32")
    x = layers.Embedding(5, 3, mask_zero=True)(inputs)
    with pytest.raises(ValueError, match="mask"):
        PublicBatchNormalization()(x)
