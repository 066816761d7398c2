"""The models of the papers and tutorials by name, built from stock Keras layers.

A released file loads in plain Keras, except with normalizations of tfdp. Private training needs none of
these models: `make_private` takes any Keras model.

Example:
    >>> import tfdp
    >>> model = tfdp.models.build("lenet5", input_shape=(28, 28, 1), num_classes=10)
    >>> model.output_shape
    (None, 10)
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tfdp._validate import one_of, positive, whole

if TYPE_CHECKING:
    import keras

__all__ = ["MODELS", "NORMALIZATIONS", "NUM_TOKENS", "Architecture", "build"]

# Keras and the modules of this room are imported when a model is built, so that settings and their help
# know the models without TensorFlow.

# Normalization with running statistics that are learned privately.
PRIVATE_BATCH = "private_batch"
NORMALIZATIONS = ("none", "layer", "layer_affine", "group", "batch", PRIVATE_BATCH)
# Number of token ids.
NUM_TOKENS = 10_000
_LAYER = ("none", "layer", "layer_affine")


class Architecture(NamedTuple):
    """A model in `MODELS`: the function that makes its layers, and the inputs that it accepts.

    Call `build` with the model's name instead of `make`.

    Attributes:
        make: A function that returns the layers of a Sequential model. Its arguments are (classes,
            normalization, activation, output normalization). For a functional model it returns
            logits, and its arguments are (inputs, *these); or (inputs, classes, activation), if
            `normalizations` is ("none",).
        smallest_image: Smallest height and width of an image. None accepts inputs of any shape.
        functional: Whether the model is functional rather than Sequential.
        takes_tokens: Whether the inputs are rows of token ids (below `NUM_TOKENS` for a classifier).
        normalizations: The accepted values of `normalization`. ("none",) for a model with a fixed
            architecture.
        scales: Whether `make` has an argument `width`, a factor on the number of channels.

    Example:
        >>> import tfdp
        >>> tfdp.models.MODELS["lenet5"].smallest_image
        12
        >>> tfdp.models.MODELS["transformer"].takes_tokens, tfdp.models.MODELS["mlp"].takes_tokens
        (True, False)
    """

    make: Callable
    smallest_image: int | None = None
    functional: bool = False
    takes_tokens: bool = False
    normalizations: tuple[str, ...] = NORMALIZATIONS
    scales: bool = False


def _from(module: str, name: str) -> Callable:
    """Returns a function of a module, which is imported when the function is called."""

    def function(*arguments, **options):
        return getattr(importlib.import_module(f"tfdp.models.{module}"), name)(
            *arguments, **options
        )

    return function


_OWN = ("none",)
MODELS: dict[str, Architecture] = {
    "linear": Architecture(_from("mlp", "linear")),
    "mlp": Architecture(_from("mlp", "mlp"), scales=True),
    "hidden_500": Architecture(_from("mlp", "hidden_500"), scales=True),
    "hidden_1000": Architecture(_from("mlp", "hidden_1000"), scales=True),
    "lenet_300_100": Architecture(_from("lenet", "lenet_300_100")),
    "lenet5": Architecture(_from("lenet", "lenet5"), 12),
    "tutorial_cnn": Architecture(_from("tutorial", "tutorial_cnn"), 13),
    "tutorial_logistic": Architecture(
        _from("tutorial", "tutorial_logistic"), functional=True, normalizations=_OWN
    ),
    "cifar_tutorial": Architecture(_from("cifar", "cifar_tutorial"), 4, scales=True),
    "resnet18": Architecture(_from("resnet", "resnet18"), 1, functional=True, scales=True),
    "resnet18_mod": Architecture(_from("resnet", "resnet18_mod"), 1, functional=True, scales=True),
    "fast_cifar": Architecture(_from("resnet", "fast_cifar"), 8, functional=True, scales=True),
    "vgg_light": Architecture(_from("vgg", "vgg_light"), 8, scales=True),
    "vgg16": Architecture(_from("vgg", "vgg16"), 32, scales=True),
    "vgg16_mod": Architecture(_from("vgg", "vgg16_mod"), 32, scales=True),
    "vgg16_table": Architecture(_from("vgg", "vgg16_table"), 32, scales=True),
    "vgg16_table_mod": Architecture(_from("vgg", "vgg16_table_mod"), 32, scales=True),
    "tutorial_lstm": Architecture(
        _from("tutorial", "tutorial_lstm"), functional=True, takes_tokens=True, normalizations=_OWN
    ),
    "bilstm": Architecture(
        _from("text", "bilstm"), functional=True, takes_tokens=True, normalizations=_OWN
    ),
    "bilstm_dl": Architecture(
        _from("text", "bilstm_dl"), functional=True, takes_tokens=True, normalizations=_LAYER
    ),
    "transformer": Architecture(
        _from("text", "transformer"), functional=True, takes_tokens=True, normalizations=_OWN
    ),
}


def build(
    name: str,
    input_shape: Sequence[int],
    num_classes: int,
    normalization: str = "none",
    *,
    activation: str = "relu",
    normalize_output: bool = True,
    public_data=None,
    statistics: str = "example",
    private_statistics: Mapping | None = None,
    width: float = 1.0,
) -> "keras.Model":
    """Builds a model of the papers or tutorials by its name, with fresh weights.

    The output is logits (no softmax). The model is not private: pass it to `make_private`.

    The papers name a network by its normalization, which is a separate argument here. LN-LeNet-5 is
    "lenet5" with normalization "layer", and ResNet-18 is "resnet18" with "batch" (or "group"). If the
    papers put "BN-" before the name of a network that is normalized already, as in BN-ResNet-18, the
    logits are normalized, too (`normalize_output`). The suffix "_mod" belongs to the name: such a
    network lacks the normalization of the last convolution, as ResNet-18-mod does.

    Args:
        name: A key of `MODELS`.
        input_shape: Shape of one example: (height, width, channels) for convolutional models,
            (number of tokens,) for models of text.
        num_classes: Number of logits, at least 2.
        normalization: How activations are normalized. "none" by default. "layer" normalizes over all
            features of an example, without weights, as in the experiments of SI-DPSGD.
            "layer_affine" adds a learned scale and offset. "group" normalizes over groups of
            channels of an example, with a learned scale and offset, as in most private ResNets.
            "private_batch" normalizes by running statistics that are learned privately
            (`tfdp.layers.PrivateBatchNormalization`). "batch" is `PublicBatchNormalization` with
            `public_data`. Without, it is `keras.layers.BatchNormalization`, which mixes examples
            and is only for comparison without privacy. `MODELS[name].normalizations` has the values
            that a model accepts.
        activation: "relu", "tanh" (its bounded outputs often help private training) or the name of
            any other Keras activation.
        normalize_output: Whether the logits are normalized, too. True by default, because SI-DPSGD,
            section 3, normalizes "after each trainable layer", and the models of its Table 2 that
            lack only the last normalization lose accuracy under noise. The price: n logits of mean
            0 and variance 1 are at most sqrt(n - 1), so softmax never comes near certainty (for n =
            10 the cross-entropy stays above 0.27).
        public_data: Public examples for "batch", an array (M, *input_shape); see `PublicExamples`.
        statistics: With `public_data`, "example" to take the statistics over each example and the
            public examples, or "batch" to take them over the whole lot and the public examples.
        private_statistics: The arguments of `PrivateBatchNormalization` by name, for
            "private_batch" only.
        width: A factor above 0 on the number of channels or units in hidden layers, for ResNet,
            VGG, "fast_cifar", "cifar_tutorial" and networks of one hidden layer only. 1, the
            default, is the papers' network.

    Returns:
        A built `keras.Sequential`, or a functional `keras.Model`.

    Raises:
        ValueError: If the name or the normalization is unknown, or the model does not accept the
            input shape or another argument.

    Example:
        >>> import tfdp
        >>> model = tfdp.models.build("mlp", (8, 8, 1), 10, normalization="layer", activation="tanh")
        >>> model.name, model.output_shape
        ('mlp', (None, 10))
        >>> tfdp.models.build("tutorial_cnn", (8, 8, 1), 10)
        Traceback (most recent call last):
        ...
        ValueError: ... with at least 13x13 pixels for the model 'tutorial_cnn'. Received: (8, 8, 1)
    """
    import keras

    from tfdp.layers import PublicExamples
    from tfdp.models.blocks import PUBLIC_BATCH, private_batch

    one_of("name", name, sorted(MODELS))
    if public_data is not None and normalization != "batch":
        raise ValueError(
            f"public_data can only be used with normalization 'batch'. Received: {normalization!r}"
        )
    if private_statistics is not None and normalization != PRIVATE_BATCH:
        raise ValueError(
            f"private_statistics can only be used with normalization {PRIVATE_BATCH!r}. Received: "
            f"{normalization!r}"
        )
    one_of("normalization", normalization, NORMALIZATIONS)
    num_classes = whole("num_classes", num_classes, 2)
    architecture = MODELS[name]
    smallest = architecture.smallest_image
    if smallest is not None and not (len(input_shape) == 3 and min(input_shape[:2]) >= smallest):
        raise ValueError(
            "Invalid value received for argument `input_shape`. Expected (height, width, channels) "
            f"with at least {smallest}x{smallest} pixels for the model {name!r}. "
            f"Received: {tuple(input_shape)}"
        )
    if architecture.takes_tokens and len(input_shape) != 1:
        raise ValueError(
            "Invalid value received for argument `input_shape`. Expected (number of tokens,) for "
            f"the model {name!r}. Received: {tuple(input_shape)}"
        )
    if normalization not in architecture.normalizations:
        own = (
            "; the model has a fixed architecture" if len(architecture.normalizations) == 1 else ""
        )
        raise ValueError(
            "Invalid value received for argument `normalization`. Expected "
            f"{' or '.join(map(repr, architecture.normalizations))} for the model {name!r}{own}. "
            f"Received: {normalization!r}"
        )
    width = positive("width", width)
    if not (architecture.scales or width == 1.0):
        raise ValueError(
            "Invalid value received for argument `width`. Expected 1 for the model "
            f"{name!r}, whose widths are fixed. Received: {width!r}"
        )
    normalize: str | Callable = normalization if public_data is None else PUBLIC_BATCH
    if private_statistics is not None:
        normalize = private_batch(**private_statistics)
    inputs = keras.Input(tuple(input_shape), dtype="int32" if architecture.takes_tokens else None)
    if architecture.normalizations == _OWN:
        return keras.Model(inputs, architecture.make(inputs, num_classes, activation), name=name)
    chosen = (num_classes, normalize, activation, normalize if normalize_output else "none")
    scale = {"width": width} if architecture.scales else {}
    inner_name = name if public_data is None else f"{name}_network"
    if architecture.functional:
        logits = architecture.make(inputs, *chosen, **scale)
        network = keras.Model(inputs, logits, name=inner_name)
    else:
        layers = architecture.make(*chosen, **scale)
        network = keras.Sequential([inputs, *layers], name=inner_name)
    if public_data is None:
        return network
    examples = PublicExamples(network, public_data, statistics, name="public_examples")
    return keras.Sequential([keras.Input(tuple(input_shape)), examples], name=name)
