"""Stock layers that are trusted to keep the rows of a batch apart do, to the last bit."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfdp.gradients.rules.recording import owners
from tfdp.gradients.rules.separate_rows import rows_are_separate

ROWS = 4


def on(shape, *more, dtype="float32"):
    return [keras.Input(s, dtype=dtype) for s in (shape, *more)]


def attention(cls, **options):
    return lambda: (cls(**options), on((5, 3), (6, 3)))


SEPARATE = {
    "attention": attention(layers.Attention),
    "attention with scores of concatenations": attention(layers.Attention, score_mode="dot"),
    "additive attention": attention(layers.AdditiveAttention, use_scale=False),
    "grouped queries": attention(
        layers.GroupQueryAttention, head_dim=2, num_query_heads=4, num_key_value_heads=2
    ),
    "categories": lambda: (layers.CategoryEncoding(9, "multi_hot"), on((5,), dtype="int32")),
    "crop": lambda: (layers.CenterCrop(4, 3), on((7, 6, 2))),
    "bins": lambda: (layers.Discretization(bin_boundaries=[-0.5, 0.0, 0.7]), on((5,))),
    "dot": lambda: (layers.Dot(axes=-1), on((5, 3), (6, 3))),
    "normalized dot": lambda: (layers.Dot(axes=(1, 1), normalize=True), on((5,), (5,))),
    "hashes": lambda: (layers.Hashing(3), on((5,), dtype="int32")),
    "resize": lambda: (layers.Resizing(5, 3), on((7, 6, 2))),
    "resize in proportion": lambda: (
        layers.Resizing(5, 3, crop_to_aspect_ratio=True, interpolation="nearest"),
        on((7, 6, 2)),
    ),
    "unit norms": lambda: (layers.UnitNormalization(axis=(1, -1)), on((5, 3))),
}
# The same layers where the first axis is, or may be, one that they work along.
MIXING = {
    "an image for a batch": lambda: (layers.Resizing(5, 3), on((6, 2))),
    "an image for a batch that is cropped": lambda: (layers.CenterCrop(2, 2), on((6, 2))),
    "attention over rows": lambda: (layers.Attention(), on((3,), (3,))),
    "unit norms over rows": lambda: (layers.UnitNormalization(axis=-2), on((5,))),
    "unit norms over the first axis": lambda: (layers.UnitNormalization(axis=0), on((5,))),
    "counts of tokens": lambda: (layers.CategoryEncoding(9, "count"), on((5,), dtype="int32")),
}


def model_of(make):
    layer, inputs = make()
    apart = len(inputs) == 1 or isinstance(layer, layers.GroupQueryAttention)
    outputs = layer(*inputs) if apart else layer(inputs)
    outputs = keras.ops.cast(outputs, "float32")
    return keras.Model(inputs, outputs), layer


@pytest.mark.parametrize("name", SEPARATE)
def test_one_row_moves_no_bit_of_the_others(name):
    model, layer = model_of(SEPARATE[name])
    assert rows_are_separate(layer, owners(model))
    rng = np.random.default_rng(0)

    def drawn(tensor):
        shape = (ROWS, *tensor.shape[1:])
        whole = "int" in tensor.dtype
        return rng.integers(0, 9, shape) if whole else rng.normal(size=shape).astype("float32")

    before = [drawn(tensor) for tensor in model.inputs]
    after = [values.copy() for values in before]
    for values in after:
        values[1] = 8 - values[1] if values.dtype == int else 1e6 * values[1]
    run = tf.function(lambda *values: model(list(values), training=True), autograph=False)
    others = np.arange(ROWS) != 1
    outputs, moved = (np.asarray(run(*map(tf.constant, values))) for values in (before, after))
    np.testing.assert_array_equal(outputs[others], moved[others])
    assert np.any(outputs[1] != moved[1]) or name in ("unit norms", "normalized dot")


@pytest.mark.parametrize("name", MIXING)
def test_what_may_mix_rows_is_not_trusted(name):
    layer, inputs = MIXING[name]()
    try:
        layer(inputs if len(inputs) > 1 else inputs[0])
    except Exception:
        assert not rows_are_separate(layer, {})  # Keras refuses it as well
    else:
        assert not rows_are_separate(layer, {})


def test_a_layer_that_was_not_used_in_a_functional_model_is_not_trusted():
    for layer in (layers.Resizing(5, 3), layers.Dot(axes=1), layers.UnitNormalization()):
        assert not rows_are_separate(layer, {})
