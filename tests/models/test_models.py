"""Models have the papers' widths, return logits and load in plain Keras."""

import math
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp.layers
from tfdp import models
from tfdp.gradients.engines import ghost

MNIST = (28, 28, 1)
# STACKED models allow every normalization; OWN models have an architecture of their own. The other
# networks of the papers are in test_paper_models.py.
STACKED = {name for name, a in models.MODELS.items() if a.layers is not None and not a.scales}
OWN = {
    "bilstm": (12,),
    "transformer": (12,),
    "tutorial_logistic": (6, 6, 1),
    "tutorial_lstm": (12,),
}
ALL = pytest.mark.parametrize("name", sorted(STACKED))
# The models with hidden layers; "linear" has only its output layer.
NETWORKS = pytest.mark.parametrize("name", sorted(STACKED - {"linear"}))


def images(shape=MNIST, count=3):
    return np.random.default_rng(0).uniform(-1, 1, (count, *shape)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "input_shape", "weights"),
    [
        ("lenet5", MNIST, 61_706),
        ("lenet_300_100", MNIST, 266_610),
        ("tutorial_cnn", MNIST, 26_010),
        ("mlp", (8, 8, 1), 4_810),
        ("hidden_500", (8, 8, 1), 37_510),
        ("hidden_1000", MNIST, 795_010),
        ("linear", (8, 8, 1), 650),
        ("cifar_tutorial", (24, 24, 3), 1_144_138),
        ("cifar_tutorial", (32, 32, 3), 1_832_266),
    ],
)
class TestWeights:
    def test_number_of_weights(self, name, input_shape, weights):
        assert models.build(name, input_shape, 10).count_params() == weights

    def test_layer_normalization_has_none(self, name, input_shape, weights):
        assert models.build(name, input_shape, 10, "layer").count_params() == weights

    @pytest.mark.parametrize("normalization", ["layer_affine", "batch"])
    def test_other_normalizations_have_some(self, name, input_shape, weights, normalization):
        assert models.build(name, input_shape, 10, normalization).count_params() > weights


def test_lenet5_is_table_7():
    layers = models.build("lenet5", MNIST, 10).layers
    widths = [layer.filters for layer in layers if isinstance(layer, keras.layers.Conv2D)]
    widths += [layer.units for layer in layers if isinstance(layer, keras.layers.Dense)]
    assert widths == [6, 16, 120, 84, 10]


@ALL
@pytest.mark.parametrize("normalization", models.NORMALIZATIONS)
def test_logits_and_round_trip(name, normalization, tmp_path):
    model = models.build(name, MNIST, 7, normalization)
    outputs = model(images())
    assert outputs.shape == (3, 7)
    assert np.abs(np.sum(outputs, axis=1) - 1).max() > 1e-3  # logits, no softmax
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(images()), outputs, rtol=1e-5, atol=1e-6)


def test_cifar_tutorial_is_abadi_et_al():
    layers = models.build("cifar_tutorial", (24, 24, 3), 10).layers
    maps = [layer.output.shape[1:] for layer in layers if "pool" in layer.name]
    assert maps == [(12, 12, 64), (6, 6, 64)]  # as in section 5.3 of the paper
    assert [d.units for d in layers if isinstance(d, keras.layers.Dense)] == [384, 384, 10]


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
    assert max(norms) <= bounded * (1 + 1e-6)
    assert norms[0] > 0.999 * bounded
    # The norm of a dark image, which is below 8, stays as it is: only the bias sees it.
    assert norms[-1] == pytest.approx(math.sqrt(0.9**2 + 9 * 0.1**2), rel=1e-6)


class TestFunctional:
    names = pytest.mark.parametrize("name", sorted(OWN))

    def inputs(self, name, count=3):
        if models.MODELS[name].takes_tokens:
            generator = np.random.default_rng(0)
            largest = 7 if name == "tutorial_lstm" else models.NUM_TOKENS
            return generator.integers(1, largest, (count, *OWN[name])).astype("int32")
        return images(OWN[name], count)

    def test_are_all_here(self):
        own = {name for name, a in models.MODELS.items() if a.normalizations == ("none",)}
        assert OWN.keys() == own

    @pytest.mark.parametrize(
        ("name", "input_shape", "weights"),
        [
            ("bilstm", (64,), 714_954),
            ("transformer", (64,), 711_818),
            ("tutorial_logistic", MNIST, 7_850),
        ],
    )
    def test_number_of_weights(self, name, input_shape, weights):
        assert models.build(name, input_shape, 10).count_params() == weights

    @names
    def test_logits_and_round_trip(self, name, tmp_path):
        model, x = models.build(name, OWN[name], 7), self.inputs(name)
        outputs = model(x)
        assert outputs.shape == ((3, 12, 7) if name == "tutorial_lstm" else (3, 7))
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_allclose(loaded(x), outputs, rtol=1e-5, atol=1e-6)

    @names
    def test_examples_do_not_mix(self, name):
        model, x = models.build(name, OWN[name], 10), self.inputs(name)
        alone = np.concatenate([model(x[i : i + 1], training=True) for i in range(3)])
        np.testing.assert_allclose(model(x, training=True), alone, rtol=1e-4, atol=1e-5)

    @names
    def test_the_ghost_engine_covers_it(self, name):
        model = models.build(name, OWN[name], 10)
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        assert ghost.supports(model) is None

    @names
    def test_has_a_normalization_of_its_own(self, name):
        with pytest.raises(ValueError, match=r"`normalization`.*'none'.*of its own.*'layer'"):
            models.build(name, OWN[name], 10, "layer")

    def test_padding_does_not_count_in_bilstm(self):
        model, x = models.build("bilstm", (12,), 10), self.inputs("bilstm")
        x[:, 8:] = 0
        short = models.build("bilstm", (8,), 10)
        short.set_weights(model.get_weights())
        np.testing.assert_allclose(model(x), short(x[:, :8]), rtol=1e-4, atol=1e-5)

    def test_tutorial_lstm_is_the_tutorials(self):
        model = models.build("tutorial_lstm", (79,), 256)
        assert model.count_params() == 4 * 256 * (256 + 256 + 1) + 256 * 257
        assert model.output_shape == (None, 79, 256)

    def test_tutorial_lstm_does_not_see_the_next_characters(self):
        model, x = models.build("tutorial_lstm", (12,), 7), self.inputs("tutorial_lstm")
        changed = x.copy()
        changed[:, 8:] = (x[:, 8:] + 1) % 7
        np.testing.assert_allclose(model(changed)[:, :8], model(x)[:, :8], atol=1e-6)
        assert np.abs(model(changed)[:, 8] - model(x)[:, 8]).max() > 1e-4

    def test_transformer_knows_the_order(self):
        model, x = models.build("transformer", (12,), 10), self.inputs("transformer")
        assert np.abs(model(x) - model(x[:, ::-1].copy())).max() > 1e-3

    @pytest.mark.parametrize("name", ["bilstm", "transformer", "tutorial_lstm"])
    def test_text_wants_one_axis(self, name):
        with pytest.raises(ValueError, match=r"`input_shape`.*number of tokens.*\(28, 28, 1\)"):
            models.build(name, MNIST, 10)


def test_loads_without_tfdp(tmp_path):
    path = tmp_path / "model.keras"
    models.build("mlp", (8, 8, 1), 10, "layer").save(path)
    program = (
        "import sys, keras; "
        f"keras.saving.load_model({str(path)!r}); "
        "assert not any(name.startswith('tfdp') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], timeout=120, check=True)


class TestNormalization:
    def trainable(self, model):
        return [layer for layer in model.layers if layer.trainable_weights]

    @NETWORKS
    @pytest.mark.parametrize(
        ("normalization", "normalize_output", "extra"),
        [("none", True, None), ("layer", True, 0), ("layer", False, 1), ("batch", True, 0)],
    )
    def test_stands_after_each_trainable_layer(self, name, normalization, normalize_output, extra):
        model = models.build(name, MNIST, 10, normalization, normalize_output=normalize_output)
        kinds = (keras.layers.LayerNormalization, keras.layers.BatchNormalization)
        norms = [layer for layer in model.layers if isinstance(layer, kinds)]
        weighted = [
            layer
            for layer in model.layers
            if isinstance(layer, keras.layers.Dense | keras.layers.Conv2D)
        ]
        assert len(norms) == (0 if extra is None else len(weighted) - extra)

    def test_of_images_is_over_the_whole_example(self):
        model = models.build("lenet5", MNIST, 10, "layer")
        norm = model.get_layer("conv_1_norm")
        normalized = norm(3 + 2 * images((28, 28, 6))).numpy()
        np.testing.assert_allclose(normalized.mean(axis=(1, 2, 3)), 0, atol=1e-5)
        np.testing.assert_allclose(normalized.std(axis=(1, 2, 3)), 1, atol=1e-3)

    @NETWORKS
    @pytest.mark.parametrize("scale", [0.2, 30.0])
    def test_makes_the_scale_of_a_kernel_irrelevant(self, name, scale):
        model = models.build(name, MNIST, 10, "layer")  # biases are zero at initialization
        before = model(images()).numpy()
        for layer in self.trainable(model):
            layer.kernel.assign(scale * layer.kernel)
            np.testing.assert_allclose(model(images()), before, atol=5e-3)

    @NETWORKS
    def test_without_it_the_scale_matters(self, name):
        model = models.build(name, MNIST, 10)
        before = model(images()).numpy()
        layer = self.trainable(model)[-1]
        layer.kernel.assign(30 * layer.kernel)
        assert np.abs(model(images()) - before).max() > 0.1

    @ALL
    @pytest.mark.parametrize(
        "normalization", ["none", "layer", "layer_affine", "group", "private_batch"]
    )
    def test_examples_do_not_mix(self, name, normalization):
        model = models.build(name, MNIST, 10, normalization)
        x = images()
        alone = np.concatenate([model(x[i : i + 1], training=True) for i in range(3)])
        np.testing.assert_allclose(model(x, training=True), alone, rtol=1e-4, atol=1e-5)

    def test_batch_normalization_does_mix(self):
        model = models.build("mlp", MNIST, 10, "batch")
        x = images()
        alone = np.concatenate([model(x[i : i + 1], training=True) for i in range(3)])
        assert np.abs(model(x, training=True) - alone).max() > 1e-2

    @pytest.mark.parametrize("name", ["lenet5", "tutorial_cnn", "lenet_300_100"])
    def test_vectorizes(self, name):
        model = models.build(name, MNIST, 10, "layer_affine")

        @tf.function
        def mapped(x):
            return tf.vectorized_map(
                lambda row: model(row[None], training=True)[0], x, fallback_to_while_loop=False
            )

        np.testing.assert_allclose(mapped(images()), model(images()), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["lenet5", "mlp"])
def test_activation(name):
    model = models.build(name, MNIST, 10, activation="tanh")
    names = {
        layer.activation.__name__
        for layer in model.layers
        if isinstance(layer, keras.layers.Activation)
    }
    assert names == {"tanh"}


class TestRefusals:
    def test_unknown_name(self):
        with pytest.raises(
            ValueError, match=r"Expected name .*'lenet5'.*'tutorial_cnn'.*'resnet9000'"
        ):
            models.build("resnet9000", MNIST, 10)

    def test_unknown_normalization(self):
        with pytest.raises(
            ValueError, match=r"Expected normalization .*'layer_affine'.*'instance'"
        ):
            models.build("lenet5", MNIST, 10, "instance")

    def test_private_statistics_without_use(self):
        with pytest.raises(ValueError, match=r"`private_statistics`.*'layer'"):
            models.build("mlp", MNIST, 10, "layer", private_statistics={"share": 0.1})

    def test_normalization_of_another_kind(self):
        with pytest.raises(ValueError, match=r"Expected 'none' or 'layer' .*'batch'"):
            models.build("bilstm_dl", (20,), 4, "batch")

    @pytest.mark.parametrize(
        ("name", "width", "words"),
        [("resnet18", 0.0, "Expected width"), ("lenet5", 0.5, "`width`.*Expected 1")],
    )
    def test_width(self, name, width, words):
        with pytest.raises(ValueError, match=words):
            models.build(name, (32, 32, 3), 10, width=width)

    @pytest.mark.parametrize(
        ("name", "input_shape"),
        [("lenet5", (8, 8, 1)), ("tutorial_cnn", (12, 28, 1)), ("lenet5", (784,))],
    )
    def test_input_shape(self, name, input_shape):
        with pytest.raises(ValueError, match=r"`input_shape`.*at least"):
            models.build(name, input_shape, 10)

    @pytest.mark.parametrize(
        ("name", "smallest"),
        [
            ("cifar_tutorial", 4),
            ("lenet5", 12),
            ("tutorial_cnn", 13),
            ("vgg16", 32),
            ("vgg_light", 8),
        ],
    )
    def test_smallest_image_is_the_smallest(self, name, smallest):
        models.build(name, (smallest, smallest, 3), 10)
        layers = models.MODELS[name].layers(10, "none", "relu", "none")
        with pytest.raises(ValueError):
            keras.Sequential([keras.Input((smallest - 1, smallest - 1, 3)), *layers])

    @pytest.mark.parametrize("num_classes", [1, 0, float("nan")])
    def test_num_classes(self, num_classes):
        with pytest.raises(ValueError, match="Expected num_classes"):
            models.build("mlp", (8, 8, 1), num_classes)


@pytest.mark.parametrize("name", ["lenet5", "mlp"])
def test_batch_normalization_by_public_examples(name):
    public = np.linspace(-1, 1, 4 * 784, dtype="float32").reshape(4, *MNIST)
    model = models.build(name, MNIST, 10, "batch", public_data=public, statistics="batch")
    examples = model.layers[-1]
    assert isinstance(examples, tfdp.layers.PublicExamples)
    assert (examples.count, examples.statistics) == (4, "batch")
    plain = models.build(name, MNIST, 10, "batch")
    norms = [la for la in plain.layers if isinstance(la, keras.layers.BatchNormalization)]
    ours = [la for la in examples.network.layers if "BatchNorm" in type(la).__name__]
    assert [la.name for la in ours] == [la.name for la in norms]
    assert all(isinstance(la, tfdp.layers.PublicBatchNormalization) for la in ours)
    assert {la.epsilon for la in ours} == {1e-5}
    assert model(images()).shape == (3, 10)


def test_public_data_without_use_is_refused():
    with pytest.raises(ValueError, match="`public_data`"):
        models.build("mlp", MNIST, 10, "layer", public_data=np.zeros((3, *MNIST)))
