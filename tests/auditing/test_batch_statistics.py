"""Batch statistics as the papers write them: one record moves the gradients of all others.

The crafted record is an outlier. Without it, all rows lie on one side of the statistics; with it,
they lie on the other, so that every clipped gradient changes its sign.
"""

import keras
import numpy as np
import pytest
from keras import layers

import tfdp
from tfdp.accounting import claimed, proven
from tfdp.auditing import effect_over_noise, many_runs
from tfdp.data import make_lots
from tfdp.layers import PublicBatchNormalization, PublicExamples

L, STEPS, NOISE, DELTA = 32, 80, 7.1, 1e-5
SURE = 0.999999


def released(statistics, with_outlier):
    """What each of the steps releases, in units of the noise, and the run of one of them."""
    x = np.full((L, 1), 1.0, "float32")
    x[-1] = 1000.0
    y = np.ones((L, 1), "float32")
    y[-1] = -1.0
    network = keras.Sequential(
        [
            keras.Input((1,)),
            PublicBatchNormalization(center=False, scale=False),
            layers.Dense(1, use_bias=False),
        ]
    )
    public = np.linspace(-0.9, 0.9, 30, dtype="float32")[:, None]
    examples = PublicExamples(network, public, statistics)
    model = tfdp.make_private(keras.Sequential([keras.Input((1,)), examples]))
    # A loss whose gradient does not depend on the weight, and is clipped always.
    model.compile(
        tfdp.DPKerasSGDOptimizer(learning_rate=1.0, l2_norm_clip=1.0, noise_multiplier=NOISE),
        lambda y, prediction: -1e6 * y[:, 0] * prediction[:, 0],
    )
    present = np.ones(L, "float32")
    present[-1] = 1.0 if with_outlier else 0.0
    seen = [model.get_weights()[-1].item()]
    keep = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(model.trainable_variables[0].numpy().item())
    )
    lots = make_lots("cyclic", x, y, lot_size=L, sample_weight=present)
    model.fit(lots, epochs=STEPS, verbose=0, callbacks=[keep])
    (run,) = model.privacy.ledger.runs
    return np.diff(seen) * L / NOISE, run.with_(steps=1)


def test_batch_statistics_as_written_are_refuted():
    inside, run = released("batch", True)
    outside, _ = released("batch", False)
    # Every sum is at least 31 without the outlier and at most -30 with it: 0 is fixed beforehand.
    bound = many_runs(int(np.sum(inside < 0)), STEPS, int(np.sum(outside < 0)), STEPS, delta=DELTA)
    assert bound.epsilon > 5 * claimed(run, DELTA).epsilon
    assert bound.epsilon <= proven(run, DELTA).epsilon
    effect = effect_over_noise(inside, outside, confidence=SURE)
    assert effect.holds((2 * L - 1) / NOISE)
    assert proven(run, DELTA).mu == pytest.approx((2 * L - 1) / NOISE)
