"""`tfdp.fix` replaces batch normalization and keeps everything else."""

import keras
import numpy as np
import pytest
from absl import logging
from keras import layers

import tfdp
from tfdp.layers import PublicBatchNormalization, PublicExamples
from tfdp.training.checks import refuse_mixing_layers


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def sequential():
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
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
    inputs = keras.Input((6, 6, 2))
    x = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(inputs))
    inner = keras.Sequential(
        [keras.Input((6, 6, 4)), layers.Conv2D(4, 1), layers.BatchNormalization()], name="inner"
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
@pytest.mark.parametrize("public", [None, draw(5, 6, 6, 2)], ids=["group", "public"])
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
    assert np.isfinite(fixed.predict(draw(2, 6, 6, 2), verbose=0)).all()


def test_settings_of_the_layers_stay():
    model = sequential()
    model.get_layer("after_conv").trainable = False
    fixed = tfdp.fix(model, public_data=draw(5, 6, 6, 2), statistics="batch")
    (examples,) = [la for la in fixed.layers if isinstance(la, PublicExamples)]
    assert examples.statistics == "batch" and examples.count == 5
    norm = examples.network.get_layer("after_conv")
    assert isinstance(norm, PublicBatchNormalization)
    assert norm.epsilon == 0.01 and not norm.trainable
    assert examples.network.layers[5].gamma is None


def test_group_normalization_does_not_erase_features():
    # Groups of one feature would normalize every feature of a vector to zero.
    fixed = tfdp.fix(sequential())
    norms = [la for la in fixed.layers if isinstance(la, layers.GroupNormalization)]
    assert [norm.groups for norm in norms] == [4, 1]
    outputs = fixed.predict(draw(2, 6, 6, 2), verbose=0)
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
    model = tfdp.make_private(tfdp.fix(sequential(), public_data=draw(5, 6, 6, 2)))
    optimizer = tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = draw(16, 6, 6, 2, seed=1)
    model.fit(x, np.arange(16) % 3, batch_size=8, verbose=0)
    tfdp.export(model, tmp_path / "release.keras")
    again = keras.models.load_model(tmp_path / "release.keras")
    np.testing.assert_allclose(
        again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5, atol=1e-6
    )


def test_nothing_to_repair():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    assert tfdp.fix(model) is model


class Mine(keras.Model):
    def call(self, x):
        return x


class Wraps(layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = layers.BatchNormalization()

    def call(self, x):
        return self.inner(x)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Mine, "subclassed"),
        (lambda: keras.Sequential([layers.BatchNormalization()]), "built"),
        (lambda: keras.Sequential([keras.Input((4,)), Wraps()]), "inside of layer"),
    ],
    ids=["subclassed", "unbuilt", "hidden"],
)
def test_what_it_cannot_repair(make, why):
    with pytest.raises(ValueError, match=why):
        tfdp.fix(make())
