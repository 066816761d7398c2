"""Every network of the papers: its number of weights, and its gradients in the ghost engine.

The numbers of trainable weights are sums over layers, computed by hand: a 3x3 convolution from a to b
channels has 9ab weights, and b more with a bias; a normalization of b channels has 2b; a dense layer
from a to b units has (a + 1) b.

    resnet18     convolutions 3*64*9 + 4*64*64*9
                 + (64*128 + 3*128*128)*9 + 64*128 + (128*256 + 3*256*256)*9 + 128*256
                 + (256*512 + 3*512*512)*9 + 256*512 = 11,159,232, dense 5,130;
                 normalization of 4,800 channels 9,600; "_mod" 2*512 less
    vgg16        convolutions 14,714,688, dense 5,130; normalization of 4,224 channels 8,448
    vgg16_table  convolutions 20,024,384, dense 5,130; normalization of 5,504 channels 11,008
    vgg_light    convolutions 2,325,568, dense 131,584 + 5,130; normalization of 1,408 channels 2,816
    fast_cifar   convolutions 6,563,520, dense 5,120; normalization of 2,240 channels 4,480
    bilstm_dl    kernels 2*(100 + 32)*128 = 33,792, dense 260; biases 256; or three normalizations,
                 2*2*(128 + 128 + 32) = 1,152
"""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.gradients.reference import assert_equal_sums, loop_bounded_sum, run_engine
from tests.rounding import FUNCTION, assert_close, terms_of
from tests.seeds import seed_keras
from tfdp import models
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import ghost
from tfdp.gradients.forward import Forward

CIFAR = (32, 32, 3)
MNIST = (28, 28, 1)
CROPS = (24, 24, 3)
DIGITS = (8, 8, 1)
TEXT = (20,)

# name, input shape, and the trainable weights with normalization none, batch, and batch with
# normalized logits. The models of Tables 1 and 2 of SI-DPSGD are named behind them.
IMAGES = [
    ("lenet_300_100", MNIST, 266_610, 267_410, 267_430),  # LeNet-300-100, BN-LeNet-300-100
    ("lenet5", MNIST, 61_706, 62_158, 62_178),  # LeNet-5, BN-LeNet-5
    ("cifar_tutorial", CROPS, 1_144_138, 1_145_930, 1_145_950),  # TF-tutorial
    ("hidden_500", DIGITS, 37_510, 38_510, 38_530),  # DIGITS in differentially private dropout
    ("hidden_1000", MNIST, 795_010, 797_010, 797_030),  # MNIST in differentially private dropout
    ("resnet18", CIFAR, 11_164_362, 11_173_962, 11_173_982),  # -, ResNet-18, BN-ResNet-18
    ("resnet18_mod", CIFAR, 11_164_362, 11_172_938, 11_172_958),  # -, ResNet-18-mod, -
    ("vgg16", CIFAR, 14_719_818, 14_728_266, 14_728_286),  # -, VGG-16, BN-VGG-16
    ("vgg16_mod", CIFAR, 14_719_818, 14_727_242, 14_727_262),  # -, VGG-16-mod, -
    ("vgg16_table", CIFAR, 20_029_514, 20_040_522, 20_040_542),
    ("vgg16_table_mod", CIFAR, 20_029_514, 20_039_498, 20_039_518),
    ("vgg_light", CIFAR, 2_462_282, 2_465_098, 2_465_118),  # VGG of the batch normalization paper
    ("fast_cifar", CIFAR, 6_568_640, 6_573_120, 6_573_140),  # -, Fast-CIFAR-ResNet
]
SHAPES = {name: shape for name, shape, *_ in IMAGES}
SCALED = [name for name in SHAPES if models.MODELS[name].scales]


def number_of_weights(layers):
    return sum(math.prod(v.shape) for layer in layers for v in layer.trainable_variables)


def images(shape, count=3, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (count, *shape)).astype(np.float32)


def tokens(count=3):
    return np.random.default_rng(0).integers(0, 9, (count, *TEXT)).astype(np.int32)


# -- structure -----------------------------------------------------------------------------------


def norms(model):
    return [la for la in model.layers if isinstance(la, keras.layers.BatchNormalization)]


# Variants of a model in this list differ from it in single layers, which tests below name.
VARIANTS = ("resnet18_mod", "vgg16_mod", "vgg16_table", "vgg16_table_mod")
COUNTED = [
    pytest.param(*row, marks=pytest.mark.slow if row[0] in VARIANTS else []) for row in IMAGES
]


@pytest.mark.parametrize(("name", "shape", "plain", "batch", "output"), COUNTED, ids=SHAPES)
def test_number_of_weights(name, shape, plain, batch, output):
    model = models.build(name, shape, 10, "batch")
    *inner, last = norms(model)
    assert number_of_weights(model.layers) == output
    assert (last.name, output - number_of_weights([last])) == ("logits_norm", batch)
    assert batch - number_of_weights(inner) == plain


@pytest.mark.parametrize("name", ["lenet5", "fast_cifar", "vgg_light"])
def test_normalizations_add_what_they_should(name):
    shape, options = SHAPES[name], {"width": 0.0625} if name in SCALED else {}

    def built(*arguments, **more):
        model = models.build(name, shape, 10, *arguments, **options, **more)
        return number_of_weights(model.layers)

    batch = built("batch", normalize_output=False)
    assert built() == built("layer") < batch  # over all features of an example, without weights
    assert built("batch") == batch + 20
    assert built("group", normalize_output=False) == batch


@pytest.mark.parametrize(
    ("normalization", "weights"), [("none", 34_308), ("layer", 34_052), ("layer_affine", 35_204)]
)
def test_number_of_weights_of_bilstm_dl(normalization, weights):
    model = models.build("bilstm_dl", TEXT, 4, normalization)
    assert number_of_weights(model.layers) == weights
    assert model.count_params() - weights == models.NUM_TOKENS * 100  # frozen embeddings


def test_vgg_in_print_and_in_the_authors_code():
    code = [64, 64, 128, 128, *[256] * 3, *[512] * 6]
    printed = [64, 64, 128, 128, *[256] * 4, *[512] * 8]
    for name, widths in {"vgg16": code, "vgg16_table": printed, "vgg_light": printed[:8]}.items():
        eighth = models.build(name, CIFAR, 10, width=0.125)
        convolutions = [la for la in eighth.layers if isinstance(la, keras.layers.Conv2D)]
        assert [8 * la.filters for la in convolutions] == widths


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("resnet18", "stage_4_block_2_2_norm"),
        ("vgg16", "group_5_conv_3_norm"),
        ("vgg16_table", "group_5_conv_4_norm"),
    ],
)
def test_mod_leaves_out_the_last_normalization_before_the_logits(name, last):
    whole, mod = (
        [la.name for la in norms(models.build(each, CIFAR, 10, "batch", width=0.1))]
        for each in (name, f"{name}_mod")
    )
    whole.remove(last)
    assert mod == whole


def test_fast_cifar_is_the_network_of_page():
    model = models.build("fast_cifar", CIFAR, 10, "batch", normalize_output=False, width=0.125)
    maps = [la.output.shape[1:3] for la in model.layers if "pool_" in la.name]
    assert maps == [(16, 16), (8, 8), (4, 4)]
    assert not any(la.use_bias for la in model.layers if hasattr(la, "use_bias"))
    logits = keras.Model(model.input, model.get_layer("logits").output)
    assert_close(model(images(CIFAR)), 0.125 * logits(images(CIFAR)), 2)


def test_bilstm_dl_does_not_train_its_embeddings_and_masks_padding():
    model = models.build("bilstm_dl", TEXT, 4, "layer_affine")
    assert model.get_layer("embedding").trainable_variables == []
    x = tokens()
    x[:, 12:] = 0
    short = models.build("bilstm_dl", (12,), 4, "layer_affine")
    short.set_weights(model.get_weights())
    assert_close(model(x), short(x[:, :12]), terms_of(model))
    assert_close(np.mean(model(x), axis=1), 0, 4 * 2 + FUNCTION, 1.0)  # normalized logits


# -- gradients -----------------------------------------------------------------------------------

# A cell: a network and what the papers, or their successors, normalize it with. ResNets have at least
# 16 channels: TensorFlow 2.21 with oneDNN corrupts memory in the gradient of a 1x1 convolution with
# stride 2 of fewer channels, without tfdp, too (docs/decisions/keras_and_tensorflow.md).
SIZES = {name: 32 if name.startswith("vgg16") else 16 for name in SCALED}
WIDTHS = {name: 0.25 if name.startswith("resnet") else 0.0625 for name in SCALED}
CELLS = [(name, kind) for name in SHAPES for kind in ("layer_affine", "public")]
CELLS += [(name, kind) for name in SHAPES if name not in VARIANTS for kind in ("none", "layer")]
CELLS += [("resnet18", "group"), ("fast_cifar", "group"), ("lenet5", "group")]
QUICK = [("lenet5", "group")]
# Moments of public examples are differentiated with one layer directly before a normalization, so
# logits are not normalized behind a layer that is not. Nor are they in the papers.
PLAIN_LOGITS = ("resnet18_mod", "vgg16_mod", "vgg16_table_mod", "vgg_light")


def check_against_a_loop(model, x, classes, magnitude=1.0):
    """Compares clipped sums with those of a loop over batches of one, at the weights as they are."""
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    forward = Forward(model)
    x, y = tf.constant(x), tf.constant(np.arange(len(x)) % classes)
    present = tf.constant([1.0] * (len(x) - 1) + [0.0])  # the last row pads the lot
    arguments = forward, GlobalL2Clip(1e-2), x, y, present
    ours = run_engine(ghost.bounded_sum, *arguments)
    assert int(tf.reduce_sum(ours.clipped)) > 0
    expected = loop_bounded_sum(*arguments, tf.constant(0))
    assert_equal_sums(ours, expected, int(magnitude * terms_of(model, len(x))))


@pytest.mark.parametrize(
    ("name", "normalization"),
    [cell if cell in QUICK else pytest.param(*cell, marks=pytest.mark.slow) for cell in CELLS],
)
def test_gradients(name, normalization):
    shape, options = SHAPES[name], {}
    if name in SCALED:
        shape, options = (SIZES[name], SIZES[name], 3), {"width": WIDTHS[name]}
    magnitude = 1.0
    if normalization == "public":
        normalization, options["public_data"] = "batch", images(shape, 4, seed=1)
        # The gradient of a bias before this normalization is zero, so that both have rounding only.
        magnitude = 10.0
        options["normalize_output"] = name not in PLAIN_LOGITS
    seed_keras(1)
    model = models.build(name, shape, 10, normalization, **options)
    check_against_a_loop(model, images(shape), 10, magnitude)


@pytest.mark.slow
@pytest.mark.parametrize("normalization", ["none", "layer_affine"])
def test_gradients_of_text(normalization):
    seed_keras(1)
    model = models.build("bilstm_dl", (3,), 4, normalization)
    check_against_a_loop(model, tokens()[:, :3], 4)
