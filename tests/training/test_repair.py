"""`tfdp.fix` replaces batch normalization and keeps everything else."""

import keras
import numpy as np
import pytest
from helpers import sgd
from keras import layers

import tfdp
from tests.rounding import assert_close, terms_of
from tfdp.layers import PublicBatchNormalization, PublicExamples
from tfdp.training.checks import refuse_mixing_layers


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def sequential():
    return keras.Sequential(
        [
            keras.Input((4, 2)),
            layers.Conv1D(4, 1),
            layers.BatchNormalization(epsilon=0.01, name="after_conv"),
            layers.Flatten(),
            layers.Dense(5),
            layers.BatchNormalization(scale=False),
        ],
        name="mine",
    )


def functional():
    inputs = keras.Input((4, 2))
    x = layers.BatchNormalization()(layers.Conv1D(4, 1)(inputs))
    inner = keras.Sequential(
        [keras.Input((4, 4)), layers.Dense(4), layers.BatchNormalization()], name="inner"
    )
    x = layers.GlobalAveragePooling1D()(layers.Add()([x, inner(x)]))
    return keras.Model(inputs, layers.Dense(3)(x), name="mine")


def with_random_weights(model, seed=0):
    random = np.random.default_rng(seed)
    model.set_weights([random.uniform(0.5, 1.5, w.shape) for w in model.get_weights()])
    return model


def kinds(model):
    found = [type(layer).__name__ for layer in model._flatten_layers()]
    return {name: found.count(name) for name in found if "Normalization" in name}


def groups(model):
    return [g.groups for g in model._flatten_layers() if isinstance(g, layers.GroupNormalization)]


def private(model):
    tfdp.make_private(model, engine="loop").compile(sgd(), "mse", run_eagerly=True)
    return model


def one_step(model):
    rows = 1.0 + draw(4, *model.input_shape[1:])  # none of them is public
    private(model).train_on_batch(rows, np.zeros((4, *model.output_shape[1:])))


def equal(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("make", "public"), [(functional, None), (sequential, draw(5, 4, 2))], ids=["group", "public"]
)
def test_replaces_every_batch_normalization(make, public, tmp_path):
    model = with_random_weights(make())
    before = [weight.numpy() for weight in model.trainable_variables]
    fixed = tfdp.fix(model, public_data=public)
    name = "GroupNormalization" if public is None else "PublicBatchNormalization"
    assert kinds(fixed) == {name: 2}
    assert fixed.name == "mine"
    refuse_mixing_layers(fixed)
    equal(fixed.trainable_variables, before)
    one_step(fixed)
    tfdp.export(fixed, tmp_path / "release.keras")
    x = draw(3, 4, 2)
    again = keras.models.load_model(tmp_path / "release.keras")
    assert_close(again(x), fixed(x), terms_of(fixed))


def test_settings_of_the_layers_stay():
    fixed = tfdp.fix(sequential(), public_data=draw(5, 4, 2), statistics="batch")
    (examples,) = [la for la in fixed.layers if isinstance(la, PublicExamples)]
    assert examples.statistics == "batch" and examples.count == 5
    norm = examples.network.get_layer("after_conv")
    assert isinstance(norm, PublicBatchNormalization) and norm.epsilon == 0.01
    assert examples.network.layers[-1].gamma is None


OPERATORS = {
    "sum": lambda h, i: 1 - (h + i) * 2,
    "slice": lambda h, i: h[:, 1:],
    "function": lambda h, i: keras.ops.concatenate([keras.ops.relu(h), i], axis=-1),
    "array": lambda h, i: h + np.arange(4.0, dtype="float32")[None],
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_graphs_with_operators(operator):
    inputs = keras.Input((4,))
    hidden = layers.BatchNormalization()(layers.Dense(4)(inputs))
    model = with_random_weights(keras.Model(inputs, OPERATORS[operator](hidden, inputs)))
    fixed, x = tfdp.fix(model), draw(3, 4)
    expected = OPERATORS[operator](fixed.layers[2](fixed.layers[1](x)), x)
    assert_close(fixed(x), expected, terms_of(fixed))
    equal(fixed.trainable_variables, model.trainable_variables)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [4, 1]),  # groups of one feature would normalize each vector to zero
        ({"num_groups": 3}, [2, 1]),  # the most, up to 3, that divide 4 channels
        ({"normalization": "instance"}, [4, 1]),
    ],
)
def test_numbers_of_groups(options, expected):
    assert groups(tfdp.fix(sequential(), **options)) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"num_groups": 0},
        {"normalization": "layer"},
        {"num_groups": 2, "normalization": "instance"},
        {"normalization": "instance", "public_data": draw(5, 4, 2)},
    ],
)
def test_options_that_contradict_each_other_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        tfdp.fix(sequential(), **options)


def test_what_is_frozen_stays_as_it_is():
    plain = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    backbone = functional()
    for layer in backbone.layers[:-1]:
        layer.trainable = False
    for model in (plain, backbone):
        assert tfdp.fix(model) is model
    model = with_random_weights(sequential())
    model.get_layer("after_conv").trainable = False
    fixed = tfdp.fix(model)
    assert kinds(fixed) == {"BatchNormalization": 1, "GroupNormalization": 1}
    equal(model.get_layer("after_conv").weights, fixed.get_layer("after_conv").weights)
    one_step(fixed)


def test_what_a_normalization_was_adapted_to_stays():
    adapted = layers.Normalization()
    adapted.adapt(draw(20, 4) * 3 + 1)
    x = draw(2, 4)
    before = adapted(x)
    fixed = tfdp.fix(keras.Sequential([keras.Input((4,)), adapted, layers.BatchNormalization()]))
    equal(fixed.layers[0](x), before)


def test_what_was_traced_before_is_forgotten():
    model = with_random_weights(sequential())
    x = draw(3, 4, 2)
    before = model.predict(x, verbose=0)
    fixed = tfdp.fix(model)
    after = fixed.predict(x, verbose=0)
    assert_close(after, fixed(x), terms_of(fixed))
    assert not np.allclose(before, after)


class Block(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = layers.BatchNormalization()

    def call(self, x, training=False):
        return self.norm(x, training=training)


def test_layers_in_the_configuration_of_others():
    inputs = keras.Input((3, 4))
    shared = layers.TimeDistributed(layers.BatchNormalization(name="inner"))
    x = layers.Dense(4)(shared(inputs)) + shared(inputs)
    model = with_random_weights(keras.Model(inputs, layers.Dense(2)(x)))
    before = [weight.numpy() for weight in model.trainable_variables]
    fixed = tfdp.fix(model)
    assert kinds(fixed) == {"GroupNormalization": 1}
    equal(fixed.trainable_variables, before)
    one_step(fixed)


# -- layers and models of classes of their own --------------------------------------------------------


@keras.saving.register_keras_serializable("test_repair")
class Backbone(keras.Model):
    """A functional subclass, which makes its layers in its constructor, as KerasHub's do."""

    def __init__(self, width, **kwargs):
        inputs = keras.Input((4, 2))
        x = layers.Conv1D(width, 1, name="conv")(inputs)
        super().__init__(inputs, layers.BatchNormalization(name="norm")(x), **kwargs)
        self.width = width

    def get_config(self):
        return {"name": self.name, "width": self.width}


@keras.saving.register_keras_serializable("test_repair")
class Classifier(keras.Model):
    def __init__(self, backbone, **kwargs):
        # In another order than in the graph, and of the same shape.
        self.last, self.first = layers.Dense(4, name="last"), layers.Dense(4, name="first")
        self.norms = [layers.BatchNormalization()]
        self.backbone = backbone
        x = layers.GlobalAveragePooling1D()(backbone(backbone.input))
        super().__init__(backbone.input, self.last(self.norms[0](self.first(x))), **kwargs)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return 100.0 * keras.ops.mean(keras.ops.square(y - y_pred))

    def get_config(self):
        return {"name": self.name, "backbone": keras.saving.serialize_keras_object(self.backbone)}

    @classmethod
    def from_config(cls, config):
        backbone = keras.saving.deserialize_keras_object(config["backbone"])
        return cls(backbone, name=config["name"])


def test_a_class_keeps_its_attributes_methods_and_files(tmp_path):
    model = with_random_weights(Classifier(Backbone(4)))
    first = model.first.kernel.numpy()
    fixed = tfdp.fix(model)
    assert type(fixed) is Classifier and type(fixed.backbone) is Backbone
    assert fixed.norms[0] is fixed.layers[-2] and kinds(fixed) == {"GroupNormalization": 2}
    equal([fixed.get_layer("first").kernel], [first])
    x = draw(4, 4, 2)
    loss = private(fixed).train_on_batch(x, np.zeros((4, 4)))
    fixed.save(tmp_path / "private.keras")
    again = keras.models.load_model(tmp_path / "private.keras")
    assert isinstance(again, Classifier) and kinds(again) == kinds(fixed)
    assert again.privacy.steps_taken == 1 and again.privacy.ledger.runs == fixed.privacy.ledger.runs
    assert_close(again(x), fixed(x), terms_of(fixed))
    again.save(tmp_path / "again.keras")  # a file of a file
    equal(keras.models.load_model(tmp_path / "again.keras").get_weights(), fixed.get_weights())
    fixed.privacy.release(tmp_path / "release.keras")
    release = keras.models.load_model(tmp_path / "release.keras")
    assert_close(release(x), fixed(x), terms_of(fixed))
    assert np.isfinite(loss)


def test_examples_stay_apart_in_a_class():
    fixed = tfdp.fix(Classifier(Backbone(4)))
    together, alone = draw(5, 4, 2), draw(5, 4, 2)
    alone[1:] += 1
    assert_close(fixed(together, training=True)[0], fixed(alone, training=True)[0], terms_of(fixed))


@keras.saving.register_keras_serializable("test_repair")
class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.block, self.dense = Block(), layers.Dense(2)

    def call(self, x, training=False):
        return self.dense(self.block(x, training=training))


def test_layers_that_a_class_makes(tmp_path):
    model = Subclassed()
    with pytest.raises(ValueError, match="call it once"):
        tfdp.fix(model)
    model(draw(3, 4))
    fixed = tfdp.fix(model)
    assert kinds(fixed) == {"GroupNormalization": 1}
    x = draw(6, 4)
    private(fixed).fit(x, x[:, :2], batch_size=6, verbose=0)
    fixed.save(tmp_path / "m.keras")
    assert_close(keras.models.load_model(tmp_path / "m.keras")(x), fixed(x), terms_of(fixed))
    with pytest.raises(ValueError, match="save_weights"):
        fixed.privacy.release(tmp_path / "release.keras")
    fixed.save_weights(tmp_path / "m.weights.h5")
    again = Subclassed()
    again(x)
    again = tfdp.fix(again)
    again.load_weights(tmp_path / "m.weights.h5")
    assert_close(again(x), fixed(x), terms_of(fixed))


@keras.saving.register_keras_serializable("test_repair")
def double(x):
    return 2 * x


class Patches(layers.Layer):
    """No `get_config` and no `**kwargs`."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def call(self, x):
        return keras.ops.reshape(x, (-1, self.size, self.size))


def test_layers_that_cannot_be_made_again():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(4, activation=double, kernel_regularizer=lambda w: keras.ops.sum(w * w)),
            Patches(2),
            layers.Lambda(lambda x: x + 1),
            layers.BatchNormalization(),
        ]
    )
    one_step(tfdp.fix(model))
    assert kinds(model) == {"GroupNormalization": 1}


def test_public_data_need_a_stock_class():
    model, public = Classifier(Backbone(4)), draw(5, 4, 2)
    with pytest.raises(ValueError, match="graph alone"):
        tfdp.fix(model, public)
    graph = keras.Model(model.inputs, model.outputs)
    with pytest.raises(ValueError, match="at least 2"):
        tfdp.fix(graph, public[:1])
    fixed = tfdp.fix(graph, public)
    assert kinds(fixed) == {"PublicBatchNormalization": 2}
    one_step(fixed)


# -- trained statistics -------------------------------------------------------------------------------


def test_trained_statistics_are_frozen_first(caplog):
    def trained():
        model = sequential()
        model.compile("sgd", "mse", run_eagerly=True)
        model.fit(draw(8, 4, 2), draw(8, 5), verbose=0)
        return model

    model = trained()
    before = model(draw(3, 4, 2))
    with pytest.raises(ValueError, match="freeze it"):
        tfdp.make_private(model)
    for layer in model.layers:
        layer.trainable = not isinstance(layer, layers.BatchNormalization)
    equal(tfdp.make_private(model, start="public")(draw(3, 4, 2)), before)
    one_step(model)
    tfdp.fix(trained())
    assert "discards the trained statistics of 2 layers" in caplog.text
