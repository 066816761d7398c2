"""The models of `tfdp.models` for Keras 2, and for Keras 3 on other backends."""

import protocol


def build(keras, name, model_class, positions):
    """Builds a functional model.

    Args:
        keras: `tf.keras` (Keras 2) or `keras`.
        name: The name of a model in `protocol.SHAPES`.
        model_class: A class or function that makes a model of `inputs` and `outputs`.
        positions: A function of token ids [rows, tokens], which returns the positions 0, 1, ... of
            the tokens in the same shape.
    """
    shape = protocol.SHAPES[name]
    inputs = keras.Input(shape, dtype="int32" if len(shape) == 1 else "float32")
    layers = keras.layers
    return model_class(inputs=inputs, outputs=_MODELS[name](layers, inputs, positions))


def _mlp(layers, x, _):
    x = layers.Flatten()(x)
    x = layers.Dense(64, activation="relu")(x)
    return layers.Dense(protocol.CLASSES)(x)


def _tutorial_cnn(layers, x, _):
    x = layers.Conv2D(16, 8, strides=2, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(2, strides=1)(x)
    x = layers.Conv2D(32, 4, strides=2, activation="relu")(x)
    x = layers.MaxPooling2D(2, strides=1)(x)
    x = layers.Dense(32, activation="relu")(layers.Flatten()(x))
    return layers.Dense(protocol.CLASSES)(x)


def _lenet5(layers, x, _):
    x = layers.Conv2D(6, 5, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(2)(x)
    x = layers.Conv2D(16, 5, activation="relu")(x)
    x = layers.Flatten()(layers.MaxPooling2D(2)(x))
    x = layers.Dense(120, activation="relu")(x)
    x = layers.Dense(84, activation="relu")(x)
    return layers.Dense(protocol.CLASSES)(x)


def _cifar_tutorial(layers, x, _):
    for _ in range(2):
        x = layers.Conv2D(64, 5, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D(2)(x)
    x = layers.Flatten()(x)
    for _ in range(2):
        x = layers.Dense(384, activation="relu")(x)
    return layers.Dense(protocol.CLASSES)(x)


def _resnet18(layers, x, _):
    def conv(x, width, size, stride):
        x = layers.Conv2D(width, size, stride, padding="same", use_bias=False)(x)
        return layers.GroupNormalization(32, epsilon=1e-5)(x)

    x = layers.Activation("relu")(conv(x, 64, 3, 1))
    for width in (64, 128, 256, 512):
        for number in range(2):
            stride = 2 if width > 64 and number == 0 else 1
            shortcut = x if stride == 1 else conv(x, width, 1, stride)
            x = layers.Activation("relu")(conv(x, width, 3, stride))
            x = layers.Add()([conv(x, width, 3, 1), shortcut])
            x = layers.Activation("relu")(x)
    return layers.Dense(protocol.CLASSES)(layers.GlobalAveragePooling2D()(x))


def _bilstm(layers, x, _):
    x = layers.Embedding(protocol.TOKENS, 64, mask_zero=True)(x)
    x = layers.Bidirectional(layers.LSTM(64))(x)
    x = layers.Dense(64, activation="relu")(x)
    return layers.Dense(protocol.CLASSES)(x)


def _transformer(layers, tokens, positions):
    position = layers.Embedding(tokens.shape[1], 64)(positions(tokens))
    x = layers.Add()([layers.Embedding(protocol.TOKENS, 64)(tokens), position])
    for _ in range(2):
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, 16)(y, y)])
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        y = layers.Dense(64)(layers.Dense(128, activation="relu")(y))
        x = layers.Add()([x, y])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(epsilon=1e-5)(x))
    return layers.Dense(protocol.CLASSES)(x)


_MODELS = {
    "mlp": _mlp,
    "tutorial_cnn": _tutorial_cnn,
    "lenet5": _lenet5,
    "cifar_tutorial": _cifar_tutorial,
    "resnet18": _resnet18,
    "bilstm": _bilstm,
    "transformer": _transformer,
}
