"""`tfdp.fix` replaces batch normalization and keeps everything else."""

import keras
import numpy as np
import pytest
from helpers import sgd
from keras import layers

import tfdp
from tests.rounding import FUNCTION, assert_close, terms_of
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
    before = model.get_weights()
    fixed = tfdp.fix(model, public_data=public)
    name = "GroupNormalization" if public is None else "PublicBatchNormalization"
    assert kinds(fixed) == {name: 2} and kinds(model) == {"BatchNormalization": 2}
    assert fixed.name == "mine"
    refuse_mixing_layers(fixed)
    equal(fixed.trainable_variables, model.trainable_variables)
    equal(model.get_weights(), before)
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
    fixed = tfdp.fix(keras.Sequential([keras.Input((4,)), adapted, layers.BatchNormalization()]))
    x = draw(2, 4)
    assert fixed.layers[0] is not adapted
    assert_close(fixed.layers[0](x), adapted(x), 2 + FUNCTION)


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
    fixed = tfdp.fix(model)
    assert kinds(fixed) == {"GroupNormalization": 1} and kinds(model) == {"BatchNormalization": 1}
    equal(model.trainable_variables, fixed.trainable_variables)
    one_step(fixed)


def test_what_it_cannot_repair():
    unbuilt = keras.Sequential([layers.BatchNormalization()])
    own_class = keras.Sequential([keras.Input((4,)), Block()])
    for model, why in ((unbuilt, "built"), (Block(), "built"), (own_class, "class")):
        with pytest.raises(ValueError, match=why):
            tfdp.fix(model)
