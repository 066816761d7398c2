"""Training on the features of a frozen beginning is the training of the whole network."""

import keras
import numpy as np
import pytest
from keras import layers

import tfdp
from tfdp import data, models
from tfdp.experiments import Experiment, features, run
from tfdp.experiments.public_data import public_examples
from tfdp.experiments.run_folder import RunFolder
from tfdp.experiments.saving import run_into
from tfdp.experiments.start import freeze

SMALL = {"model": "mlp", "batch_size": 64, "steps": 3, "learning_rate": 0.2, "seed": 3}
PRIVATE = {"noise_multiplier": 1.0, "insecure_seed": 5}


@pytest.mark.parametrize(
    "settings",
    [
        {"normalization": "layer_affine", **PRIVATE},
        pytest.param({"normalization": "batch", **PRIVATE}, marks=pytest.mark.slow),
        pytest.param({"mechanism": "si_dpsgd", **PRIVATE}, marks=pytest.mark.slow),
        # Plain lots are drawn without a seed, unless they are the whole data set.
        {"mechanism": "none", "batch_size": 1437, "sampling": "cyclic", "optimizer": "adam"},
    ],
    ids=["dpsgd", "public examples", "si_dpsgd", "none"],
)
def test_the_result_is_that_of_the_whole_network(settings):
    """The seeds make lots and noise equal, so that only rounding may differ."""
    merged = {**SMALL, **settings, "trainable_layers": "logits"}
    cached, whole = (
        run(Experiment(**merged, cache_features=cache), verbose=0) for cache in (True, False)
    )
    assert "computed once" in " ".join(cached.notes)
    assert "computed once" not in " ".join(whole.notes)
    assert "Only logits was trained; all other layers are frozen." in whole.notes
    assert [v.path for v in cached.model.weights] == [v.path for v in whole.model.weights]
    moved = {v.path.split("/")[-2] for v in cached.model.weights if v.trainable}
    assert moved == {"logits"}
    for mine, other in zip(cached.model.weights, whole.model.weights, strict=True):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-4, atol=1e-4)
    assert cached.test_accuracy == pytest.approx(whole.test_accuracy, abs=0.01)
    if settings.get("mechanism") != "none":
        assert (cached.proven, cached.claimed, cached.run) == (
            whole.proven, whole.claimed, whole.run,
        )  # fmt: skip
        assert cached.model.privacy.ledger.runs == [cached.run]


@pytest.mark.parametrize("mechanism", ["dpsgd", "none"])
def test_the_released_network_is_whole_and_only_its_end_has_moved(tmp_path, mechanism):
    privacy = {"mechanism": "none"} if mechanism == "none" else {"noise_multiplier": 1.0}
    experiment = Experiment(**SMALL, **privacy, trainable_layers="logits")
    with RunFolder(tmp_path / "result") as folder:
        result = run_into(folder, experiment, verbose=0)
    assert "computed once" in " ".join(result.notes)
    released = keras.models.load_model(tmp_path / "result" / "model.keras")
    digits = data.load("digits")
    right = np.mean(released.predict(digits.x_test, verbose=0).argmax(axis=1) == digits.y_test)
    assert right == pytest.approx(result.test_accuracy)
    keras.utils.set_random_seed(SMALL["seed"])
    fresh = models.build("mlp", (8, 8, 1), 10)
    for mine, other in zip(released.layers, fresh.layers, strict=True):
        same = all(map(np.array_equal, mine.get_weights(), other.get_weights()))
        assert same == (mine.name != "logits")


def functional(*, twice=False):
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(3, 3, padding="same", name="conv_1")(inputs)
    y = layers.Conv2D(3, 3, padding="same", name="conv_2")(layers.ReLU(name="relu")(x))
    x = layers.Add(name="add")([x, y])
    last = layers.Conv2D(3, 3, padding="same", name="conv_3")
    x = last(last(x)) if twice else last(x)
    return keras.Model(inputs, layers.Dense(10, name="logits")(layers.Flatten(name="flat")(x)))


@pytest.mark.parametrize(
    ("kept", "shape"),
    [("logits", (192,)), ("conv_3,logits", (8, 8, 3)), ("conv_2,conv_3", (8, 8, 3))],
    ids=["behind all", "behind the shortcut", "before the shortcut"],
)
def test_a_functional_network_is_cut_where_one_tensor_passes(kept, shape):
    model = functional()
    freeze(model, kept)
    parts = features.in_parts(model)
    assert parts.rest.inputs[0].shape[1:] == shape
    x = np.random.default_rng(0).normal(size=(5, 8, 8, 1)).astype("float32")
    passed = parts.rest(parts.beginning(x))
    np.testing.assert_allclose(passed, model(x), rtol=1e-4, atol=1e-5)
    assert [v.path for v in parts.rest.trainable_variables] == [
        v.path for v in model.trainable_variables
    ]
    again = type(model).from_config(model.get_config())
    assert [layer.name for layer in again.layers] == [layer.name for layer in model.layers]


def sequential(*inner):
    stack = [keras.Input((8, 8, 1)), layers.Conv2D(3, 3, name="conv"), *inner]
    return keras.Sequential([*stack, layers.Flatten(), layers.Dense(10, name="logits")])


@pytest.mark.parametrize(
    "layer",
    [
        layers.Dropout(0.5),
        layers.GaussianNoise(0.1),
        tfdp.layers.PrivateBatchNormalization(statistics="batch"),  # the moments of the lot
    ],
    ids=str,
)
def test_a_layer_that_acts_otherwise_in_training_ends_the_beginning(layer):
    model = sequential(layer)
    freeze(model, "logits")
    parts = features.in_parts(model)
    assert parts.rest.layers[1] is layer and parts.beginning.layers[-1].name == "conv"


def test_what_cannot_be_cut_stays_whole():
    model = sequential()
    assert features.in_parts(model) is None  # nothing is frozen
    freeze(model, "conv")
    assert features.in_parts(model) is None  # the frozen part comes last
    model = functional(twice=True)
    freeze(model, "logits")
    assert features.in_parts(model) is None
    model = models.build("bilstm", (7,), 2)
    freeze(model, "logits")
    assert features.in_parts(model) is None  # the table has a mask and costs nothing


def test_with_the_statistics_of_a_lot_nothing_is_computed_once():
    public = public_examples("digits", 5)
    for statistics in ("example", "batch"):
        model = models.build(
            "mlp", (8, 8, 1), 10, "batch", public_data=public, statistics=statistics
        )
        freeze(model, "logits")
        assert (features.in_parts(model) is None) == (statistics == "batch")


def test_frozen_running_statistics_are_constants():
    layer = tfdp.layers.PrivateBatchNormalization()
    layer.build((None, 3))
    assert not features.is_alike(layer)
    layer.trainable = False
    assert features.is_alike(layer)
