"""Layers that mix examples are refused by name at any depth, and the message has the remedy."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import clipped_sum, sgd
from keras import layers

import tfdp
from tests.rounding import assert_close, terms_of
from tests.seeds import seed_keras
from tests.training.small import small
from tfdp.training.checks import refuse_mixing_layers

X = np.random.default_rng(1).normal(size=(6, 4)).astype("float32")
Y = np.arange(6) % 3


class Wraps(layers.Layer):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        return self.inner(x)


class OwnNorm(layers.BatchNormalization):
    def call(self, inputs, training=None, mask=None):
        return inputs - keras.ops.mean(inputs, axis=0)


BAD = {
    "tfdp.fix": lambda: layers.BatchNormalization(),
    "GroupNormalization": lambda: OwnNorm(scale=False, trainable=False),  # though it is frozen
    "stateful=False": lambda: layers.LSTM(2, stateful=True),
}
HIDDEN = {"open": lambda x: x, "wrapped": Wraps, "nested": lambda x: keras.Sequential([x])}


def refused(model, message, public=()):
    with pytest.raises(ValueError, match=message) as error:
        refuse_mixing_layers(model, public)
    return str(error.value)


@pytest.mark.parametrize("remedy", BAD)
def test_refused_wherever_it_hides(remedy):
    for hide in HIDDEN.values():
        bad = BAD[remedy]()
        said = refused(keras.Sequential([layers.Dense(4), hide(bad)]), remedy)
        assert bad.name in said and type(bad).__name__ in said


class Halved(layers.Dense):
    def call(self, x):
        self.kernel.assign(self.kernel / 2)
        return super().call(x)


@pytest.mark.parametrize(
    "bad",
    [
        [keras.Input((4,)), layers.SpectralNormalization(layers.Dense(2))],
        [keras.Input((4,)), layers.Dense(2), layers.Softmax(axis=0)],
        [keras.Input((4,)), Halved(2)],
    ],
    ids=["SpectralNormalization", "Softmax", "assigned weight"],
)
def test_others_are_refused_when_training_begins(bad):
    model = small(model=keras.Sequential(bad), compiled={"loss": "mse"})
    x = X.reshape([6, *model.input_shape[1:]])
    with pytest.raises(ValueError):
        model.fit(x, np.zeros([6, model.output_shape[-1]]), batch_size=6, shuffle=False, verbose=0)
    assert model.privacy.steps_taken == 0


def test_layers_that_keep_examples_apart_pass():
    norm = layers.BatchNormalization(trainable=False)
    kept = [
        layers.Normalization(mean=0.0, variance=1.0),
        layers.Conv2D(2, 3),
        layers.GroupNormalization(1),
        layers.LayerNormalization(),
        layers.Softmax(),
        layers.LSTM(2),
        norm,
    ]
    refuse_mixing_layers(keras.Sequential(kept))
    norm.trainable = True
    refused(keras.Sequential(kept), "BatchNormalization")


def test_training_false_of_a_call_is_no_way_out():
    # Inside of a graph, Keras takes the argument of the whole model's call.
    inputs = keras.Input((4,))
    made = keras.Model(inputs, layers.BatchNormalization()(inputs, training=False))
    with pytest.raises(ValueError, match="BatchNormalization"):
        tfdp.make_private(made)


def test_many_refused_layers_are_counted_not_listed():
    norms = [layers.BatchNormalization(name=f"norm_{i}") for i in range(30)]
    said = refused(keras.Sequential([keras.Input((4,)), *norms]), "27 more")
    assert "norm_2'" in said and "norm_3'" not in said


# -- preprocessing -----------------------------------------------------------------------------------


class Centered(layers.Layer):
    def adapt(self, data):
        self.mean = np.mean(data)

    def call(self, x):
        return x - self.mean


def features():
    space = keras.utils.FeatureSpace(
        {"a": keras.utils.FeatureSpace.float_normalized()}, output_mode="concat"
    )
    space.adapt(tf.data.Dataset.from_tensors({"a": np.ones((3, 1))}))
    return space


def adapted(layer, data):
    layer.adapt(np.array(data))
    return layer


def with_words(layer):
    layer.set_vocabulary(["a", "b"])
    return layer


ADAPTED = {
    "Normalization": lambda: adapted(layers.Normalization(), [[1.0], [2.0]]),
    "Discretization": lambda: adapted(layers.Discretization(num_bins=2), [[1.0], [2.0]]),
    "IntegerLookup": lambda: adapted(layers.IntegerLookup(), [[1], [2]]),
    "StringLookup": lambda: with_words(layers.StringLookup()),
    "tf_idf": lambda: adapted(layers.StringLookup(output_mode="tf_idf"), [["a"], ["b"]]),
    "TextVectorization": lambda: adapted(layers.TextVectorization(), ["a b", "b"]),
    "own": lambda: adapted(Centered(), [[1.0], [2.0]]),
    "FeatureSpace": features,
}


@pytest.mark.parametrize(
    ("kind", "hide"), [*((kind, "open") for kind in ADAPTED), ("own", "wrapped"), ("own", "nested")]
)
def test_adapted_layers_are_refused_unless_they_are_declared_public(kind, hide):
    layer = ADAPTED[kind]()
    model = keras.Sequential([HIDDEN[hide](layer), layers.Dense(4)])
    said = refused(model, "public_preprocessing")
    assert f"'{layer.name}' ({type(layer).__name__})" in said
    for public in (True, [layer.name], {layer}, [model.layers[0]]):  # the last is its container
        refuse_mixing_layers(model, public=public)
    refused(model, "public_preprocessing", public=[model.layers[1]])


@pytest.mark.parametrize("kind", ["Discretization", "StringLookup", "TextVectorization"])
def test_an_adapted_layer_is_known_when_it_is_loaded(kind, tmp_path):
    dtype = "float32" if kind == "Discretization" else "string"
    model = keras.Sequential([keras.Input((1,), dtype=dtype), ADAPTED[kind]()])
    model.save(tmp_path / "a.keras")
    refused(keras.models.load_model(tmp_path / "a.keras"), "public_preprocessing")


def test_a_normalization_that_was_never_adapted_is_allowed():
    fresh = keras.Sequential([keras.Input((4,)), layers.Normalization(), layers.Dense(3)])
    refuse_mixing_layers(fresh)
    fresh.layers[0].adapt(X)
    refused(fresh, "adapt")


def test_preprocessing_with_constants_passes(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("a\nb\n")
    weighted = {"vocabulary": ["a", "b"], "idf_weights": [1.0, 2.0], "output_mode": "tf_idf"}
    constants = [
        layers.Discretization(bin_boundaries=[0.0, 1.0]),
        layers.IntegerLookup(vocabulary=[1, 2]),
        layers.StringLookup(vocabulary=["a", "b"]),
        layers.StringLookup(vocabulary=str(words)),
        layers.StringLookup(**weighted),
        layers.TextVectorization(vocabulary=["a", "b"]),
        layers.Hashing(3),
        layers.Rescaling(1 / 255),
        keras.utils.FeatureSpace({"a": "float_rescaled"}, output_mode="concat"),
    ]
    refuse_mixing_layers(keras.Sequential([*constants, layers.Dense(3)]))


def test_declared_layers_have_to_be_layers_of_the_model():
    built = keras.Sequential([keras.Input((3,)), layers.Dense(3)])
    for stranger in ("lookup", layers.Dense(3)):
        refused(built, "layers of model", public=[stranger])
    refuse_mixing_layers(keras.Sequential([layers.Dense(3)]), public=["later"])
    refuse_mixing_layers(built, public=[built.layers[0].name])


# -- training steps ----------------------------------------------------------------------------------


class Own(keras.Sequential):
    def train_step(self, data):
        return {}


class OwnFunction(keras.Model):
    def make_train_function(self, force=False):
        self.train_function = lambda iterator: {}


def on_the_instance():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.train_step = lambda data: {}
    return model


@pytest.mark.parametrize("make", [Own, OwnFunction, on_the_instance])
def test_methods_that_would_be_ignored_are_refused(make):
    with pytest.raises(ValueError, match="custom"):
        tfdp.make_private(make())


# -- frozen batch normalization ----------------------------------------------------------------------


def with_backbone():
    """A network through whose frozen part gradients pass."""
    seed_keras(0)
    base = keras.Sequential([keras.Input((4,)), layers.BatchNormalization()], name="base")
    norm = base.layers[-1]
    norm.set_weights([w + 0.5 * i for i, w in enumerate(norm.get_weights())])
    base.trainable = False
    inputs = keras.Input((4,))
    return keras.Model(inputs, layers.Dense(3)(base(layers.Dense(4)(inputs))))


def test_a_step_through_a_frozen_normalization_is_the_clipped_sum_over_rows():
    private = small(sgd(0.0, clip=0.5, rate=1.0), with_backbone(), {"run_eagerly": False})
    norm = private.get_layer("base").layers[-1]
    expected = clipped_sum(private, X, Y, 0.5) / 6
    before, kept = [v.numpy() for v in private.trainable_variables], norm.get_weights()
    private.fit(X, Y, batch_size=6, shuffle=False, verbose=0)
    moved = [b - v.numpy() for b, v in zip(before, private.trainable_variables, strict=True)]
    assert_close(
        np.concatenate([m.ravel() for m in moved]),
        expected,
        terms_of(private, 6),
        max(np.max(np.abs(b)) for b in before),
    )
    for a, b in zip(kept, norm.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_unfreezing_is_noticed_by_the_next_training_and_the_next_trace():
    def unfreeze(epoch, logs):
        if epoch == 0:
            private.get_layer("base").trainable = True

    private = small(model=with_backbone())
    unfreezes = keras.callbacks.LambdaCallback(on_epoch_end=unfreeze)
    for train in (
        lambda: private.fit(X, Y, batch_size=6, epochs=2, verbose=0, callbacks=[unfreezes]),
        lambda: private.fit(X, Y, batch_size=6, verbose=0),
        lambda: private.train_on_batch(X, Y),
    ):
        with pytest.raises(ValueError, match="BatchNormalization"):
            train()
    private.get_layer("base").trainable = False
    private.train_on_batch(X, Y)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, x):
        return self.dense(x)


@pytest.mark.parametrize("make", [Subclassed, lambda: keras.Sequential([layers.Dense(3)])])
def test_labels_that_are_no_class_are_refused_by_models_that_are_not_built(make):
    private = small(model=make())
    for train in (private.train_on_batch, partial(private.fit, verbose=0)):
        with pytest.raises(ValueError, match="from 0 to 2"):
            train(X, np.where(Y == 2, 3, Y))


def test_labels_of_an_ignored_class_are_no_error():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    private = small(model=model, compiled={"loss": loss})
    private.fit(X, np.where(Y == 2, -1, Y), batch_size=3, verbose=0)
    assert np.isfinite(private.get_weights()[0]).all()
    with pytest.raises(ValueError, match="-2"):
        private.fit(X, np.where(Y == 2, -2, Y), batch_size=3, verbose=0)
