"""`tfdp.fix` replaces batch normalization and keeps everything else."""

import copy
import pickle

import keras
import numpy as np
import pytest
from absl import logging
from keras import layers

import tfdp
from tfdp.gradients.engines import ghost
from tfdp.layers import PublicBatchNormalization, PublicExamples
from tfdp.training.checks import refuse_mixing_layers


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def sequential():
    return keras.Sequential(
        [
            keras.Input((4, 4, 2)),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(epsilon=0.01, name="after_conv"),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(5),
            layers.BatchNormalization(scale=False),
            layers.Dense(3),
        ],
        name="mine",
    )


def functional():
    inputs = keras.Input((4, 4, 2))
    x = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(inputs))
    inner = keras.Sequential(
        [keras.Input((4, 4, 4)), layers.Conv2D(4, 1), layers.BatchNormalization()], name="inner"
    )
    x = layers.GlobalAveragePooling2D()(layers.Add()([x, inner(x)]))
    return keras.Model(inputs, layers.Dense(3)(x), name="mine")


def with_random_weights(model, seed=0):
    random = np.random.default_rng(seed)
    model.set_weights([random.uniform(0.5, 1.5, w.shape) for w in model.get_weights()])
    return model


def kinds(model):
    found = [type(layer).__name__ for layer in model._flatten_layers()]
    return {name: found.count(name) for name in found if "Normalization" in name}


@pytest.mark.parametrize("make", [sequential, functional], ids=lambda f: f.__name__)
@pytest.mark.parametrize("public", [None, draw(5, 4, 4, 2)], ids=["group", "public"])
def test_replaces_every_batch_normalization(make, public):
    model = with_random_weights(make())
    before = model.get_weights()
    fixed = tfdp.fix(model, public_data=public)
    name = "GroupNormalization" if public is None else "PublicBatchNormalization"
    assert kinds(fixed) == {name: 2}
    assert kinds(model) == {"BatchNormalization": 2}
    assert fixed.name == "mine"
    refuse_mixing_layers(fixed)
    for mine, theirs in zip(fixed.trainable_variables, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for mine, theirs in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert np.isfinite(fixed.predict(draw(2, 4, 4, 2), verbose=0)).all()


def test_settings_of_the_layers_stay():
    model = sequential()
    fixed = tfdp.fix(model, public_data=draw(5, 4, 4, 2), statistics="batch")
    (examples,) = [la for la in fixed.layers if isinstance(la, PublicExamples)]
    assert examples.statistics == "batch" and examples.count == 5
    norm = examples.network.get_layer("after_conv")
    assert isinstance(norm, PublicBatchNormalization)
    assert norm.epsilon == 0.01
    assert examples.network.layers[5].gamma is None


def test_group_normalization_does_not_erase_features():
    # Groups of one feature would normalize every feature of a vector to zero.
    fixed = tfdp.fix(sequential())
    norms = [la for la in fixed.layers if isinstance(la, layers.GroupNormalization)]
    assert [norm.groups for norm in norms] == [4, 1]
    outputs = fixed.predict(draw(2, 4, 4, 2), verbose=0)
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-3


def test_several_inputs():
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    hidden = layers.Concatenate()([layers.BatchNormalization()(layers.Dense(5)(a)), b])
    model = keras.Model({"a": a, "b": b}, layers.Dense(2)(hidden))
    fixed = tfdp.fix(model, public_data={"a": draw(5, 4), "b": draw(5, 3)})
    outputs = fixed({"a": draw(6, 4, seed=1), "b": draw(6, 3, seed=1)})
    assert outputs.shape == (6, 2)


def test_says_what_it_changed(caplog):
    logging.set_verbosity(logging.INFO)
    try:
        with caplog.at_level("INFO", "absl"):
            tfdp.fix(sequential())
    finally:
        logging.set_verbosity(logging.WARNING)
    assert "'after_conv': GroupNormalization (4 groups)" in caplog.text


def test_a_fixed_model_trains_and_survives_a_file(tmp_path):
    model = tfdp.make_private(tfdp.fix(sequential(), public_data=draw(5, 4, 4, 2)))
    optimizer = tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = draw(16, 4, 4, 2, seed=1)
    model.fit(x, np.arange(16) % 3, batch_size=8, verbose=0)
    tfdp.export(model, tmp_path / "release.keras")
    again = keras.models.load_model(tmp_path / "release.keras")
    np.testing.assert_allclose(
        again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5, atol=1e-6
    )


def test_nothing_to_repair():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    assert tfdp.fix(model) is model


def one_step(model):
    tfdp.make_private(model)
    model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0), "mse")
    rows = draw(4, *model.input_shape[1:])
    model.fit(rows, np.zeros((4, *model.output_shape[1:])), batch_size=4, verbose=0)


OPERATORS = {
    "h + i": lambda h, i: h + i,
    "h * 2": lambda h, i: h * 2,
    "1 - h": lambda h, i: 1 - h,
    "h[:, 1:]": lambda h, i: h[:, 1:],
    "relu": lambda h, i: keras.ops.relu(h),
    "concatenate": lambda h, i: keras.ops.concatenate([h, i], axis=-1),
    "array": lambda h, i: h + np.arange(4.0, dtype="float32")[None],
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_graphs_with_operators(operator):
    inputs = keras.Input((4,))
    hidden = layers.BatchNormalization()(layers.Dense(4)(inputs))
    model = with_random_weights(keras.Model(inputs, OPERATORS[operator](hidden, inputs)))
    fixed = tfdp.fix(model)
    x = draw(3, 4)
    norm = fixed.layers[2]
    expected = OPERATORS[operator](norm(fixed.layers[1](x)), x)
    np.testing.assert_allclose(fixed(x), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(fixed.layers[1].kernel, model.layers[1].kernel)
    np.testing.assert_array_equal(norm.gamma, model.layers[2].gamma)


def test_an_application_of_keras_is_fixed_and_trains():
    model = keras.applications.MobileNetV3Small(weights=None, input_shape=(32, 32, 3), classes=3)
    fixed = tfdp.fix(model)
    assert set(kinds(fixed)) == {"GroupNormalization"}
    old = {v.path: v for v in model.weights}
    for variable in fixed.weights:
        np.testing.assert_array_equal(variable, old[variable.path])
    refuse_mixing_layers(fixed)
    assert ghost.supports(fixed) is None


def groups(model):
    return [g.groups for g in model._flatten_layers() if isinstance(g, layers.GroupNormalization)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [4, 1]),
        ({"num_groups": 1}, [1, 1]),
        ({"num_groups": 2}, [2, 1]),
        ({"num_groups": 3}, [2, 1]),  # the most, up to 3, that divide 4 channels
        ({"normalization": "instance"}, [4, 1]),
    ],
)
def test_numbers_of_groups(options, expected):
    assert groups(tfdp.fix(sequential(), **options)) == expected


def test_instance_normalization_is_by_channel_however_many_there_are():
    model = keras.Sequential([keras.Input((4, 48)), layers.BatchNormalization()])
    assert groups(tfdp.fix(model)) == [24]
    fixed = tfdp.fix(model, normalization="instance")
    assert groups(fixed) == [48]
    x = draw(2, 4, 48)
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(fixed(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"num_groups": 0}, "num_groups"),
        ({"num_groups": 2.5}, "num_groups"),
        ({"normalization": "layer"}, "normalization"),
        ({"num_groups": 2, "normalization": "instance"}, "Leave one"),
        ({"num_groups": 2, "public_data": draw(5, 4, 4, 2)}, "Leave one"),
        ({"normalization": "instance", "public_data": draw(5, 4, 4, 2)}, "Leave one"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, why):
    with pytest.raises(ValueError, match=why):
        tfdp.fix(sequential(), **options)


def test_flags_regularizers_and_dtypes_stay():
    inner = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(4, name="frozen"),
            layers.BatchNormalization(gamma_regularizer="l2", dtype="mixed_bfloat16", name="norm"),
        ],
        name="inner",
    )
    inner.layers[0].trainable = False
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Dense(2, name="head")(inner(inputs)))
    fixed = tfdp.fix(model)
    copied = fixed.get_layer("inner")
    assert [layer.trainable for layer in copied.layers] == [False, True] and copied.trainable
    norm = copied.get_layer("norm")
    assert isinstance(norm.gamma_regularizer, keras.regularizers.L2)
    assert norm.dtype_policy.name == "mixed_bfloat16"
    assert len(fixed.trainable_variables) == len(model.trainable_variables)


def test_a_frozen_batch_normalization_stays_as_it_is():
    model = with_random_weights(sequential())
    model.get_layer("after_conv").trainable = False
    fixed = tfdp.fix(model)
    assert kinds(fixed) == {"BatchNormalization": 1, "GroupNormalization": 1}
    for old, new in zip(
        model.get_layer("after_conv").weights, fixed.get_layer("after_conv").weights, strict=True
    ):
        np.testing.assert_array_equal(old, new)
    one_step(fixed)


def test_a_model_with_a_frozen_backbone_needs_no_repair():
    model = functional()
    for layer in model.layers[:-1]:
        layer.trainable = False
    assert tfdp.fix(model) is model
    one_step(model)


def test_what_a_normalization_was_adapted_to_stays():
    adapted = layers.Normalization()
    adapted.adapt(draw(20, 4) * 3 + 1)
    model = keras.Sequential(
        [keras.Input((4,)), adapted, layers.Dense(3), layers.BatchNormalization()]
    )
    fixed = tfdp.fix(model)
    x = draw(2, 4)
    assert fixed.layers[0] is not adapted
    np.testing.assert_allclose(fixed.layers[0](x), adapted(x), rtol=1e-6)


class Block(layers.Layer):
    def __init__(self, units=4, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.norm = layers.BatchNormalization(name="own_norm")
        self.again = self.norm  # the same layer, by another name
        self.pairs = [(layers.Dense(units), layers.BatchNormalization())]
        self.by_name = {"norm": layers.BatchNormalization(), "list": [layers.BatchNormalization()]}
        self.in_a_set = {layers.BatchNormalization()}
        self.graph = keras.Sequential([keras.Input((units,)), layers.BatchNormalization()])

    def call(self, x, training=False):
        x = self.again(self.norm(x, training=training))
        for dense, norm in self.pairs:
            x = norm(dense(x), training=training)
        (norm,) = self.in_a_set
        x = norm(x)
        return self.graph(self.by_name["list"][0](self.by_name["norm"](x)))

    def get_config(self):
        return super().get_config() | {"units": self.units}


class Blocks(keras.Model):
    def __init__(self, units=4):
        super().__init__()
        self.first, self.head = Block(units, name="first_block"), layers.Dense(2)
        self.timed = layers.TimeDistributed(layers.BatchNormalization())

    def call(self, x, training=False):
        x = self.first(x, training=training)
        return self.head(self.timed(x[:, None, :])[:, 0])


def subclassed():
    model = Blocks()
    model(np.zeros((2, 4), "float32"))
    return with_random_weights(model)


def graph_of_blocks():
    inputs = keras.Input((4,))
    return with_random_weights(keras.Model(inputs, layers.Dense(2)(Block(name="block")(inputs))))


@pytest.mark.parametrize("make", [subclassed, graph_of_blocks], ids=lambda f: f.__name__)
def test_layers_in_attributes_lists_tuples_and_dicts(make):
    model = make()
    before = [w.copy() for w in model.get_weights()]
    count = kinds(model)["BatchNormalization"]
    fixed = tfdp.fix(model)
    assert fixed is not model and type(fixed) is type(model)
    assert kinds(fixed) == {"GroupNormalization": count}
    assert kinds(model) == {"BatchNormalization": count}
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(model.trainable_variables, fixed.trainable_variables, strict=True):
        np.testing.assert_array_equal(a, b)
    names = [[layer.name for layer in m._flatten_layers()] for m in (model, fixed)]
    assert "own_norm" in names[1] and len(names[0]) == len(names[1])
    block = fixed.layers[0] if make is subclassed else fixed.get_layer("block")
    assert block.norm is block.again
    tfdp.make_private(fixed)
    fixed.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0), "mse")
    x = draw(4, 4)
    gamma = keras.ops.convert_to_numpy(block.by_name["list"][0].gamma)
    fixed.fit(x, x[:, :2], batch_size=4, verbose=0)
    assert not np.array_equal(block.by_name["list"][0].gamma, gamma)  # it is called, and trains


@pytest.mark.parametrize("make", [subclassed, graph_of_blocks], ids=lambda f: f.__name__)
def test_a_file_that_could_not_be_loaded_is_not_written(make, tmp_path):
    fixed = tfdp.make_private(tfdp.fix(make()))
    fixed.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0), "mse")
    x = draw(4, 4)
    whole = keras.callbacks.ModelCheckpoint(tmp_path / "whole.keras")
    for write in (
        lambda: fixed.save(tmp_path / "whole.keras"),
        lambda: tfdp.export(fixed, tmp_path / "release.keras"),
        lambda: fixed.fit(x, x[:, :2], batch_size=4, verbose=0, callbacks=[whole]),
        lambda: pickle.dumps(fixed),
        lambda: copy.deepcopy(fixed),
    ):
        with pytest.raises(ValueError, match=r"from tfdp\.fix.*Expected save_weights"):
            write()
    assert fixed.privacy.steps_taken == 0 and not [*tmp_path.iterdir()]
    weights = tmp_path / "w.weights.h5"
    partly = keras.callbacks.ModelCheckpoint(weights, save_weights_only=True)
    fixed.fit(x, x[:, :2], batch_size=4, verbose=0, callbacks=[partly])
    again = tfdp.make_private(tfdp.fix(make()))
    again.load_weights(weights)
    block = fixed.layers[0] if make is subclassed else fixed.get_layer("block")
    (forgotten,) = block.in_a_set  # Keras saves no layers in sets
    forgotten = {v.path for v in forgotten.variables}
    for a, b in zip(fixed.variables, again.variables, strict=True):
        if a.path not in forgotten:
            np.testing.assert_array_equal(a, b)


class NeedsAnArgument(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, x):
        return self.layer(x)


class Unbuilt(keras.Model):
    pass


def called(model):
    model(np.zeros((2, 4), "float32"))
    return model


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Unbuilt, "Expected a built model"),
        (lambda: keras.Sequential([layers.BatchNormalization()]), "built"),
        (lambda: called(NeedsAnArgument(layers.BatchNormalization())), "cannot be copied"),
    ],
    ids=["unbuilt subclassed", "unbuilt", "no configuration"],
)
def test_what_it_cannot_repair(make, why):
    with pytest.raises(ValueError, match=why):
        tfdp.fix(make())


def test_public_examples_need_a_graph():
    with pytest.raises(ValueError, match="subclassed model with public_data"):
        tfdp.fix(subclassed(), public_data=draw(5, 4))
