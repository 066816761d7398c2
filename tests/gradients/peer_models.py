"""Small models with weights and data, the same numbers for every framework.

`make_peer_fixtures.py` uses this module in the environments of the peers, and `test_peer_sums.py` uses
it here. The module imports only NumPy; callers pass Keras 2 or 3.
"""

import numpy as np

CLASSES = 4
# Each clip norm lies between the norms of the examples (or groups): some are clipped, some not.
L2_NORM_CLIP = {"dense": 1.5, "dense_microbatches": 0.9, "conv": 14.5, "text": 1.5}
ROWS = {"dense": 8, "dense_microbatches": 12, "conv": 6, "text": 8}
MICROBATCH_SIZE = {"dense_microbatches": 3}
SHAPES = {"dense": (12,), "dense_microbatches": (12,), "conv": (9, 9, 2), "text": (7,)}
TOKENS = 20
_WEIGHTS = {
    "dense": [(12, 8), (8,), (8, CLASSES), (CLASSES,)],
    "conv": [
        *[(3, 3, 2, 4), (4,), (4,), (4,)],
        *[(3, 3, 4, 5), (5,), (16 * 5, CLASSES), (CLASSES,)],
    ],
    "text": [(TOKENS, 6), (6,), (6,), (6, CLASSES), (CLASSES,)],
}
_WEIGHTS["dense_microbatches"] = _WEIGHTS["dense"]


def weights(case):
    """Returns weights in Keras' layout and order, all random, including biases and scales."""
    generator = np.random.default_rng(sum(map(ord, case)))
    return [generator.normal(0.0, 0.5, shape).astype("float32") for shape in _WEIGHTS[case]]


def data(case):
    """Returns inputs (channels last) and labels; row sizes differ, so that only some are clipped."""
    generator = np.random.default_rng(1 + sum(map(ord, case)))
    shape = (ROWS[case], *SHAPES[case])
    if case == "text":
        x = generator.integers(0, TOKENS, shape).astype("int32")
    else:
        size = np.geomspace(0.05, 2.0, ROWS[case]).reshape(-1, *[1] * len(SHAPES[case]))
        x = (size * generator.normal(size=shape)).astype("float32")
    return x, generator.integers(0, CLASSES, ROWS[case]).astype("int32")


def layers(keras, case):
    """Returns the layers of the model, for `tf.keras` or Keras 3."""
    made = keras.layers
    if case == "conv":
        return [
            made.Conv2D(4, 3, strides=2),
            made.GroupNormalization(2, epsilon=1e-5),
            made.Activation("relu"),
            made.Conv2D(5, 3, padding="same", activation="tanh"),
            made.Flatten(),
            made.Dense(CLASSES),
        ]
    if case == "text":
        return [
            made.Embedding(TOKENS, 6),
            made.LayerNormalization(epsilon=1e-5),
            made.GlobalAveragePooling1D(),
            made.Dense(CLASSES),
        ]
    return [made.Dense(8, activation="relu"), made.Dense(CLASSES)]


def model(keras, case, make=None):
    """Returns a model with the weights of the case; `make` makes it of inputs and outputs."""
    inputs = x = keras.Input(SHAPES[case], dtype="int32" if case == "text" else "float32")
    for layer in layers(keras, case):
        x = layer(x)
    built = (make or keras.Model)(inputs=inputs, outputs=x)
    built.set_weights(weights(case))
    return built
