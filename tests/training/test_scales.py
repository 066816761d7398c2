"""Warnings where nothing will be learned, and what they advise."""

import keras
import numpy as np
import pytest
from helpers import sgd
from keras import layers

from tests.helpers import private
from tests.training.small import small
from tfdp.data import make_lots

RNG = np.random.default_rng(0)
BYTES, COLUMNS = RNG.integers(0, 255, (40, 4, 4, 1), np.uint8), RNG.normal(size=(40, 4))
LABELS = np.arange(40) % 3
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def trained(stack, x, y=LABELS, loss=LOSS, **options):
    network = keras.Sequential([keras.Input(x.shape[1:]), *stack, layers.Dense(3)])
    model = small(sgd(noise=1e-3), network, {"loss": loss})
    model.fit(x, y, verbose=0, **({"batch_size": 10, "steps_per_epoch": 1} | options))


@pytest.mark.parametrize("stack", [[layers.Flatten], [lambda: layers.Conv2D(2, 2), layers.Flatten]])
def test_bytes_that_reach_weights_as_they_are(stack, caplog):
    trained([make() for make in stack], BYTES)
    assert "gets bytes" in caplog.text and "Rescaling" in caplog.text
    caplog.clear()
    trained([layers.Rescaling(1 / 255), *(make() for make in stack)], BYTES)
    trained([make() for make in stack], BYTES / np.float32(255))
    assert not caplog.text


def windows(step, length=8):
    series = np.cumsum(RNG.normal(size=(40 - 1) * step + length))
    return np.lib.stride_tricks.sliding_window_view(series, length)[::step].astype("float32")


@pytest.mark.parametrize("x", [windows(1), windows(3), windows(2).reshape(40, 4, 2)])
def test_windows_that_overlap(x, caplog):
    trained([layers.Flatten()], x)
    assert "Neighbouring rows overlap" in caplog.text
    caplog.clear()
    network = keras.Sequential([keras.Input(x.shape[1:]), layers.Flatten(), layers.Dense(3)])
    model = small(sgd(noise=1e-3), network)
    people = {"privacy_ids": np.arange(40) // 5, "examples_per_person": 2}
    lots = make_lots("poisson", x, LABELS, lot_size=2, **people)
    model.fit(lots, steps_per_epoch=1, verbose=0)
    assert "Neighbouring rows overlap" not in caplog.text


def test_rows_that_only_look_like_windows(caplog):
    padded = np.zeros((40, 8), "int32")
    padded[:, 0] = np.arange(40)
    for x in (windows(8), padded, np.ones((40, 8), "float32"), RNG.integers(0, 2, (40, 8))):
        trained([], x)
    assert "Neighbouring rows overlap" not in caplog.text


def test_class_weights_that_clipping_takes_away(caplog):
    trained([], COLUMNS, class_weight={0: 1.0, 1: 1000.0, 2: 1.0})
    assert "class_weight is up to 1000" in caplog.text
    caplog.clear()
    trained([], COLUMNS, class_weight={0: 0.5, 1: 1.0, 2: 2.0})
    assert not caplog.text


@pytest.mark.parametrize(
    ("scale", "advice"), [(1e5, "Scale inputs"), (1e-4, "clipping='adaptive'"), (1.0, None)]
)
def test_norms_far_from_the_clip_norm_are_told_once(scale, advice, caplog):
    trained([], scale * COLUMNS, scale * COLUMNS[:, :3], loss="mse", epochs=2)
    assert caplog.text.count("median norm") == (advice is not None)
    assert advice is None or advice in caplog.text


def test_the_clip_norm_may_follow_the_gradients(caplog):
    x, optimizer = 1e-4 * COLUMNS, sgd(clipping="adaptive")
    model = private(
        optimizer, keras.Sequential([keras.Input((4,)), layers.Dense(3)]), {"loss": "mse"}
    )
    model.fit(x, x[:, :3], batch_size=10, epochs=9, verbose=0)
    assert "median norm" not in caplog.text
    assert optimizer.scalars(model.trainable_variables)["l2_norm_clip"] < 0.3


def test_views_that_nothing_makes(caplog):
    lots = make_lots("cyclic", COLUMNS, LABELS, lot_size=10, augmentations=4)
    network = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    model = small(sgd(), network)
    model.fit(lots, steps_per_epoch=1, verbose=0)
    assert "lots.map(f)" in caplog.text
    caplog.clear()
    model.fit(lots.map(lambda example: example), steps_per_epoch=1, verbose=0)
    assert not caplog.text
