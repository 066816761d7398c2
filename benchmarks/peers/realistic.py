"""Realistic models: from keras.applications, with custom layers, with LoRA."""

import keras
import protocol
from keras import layers, ops


def build(name, **options):
    """Builds a model of `BUILDERS` with the inputs of `protocol.SHAPES`, without batch statistics.

    Args:
        name: A name in `BUILDERS`.
        options: Arguments of the builder: `vocabulary`, the number of tokens, for "lstm".
    """
    return BUILDERS[name](protocol.SHAPES[name], **options)


def _application(make):
    def build(shape):
        import tfdp

        return tfdp.fix(
            make(
                input_shape=shape,
                weights=None,
                classes=protocol.CLASSES,
                classifier_activation=None,
            )
        )

    return build


def _u_net(shape):
    def block(x, width):
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.Activation("relu")(layers.GroupNormalization(8)(x))
        return x

    inputs = keras.Input(shape)
    skipped, x = [], inputs
    for width in (16, 32, 64):
        x = block(x, width)
        skipped.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, 96)
    for other in reversed(skipped):
        width = other.shape[-1]
        x = layers.Conv2DTranspose(width, 2, strides=2)(x)
        x = block(layers.Concatenate()([x, other]), width)
    return keras.Model(inputs, layers.Conv2D(protocol.CLASSES, 1)(x))


def _lstm(shape, vocabulary=20_000):
    tokens = keras.Input(shape, dtype="int32")
    x = layers.Embedding(vocabulary, 100)(tokens)
    return keras.Model(tokens, layers.Dense(protocol.CLASSES)(layers.LSTM(128)(x)))


@keras.saving.register_keras_serializable("benchmarks")
class Embeddings(layers.Layer):
    """Sums the embeddings of tokens and of their positions: [rows, tokens] to [.., width]."""

    def __init__(self, vocabulary, length, width, **kwargs):
        super().__init__(**kwargs)
        self.tokens = layers.Embedding(vocabulary, width)
        self.positions = layers.Embedding(length, width)
        self.norm = layers.LayerNormalization(epsilon=1e-12)

    def call(self, tokens):
        """Computes the embeddings of the tokens, int32."""
        places = ops.arange(tokens.shape[1])[None] * ops.ones_like(tokens)
        return self.norm(self.tokens(tokens) + self.positions(places))


@keras.saving.register_keras_serializable("benchmarks")
class Block(layers.Layer):
    """One layer of a BERT: attention and two dense layers, each added and normalized."""

    def __init__(self, width, heads, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(heads, width // heads)
        self.wide = layers.Dense(4 * width, activation="gelu")
        self.narrow = layers.Dense(width)
        self.norms = [layers.LayerNormalization(epsilon=1e-12) for _ in range(2)]

    def call(self, x):
        """Maps [rows, tokens, width] to the same shape."""
        x = self.norms[0](x + self.attention(x, x))
        return self.norms[1](x + self.narrow(self.wide(x)))


def _encoder(width, depth, heads, vocabulary=30_522):
    def build(shape):
        tokens = keras.Input(shape, dtype="int32")
        x = Embeddings(vocabulary, shape[0], width)(tokens)
        for _ in range(depth):
            x = Block(width, heads)(x)
        x = layers.GlobalAveragePooling1D()(x)
        return keras.Model(tokens, layers.Dense(protocol.CLASSES, name="head")(x))

    return build


def _lora(make):
    def build(shape):
        model = make(shape)
        for layer in model.layers[:-1]:
            inner = layer._flatten_layers(include_self=False)
            for part in inner:
                if isinstance(part, layers.Dense | layers.EinsumDense):
                    part.enable_lora(4)
            for variable in layer.trainable_variables:
                variable.trainable = "lora" in variable.name
        return model

    return build


def _head(make):
    def build(shape):
        model = make(shape)
        for layer in model.layers[:-1]:
            layer.trainable = False
        return model

    return build


_BERT_BASE = _encoder(768, 12, 12)


BUILDERS = {
    "mobilenet_v2": _application(keras.applications.MobileNetV2),
    "efficientnet_b0": _application(keras.applications.EfficientNetB0),
    "u_net": _u_net,
    "lstm": _lstm,
    "encoder": _encoder(256, 4, 4),
    "encoder_lora": _lora(_encoder(256, 4, 4)),
    "bert_base": _BERT_BASE,
    "bert_base_lora": _lora(_BERT_BASE),
    "bert_base_head": _head(_BERT_BASE),
}
