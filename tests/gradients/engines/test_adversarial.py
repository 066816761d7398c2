"""Whatever one example is, it moves the bounded sum by at most the clip norm.

In the models, the outputs of a layer at all positions are multiplied by numbers of the example and
added. So an example can make the layer's gradients at single positions as large as it likes, and let
them cancel.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum, choose_engine
from tfdp.gradients.rules import per_example_gradient

ROWS, POSITIONS, WIDTH, WORDS = 64, 4, 6, 12
LAST = ROWS - 1  # the sums of all rows before have been rounded when this one is added


def _of_images(layer):
    def apply(x):
        image = layers.Reshape((2, 2, WIDTH))(x)
        return layers.Reshape((POSITIONS, WIDTH))(layer(image))

    return apply


KINDS = {
    "dense": lambda: layers.Dense(WIDTH),
    "dense_from_gram": lambda: layers.Dense(WIDTH),
    "einsum": lambda: layers.EinsumDense("abc,cd->abd", (None, WIDTH), bias_axes="d"),
    "einsum_stack": lambda: layers.EinsumDense("abc,bcd->abd", (POSITIONS, WIDTH)),
    "conv": lambda: layers.Conv1D(WIDTH, 2, padding="same"),
    "conv_in_groups": lambda: layers.Conv1D(WIDTH, 2, padding="same", groups=2),
    "depthwise": lambda: _of_images(layers.DepthwiseConv2D(2, padding="same")),
    "transposed": lambda: _of_images(layers.Conv2DTranspose(WIDTH, 2, padding="same")),
    "normalization": lambda: layers.LayerNormalization(),
    "recurrent": lambda: layers.GRU(WIDTH, return_sequences=True),
    "embedding": lambda: layers.Embedding(WORDS, WIDTH),
    "frozen_embedding": lambda: layers.Embedding(WORDS, WIDTH, trainable=False),
}


def _model(name):
    keras.utils.set_random_seed(0)
    words = "embedding" in name
    x = keras.Input((POSITIONS,), dtype="int32") if words else keras.Input((POSITIONS, WIDTH))
    factors = keras.Input((POSITIONS, 1))
    summed = layers.GlobalAveragePooling1D()(layers.Multiply()([KINDS[name]()(x), factors]))
    model = keras.Model([x, factors], layers.Dense(3)(summed))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    shape = (ROWS, POSITIONS) if words else (ROWS, POSITIONS, WIDTH)
    values = np.full(shape, 7) if words else np.random.default_rng(0).normal(size=shape)
    x = values.astype("int32" if words else "float32")
    return model, x, np.full((ROWS, POSITIONS, 1), 20.0, "float32")


# What one example holds: its numbers at each position, and the factors.
ATTACKS = {
    "cancelling": (1.0, [1e12, -1e12, 1e12, -1e12]),
    "nearly_cancelling": (1.0, [1e12, -1e12, 1e12, -1.0001e12]),
    "huge": (1.0, [1e12, 1e12, 1e12, 1e12]),
    "beyond_float32": (1.0, [3e38, 3e38, 3e38, 3e38]),
    "not_a_number": (1.0, [np.nan, 0.0, 0.0, 0.0]),
    "infinite": (1.0, [np.inf, -np.inf, 0.0, 0.0]),
    "tiny": (1e-30, [1e-30, 1e-30, 0.0, 1e30]),
}
TOKENS = {
    "beyond_the_words": WORDS,
    "far_beyond": 2**31 - 1,
    "before_the_words": -WORDS - 1,
    "least_number": -(2**31),
}


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("engine", ["ghost", "vectorized"])
@pytest.mark.parametrize("name", KINDS)
def test_no_example_moves_the_sum_by_more_than_the_clip_norm(
    name, engine, jit_compile, monkeypatch
):
    if name == "dense_from_gram":
        monkeypatch.setattr(per_example_gradient, "_MOST_INSTANTIATED", 0)
    model, x, factors = _model(name)
    forward, run = Forward(model), choose_engine(engine, model)

    @tf.function(jit_compile=jit_compile)
    def lot(x, factors, y, weights):
        found = bounded_sum(run, forward, GlobalL2Clip(1.0), (x, factors), y, weights)
        flat = tf.concat([tf.reshape(part, [-1]) for part in found.sums], 0)
        return flat, found.non_finite, found.norms

    def sums(of_row, of_factors, label=1, weight=1.0):
        changed, with_factors = x.copy(), factors.copy()
        changed[LAST], with_factors[LAST, :, 0] = of_row, of_factors
        y, weights = np.ones(ROWS, "int32"), np.ones(ROWS, "float32")
        y[LAST], weights[LAST] = label, weight
        found = lot(*map(tf.constant, (changed, with_factors, y, weights)))
        return [part.numpy() for part in found]

    without, _, norms = sums(1.0, [1.0] * 4, weight=0.0)
    others = np.arange(ROWS) != LAST
    usual = [20.0] * 4
    # The same token as in the other rows, so that they share a row of the table.
    attacks = {
        key: (7 if "embedding" in name else number, rest, 1)
        for key, (number, rest) in ATTACKS.items()
    }
    attacks |= {f"label_{label}": (1.0, usual, label) for label in (3, -1, 2**31 - 1)}
    if "embedding" in name:
        attacks |= {key: (token, usual, 1) for key, token in TOKENS.items()}
    for key, attack in attacks.items():
        with_row, non_finite, norms_with = sums(*attack)
        moved = np.linalg.norm(with_row.astype("float64") - without)
        assert moved <= 1.0, (key, moved)
        np.testing.assert_array_equal(norms_with[others], norms[others], key)
        if key.startswith("label") or key in ("not_a_number", "infinite", *TOKENS):
            # XLA rounds the sum of the other rows otherwise where it leaves out a row.
            assert non_finite == 1 and moved < (1e-4 if jit_compile else 1e-30), (key, moved)
