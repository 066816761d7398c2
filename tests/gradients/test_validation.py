"""Layers that mix examples are refused by name, wherever they hide, with the remedy."""

import keras
import pytest
from keras import layers

from tfdp.gradients.validation import refuse_mixing_layers


class Wraps(layers.Layer):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        return self.inner(x)


class MyNorm(layers.BatchNormalization):
    pass


BAD = {
    "tfdp.fix": lambda: layers.BatchNormalization(),
    "GroupNormalization": lambda: MyNorm(scale=False, center=False),
    "power-iteration": lambda: layers.SpectralNormalization(layers.Dense(2)),
    "public constants": lambda: layers.Normalization(),
    "feature axis": lambda: layers.Softmax(axis=0),
}


@pytest.mark.parametrize("hide", [lambda x: x, Wraps, lambda x: keras.Sequential([x])])
@pytest.mark.parametrize("remedy", BAD)
def test_refused_wherever_it_hides(remedy, hide):
    bad = BAD[remedy]()
    model = keras.Sequential([layers.Dense(4), hide(bad)])
    with pytest.raises(ValueError, match=remedy) as error:
        refuse_mixing_layers(model)
    assert bad.name in str(error.value) and type(bad).__name__ in str(error.value)


def test_frozen_batch_normalization_is_refused_too():
    norm = layers.BatchNormalization()
    norm.trainable = False
    with pytest.raises(ValueError, match="BatchNormalization"):
        refuse_mixing_layers(keras.Sequential([norm]))


def test_stateful_recurrence_is_refused():
    with pytest.raises(ValueError, match="stateful=False"):
        refuse_mixing_layers(keras.Sequential([layers.LSTM(2, stateful=True)]))


def test_layers_that_keep_examples_apart_pass():
    refuse_mixing_layers(
        keras.Sequential(
            [
                layers.Normalization(mean=0.0, variance=1.0),
                layers.Conv2D(2, 3),
                layers.GroupNormalization(1),
                layers.LayerNormalization(),
                layers.Softmax(),
                layers.LSTM(2),
            ]
        )
    )
