"""Models have the papers' widths, return logits, keep examples apart and refuse what does not fit."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp.layers
from tests.rounding import FUNCTION, assert_close, close, rounding, terms_of
from tfdp import models

MNIST, SMALL = (28, 28, 1), (14, 14, 1)
# STACKED models allow every normalization (but the linear one starts at zero and normalizes its
# inputs); OWN models have an architecture of their own. The others are in test_paper_models.py.
STACKED = [
    name
    for name, a in models.MODELS.items()
    if not a.functional and not a.scales and name != "linear"
]
OWN = {
    name: (12,) if a.takes_tokens else (6, 6, 1)
    for name, a in models.MODELS.items()
    if a.normalizations == ("none",)
}


def images(shape=MNIST, count=3):
    return np.random.default_rng(0).uniform(-1, 1, (count, *shape)).astype(np.float32)


def rows_of(name, count=3):
    """Inputs for a model with an architecture of its own."""
    if models.MODELS[name].takes_tokens:
        largest = 7 if name == "tutorial_lstm" else models.NUM_TOKENS
        generator = np.random.default_rng(0)
        return generator.integers(1, largest, (count, *OWN[name])).astype("int32")
    return images(OWN[name], count)


def one_by_one(model, x):
    return np.concatenate([model(x[i : i + 1], training=True) for i in range(len(x))])


@pytest.mark.parametrize(
    ("name", "input_shape", "weights"),
    [
        ("tutorial_cnn", MNIST, 26_010),
        ("mlp", (8, 8, 1), 4_810),
        ("linear", (8, 8, 1), 650),
        ("cifar_tutorial", (32, 32, 3), 1_832_266),
        ("bilstm", (64,), 714_954),
        ("transformer", (64,), 711_818),
        ("tutorial_logistic", MNIST, 7_850),
    ],
)
def test_number_of_weights(name, input_shape, weights):
    assert models.build(name, input_shape, 10).count_params() == weights


def test_cifar_tutorial_is_abadi_et_al():
    stack = models.build("cifar_tutorial", (24, 24, 3), 10).layers
    maps = [layer.output.shape[1:] for layer in stack if "pool" in layer.name]
    assert maps == [(12, 12, 64), (6, 6, 64)]  # as in section 5.3 of the paper
    assert [d.units for d in stack if isinstance(d, layers.Dense)] == [384, 384, 10]


@pytest.mark.parametrize("normalization", models.NORMALIZATIONS)
def test_stacked_models_return_logits_and_only_batch_normalization_mixes_examples(normalization):
    for name in STACKED:
        model, x = models.build(name, SMALL, 7, normalization), images(SMALL)
        outputs = model(x, training=True)
        assert outputs.shape == (3, 7)
        assert np.abs(np.sum(outputs, axis=1) - 1).max() > 1e-3  # logits, no softmax
        apart = close(outputs, one_by_one(model, x), terms_of(model))
        assert apart == (normalization != "batch"), name
        if normalization != "private_batch":  # a file loads without tfdp
            assert all(type(layer).__module__.startswith("keras") for layer in model.layers)


@pytest.mark.parametrize("name", OWN)
def test_models_of_their_own_return_logits_and_do_not_mix_examples(name, tmp_path):
    model, x = models.build(name, OWN[name], 7), rows_of(name)
    outputs = model(x)
    assert outputs.shape == ((3, 12, 7) if name == "tutorial_lstm" else (3, 7))
    assert_close(model(x, training=True), one_by_one(model, x), terms_of(model))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(loaded(x), outputs, terms_of(model))
    with pytest.raises(ValueError, match="normalization"):
        models.build(name, OWN[name], 10, "layer")


# -- single models -------------------------------------------------------------------------------


def test_tutorial_logistic_bounds_its_gradients():
    """No gradient is above sqrt(2 (8^2 + 1)), which bright images under a wrong label come near to."""
    model = models.build("tutorial_logistic", MNIST, 10)
    model.layers[-1].kernel.assign(np.eye(10)[np.arange(784) % 10] * 100)
    x = np.concatenate([images(), images() + 1, np.full((1, *MNIST), -1, np.float32)])
    x[0, ..., 0] = 2 * (np.arange(784) % 10 == 3).reshape(28, 28) - 1  # all bright pixels say 3
    bounded = math.sqrt(2 * (8**2 + 1))
    norms = []
    for row in x:
        with tf.GradientTape() as tape:
            loss = keras.losses.sparse_categorical_crossentropy(
                tf.constant([7]), model(row[None]), True
            )
        gradient = tape.gradient(loss, [v.value for v in model.trainable_variables])
        norms.append(float(tf.linalg.global_norm(gradient)))
    assert max(norms) <= bounded * (1 + rounding(784))
    assert norms[0] > 0.999 * bounded
    # The norm of a dark image, which is below 8, stays as it is: only the bias sees it.
    assert_close(norms[-1], math.sqrt(0.9**2 + 9 * 0.1**2), 10 + FUNCTION)


def test_tutorial_lstm_is_the_tutorials_and_does_not_see_the_next_characters():
    model = models.build("tutorial_lstm", (79,), 256)
    assert model.count_params() == 4 * 256 * (256 + 256 + 1) + 256 * 257
    assert model.output_shape == (None, 79, 256)
    model, x = models.build("tutorial_lstm", (12,), 7), rows_of("tutorial_lstm")
    changed = x.copy()
    changed[:, 8:] = (x[:, 8:] + 1) % 7
    assert_close(model(changed)[:, :8], model(x)[:, :8], terms_of(model))
    assert np.abs(model(changed)[:, 8] - model(x)[:, 8]).max() > 1e-4


def test_transformer_knows_the_order():
    model, x = models.build("transformer", (12,), 10), rows_of("transformer")
    assert np.abs(model(x) - model(x[:, ::-1].copy())).max() > 1e-3


# -- normalization -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("normalization", "normalize_output", "missing"),
    [("layer", True, 0), ("layer", False, 1), ("batch", True, 0)],
)
def test_a_normalization_stands_after_each_trainable_layer(
    normalization, normalize_output, missing
):
    for name in STACKED:
        model = models.build(name, SMALL, 10, normalization, normalize_output=normalize_output)
        kinds = (layers.LayerNormalization, layers.BatchNormalization)
        norms = [layer for layer in model.layers if isinstance(layer, kinds)]
        trained = [la for la in model.layers if isinstance(la, layers.Dense | layers.Conv2D)]
        assert len(norms) == len(trained) - missing, name


def test_normalization_of_images_is_over_the_whole_example():
    model = models.build("lenet5", MNIST, 10, "layer")
    norm = model.get_layer("conv_1_norm")
    normalized = norm(3 + 2 * images((28, 28, 6))).numpy()
    assert_close(normalized.mean(axis=(1, 2, 3)), 0, 28 * 28 * 6, 3 + 2)
    assert_close(normalized.std(axis=(1, 2, 3)), 1, 28 * 28 * 6)


def test_batch_normalization_by_public_examples():
    public = np.linspace(-1, 1, 4 * 196, dtype="float32").reshape(4, *SMALL)
    model = models.build("lenet5", SMALL, 10, "batch", public_data=public, statistics="batch")
    examples = model.layers[-1]
    assert (examples.count, examples.statistics) == (4, "batch")
    stock = models.build("lenet5", SMALL, 10, "batch").layers
    norms = [la.name for la in stock if isinstance(la, layers.BatchNormalization)]
    kind = tfdp.layers.PublicBatchNormalization
    assert [la.name for la in examples.network.layers if isinstance(la, kind)] == norms
    assert model(images(SMALL)).shape == (3, 10)


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "argument"),
    [
        (("resnet9000", MNIST, 10), {}, "name"),
        (("lenet5", MNIST, 10, "instance"), {}, "normalization"),
        (("bilstm_dl", (20,), 4, "batch"), {}, "normalization"),
        (("mlp", MNIST, 10, "layer"), {"private_statistics": {"share": 0.1}}, "private_statistics"),
        (("mlp", MNIST, 10, "layer"), {"public_data": np.zeros((3, *MNIST))}, "public_data"),
        (("lenet5", (32, 32, 3), 10), {"width": 0.5}, "width"),
        (("lenet5", (784,), 10), {}, "input_shape"),
        (("bilstm", MNIST, 10), {}, "input_shape"),
        (("mlp", (8, 8, 1), float("nan")), {}, "num_classes"),
    ],
    ids=str,
)
def test_bad_arguments(arguments, options, argument):
    with pytest.raises(ValueError, match=argument):
        models.build(*arguments, **options)


@pytest.mark.parametrize(("name", "smallest"), [("tutorial_cnn", 13), ("vgg16", 32)])
def test_the_smallest_image_is_the_smallest(name, smallest):
    def shape(size):
        return (size, size, 3)

    options = {"width": 0.05} if models.MODELS[name].scales else {}
    models.build(name, shape(smallest), 10, **options)
    with pytest.raises(ValueError, match=f"{smallest}x{smallest}"):
        models.build(name, shape(smallest - 1), 10, **options)
    stack = models.MODELS[name].make(10, "none", "relu", "none", **options)
    with pytest.raises(ValueError):
        keras.Sequential([keras.Input(shape(smallest - 1)), *stack])
