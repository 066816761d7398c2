"""Layers that mix examples are refused by name at any depth, and the message has the remedy."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tfdp.training.checks import refuse_mixing_layers, refuse_own_train_step


class Wraps(layers.Layer):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        return self.inner(x)


class MyNorm(layers.BatchNormalization):
    pass


BAD = {
    "tfdp.fix": lambda: layers.BatchNormalization(),
    "GroupNormalization": lambda: MyNorm(scale=False, center=False),
    "power-iteration": lambda: layers.SpectralNormalization(layers.Dense(2)),
    "mixed with itself": lambda: layers.MixUp(),
    "Leave it out": lambda: layers.CutMix(),
    "public constants": lambda: layers.Normalization(),
    "feature axis": lambda: layers.Softmax(axis=0),
}


@pytest.mark.parametrize("hide", [lambda x: x, Wraps, lambda x: keras.Sequential([x])])
@pytest.mark.parametrize("remedy", BAD)
def test_refused_wherever_it_hides(remedy, hide):
    bad = BAD[remedy]()
    model = keras.Sequential([layers.Dense(4), hide(bad)])
    with pytest.raises(ValueError, match=remedy) as error:
        refuse_mixing_layers(model)
    assert bad.name in str(error.value) and type(bad).__name__ in str(error.value)


def test_a_frozen_batch_normalization_is_allowed_until_it_trains():
    norm = layers.BatchNormalization(trainable=False)
    model = keras.Sequential([norm])
    refuse_mixing_layers(model)
    norm.trainable = True
    with pytest.raises(ValueError, match="BatchNormalization"):
        refuse_mixing_layers(model)


def test_stateful_recurrence_is_refused():
    with pytest.raises(ValueError, match="stateful=False"):
        refuse_mixing_layers(keras.Sequential([layers.LSTM(2, stateful=True)]))


def test_layers_that_keep_examples_apart_pass():
    refuse_mixing_layers(
        keras.Sequential(
            [
                layers.Normalization(mean=0.0, variance=1.0),
                layers.Conv2D(2, 3),
                layers.GroupNormalization(1),
                layers.LayerNormalization(),
                layers.Softmax(),
                layers.LSTM(2),
            ]
        )
    )


class Centered(layers.Layer):
    def adapt(self, data):
        self.mean = np.mean(data)

    def call(self, x):
        return x - self.mean


def features(**kwargs):
    space = keras.utils.FeatureSpace(
        {"a": keras.utils.FeatureSpace.float_normalized(**kwargs)}, output_mode="concat"
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
    "Normalization(mean": lambda: adapted(layers.Normalization(), [[1.0], [2.0]]),
    "Discretization(bin": lambda: adapted(layers.Discretization(num_bins=2), [[1.0], [2.0]]),
    "IntegerLookup(voc": lambda: adapted(layers.IntegerLookup(), [[1], [2]]),
    "StringLookup(voc": lambda: adapted(layers.StringLookup(), [["a"], ["b"]]),
    "StringLookup(vocabulary": lambda: with_words(layers.StringLookup()),
    "StringLookup(vocabular": lambda: adapted(
        layers.StringLookup(output_mode="tf_idf"), [["a"], ["b"]]
    ),
    "TextVectorization(voc": lambda: adapted(layers.TextVectorization(), ["a b", "b"]),
    "Make it from public": lambda: adapted(Centered(), [[1.0], [2.0]]),
    "public_preprocessing": features,
}


@pytest.mark.parametrize("hide", [lambda x: x, Wraps, lambda x: keras.Sequential([x])])
@pytest.mark.parametrize("remedy", ADAPTED)
def test_adapted_layers_are_refused_unless_they_are_declared_public(remedy, hide):
    layer = ADAPTED[remedy]()
    model = keras.Sequential([hide(layer), layers.Dense(4)])
    with pytest.raises(ValueError, match=remedy.replace("(", r"\(")) as error:
        refuse_mixing_layers(model)
    assert str(error.value).count("public_preprocessing=") == 1
    assert f"layer '{layer.name}' ({type(layer).__name__})" in str(error.value)
    refuse_mixing_layers(model, public=True)
    refuse_mixing_layers(model, public=[layer.name])
    refuse_mixing_layers(model, public={layer})
    refuse_mixing_layers(model, public=[model.layers[0]])  # the layer's container
    with pytest.raises(ValueError, match="public_preprocessing"):
        refuse_mixing_layers(model, public=[model.layers[1]])


@pytest.mark.parametrize(
    "kind", ["Discretization(bin", "StringLookup(voc", "TextVectorization(voc"]
)
def test_an_adapted_layer_is_known_when_it_is_loaded(kind, tmp_path):
    layer = ADAPTED[kind]()
    dtype = "float32" if "bin" in kind else "string"
    model = keras.Sequential([keras.Input((1,), dtype=dtype), layer])
    model.save(tmp_path / "a.keras")
    with pytest.raises(ValueError, match="public_preprocessing"):
        refuse_mixing_layers(keras.models.load_model(tmp_path / "a.keras"))


def test_preprocessing_with_constants_passes(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("a\nb\n")
    refuse_mixing_layers(
        keras.Sequential(
            [
                layers.Discretization(bin_boundaries=[0.0, 1.0]),
                layers.IntegerLookup(vocabulary=[1, 2]),
                layers.StringLookup(vocabulary=["a", "b"]),
                layers.StringLookup(vocabulary=str(words)),
                layers.StringLookup(
                    vocabulary=["a", "b"], idf_weights=[1.0, 2.0], output_mode="tf_idf"
                ),
                layers.TextVectorization(vocabulary=["a", "b"]),
                layers.Hashing(3),
                layers.HashedCrossing(3),
                layers.CategoryEncoding(3),
                layers.Rescaling(1 / 255),
                keras.utils.FeatureSpace({"a": "float_rescaled"}, output_mode="concat"),
                layers.Dense(3),
            ]
        )
    )


@pytest.mark.parametrize("public", ["lookup", False, None, 3])
def test_what_declares_nothing_is_refused(public):
    with pytest.raises(ValueError, match="Expected True or a collection"):
        refuse_mixing_layers(keras.Sequential([layers.Dense(3)]), public=public)


def test_declared_layers_have_to_be_there():
    built = keras.Sequential([keras.Input((3,)), layers.Dense(3)])
    for stranger in ("lookup", layers.Dense(3)):
        with pytest.raises(ValueError, match="Expected layers of model"):
            refuse_mixing_layers(built, public=[stranger])
    refuse_mixing_layers(keras.Sequential([layers.Dense(3)]), public=["later"])
    refuse_mixing_layers(built, public=[built.layers[0].name])


class PrivateMixin:
    def train_step(self, data):
        return super().train_step(data)


class Own(keras.Sequential):
    def train_step(self, data):
        return {}


class Inherited(Own):
    pass


class OverPrivate(PrivateMixin, Own):
    pass


@pytest.mark.parametrize("cls", [Own, Inherited, OverPrivate])
def test_a_train_step_of_its_own_is_refused(cls):
    with pytest.raises(ValueError, match=r"Own has a train_step.*compute_loss"):
        refuse_own_train_step(cls, PrivateMixin)
    with pytest.raises(ValueError, match="Own has a train_step"):
        refuse_own_train_step(cls(), PrivateMixin)


class MixedIn:
    def train_step(self, data):
        return {}


class OwnFunction(keras.Model):
    def make_train_function(self, force=False):
        self.train_function = lambda iterator: {}


class OwnSubclass(keras.Model):
    def train_step(self, data):
        return {}


def _with_mixin():
    class Mixed(MixedIn, keras.Sequential):
        pass

    return Mixed([keras.Input((3,)), layers.Dense(2)])


def _functional():
    x = keras.Input((3,))
    return OwnSubclass(x, layers.Dense(2)(x))


def _on_the_instance(name):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    setattr(model, name, lambda *args, **kwargs: {})
    return model


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (_with_mixin, "MixedIn has a train_step"),
        (_functional, "OwnSubclass has a train_step"),
        (OwnFunction, "OwnFunction has a make_train_function"),
        (lambda: _on_the_instance("train_step"), "has a train_step"),
        (lambda: _on_the_instance("make_train_function"), "has a make_train_function"),
    ],
)
def test_methods_that_would_be_ignored_are_refused_by_make_private(make, names):
    with pytest.raises(ValueError, match=f"{names} of its own.*compute_loss"):
        tfdp.make_private(make())


def test_variables_that_are_overwritten_are_refused():
    class Overwritten(layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(), name="scale")
            self.scale.overwrite_with_gradient = True

        def call(self, x):
            return x * self.scale

    for layer in (Overwritten(), layers.Dense(2, dtype="float8_from_float32")):
        model = keras.Sequential([keras.Input((3,)), layers.Dense(2), keras.Sequential([layer])])
        with pytest.raises(ValueError, match=f"'{layer.name}'.*overwrite_with_gradient.*float32"):
            refuse_mixing_layers(model)
        layer.trainable = False
        refuse_mixing_layers(model)


def test_an_overwritten_variable_of_the_model_itself_is_refused():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.scale = self.add_weight(shape=(), name="scale")
            self.scale.overwrite_with_gradient = True

    with pytest.raises(ValueError, match=r"/scale'.*overwrite_with_gradient"):
        refuse_mixing_layers(Model())


def test_the_train_steps_of_keras_and_of_private_training_pass():
    class Private(PrivateMixin, keras.Sequential):
        def test_step(self, data):
            return {}

    for cls in (keras.Model, keras.Sequential, Private):
        refuse_own_train_step(cls, PrivateMixin)
    model = Private([keras.Input((3,)), layers.Dense(2)])
    refuse_own_train_step(model, (PrivateMixin,))
    model.train_step = lambda data: {}
    with pytest.raises(ValueError, match=f"Model '{model.name}' has a train_step"):
        refuse_own_train_step(model, PrivateMixin)
