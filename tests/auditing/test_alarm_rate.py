"""Sound trainings fail a replay as seldom as is stated, and audits contradict the truth as seldom."""

import keras
import numpy as np
import pytest
import scipy.stats
from keras import layers

import tfdp
from tests.auditing.faults import training
from tfdp import auditing

SIGNIFICANCE = 0.05


def alarms_of_replays(runs, folder):
    alarms = 0
    for number in range(runs):
        model, train = training(epochs=2)
        with auditing.record(model, folder / str(number)):
            train()
        found = auditing.replay(folder / str(number), steps=2, rows=2, significance=SIGNIFICANCE)
        alarms += not found.passed
        keras.utils.clear_session()
    return alarms


def alarms_of_audits(runs, confidence=0.95, canaries=300):
    """Audits of a training with one step on all records, whose epsilon is attained exactly."""

    def train(world):
        model = world.model(keras.Sequential([keras.Input((2,)), layers.Dense(1)]))
        model = tfdp.make_private(model)
        model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0), "mse")
        x, y = world.data(np.zeros((10, 2), "float32"), np.ones((10, 1), "float32"))
        model.fit(tfdp.data.make_lots("cyclic", x, y, lot_size=len(y)), verbose=0)
        return model

    alarms, largest = 0, 0.0
    for seed in range(runs):
        found = auditing.audit(
            train, auditing.DiracCanaries(canaries, blanks=300), seed=seed, confidence=confidence
        )
        stated = found.stated("proven").epsilon
        bounds = [found.bound, *found.others.values()]
        alarms += any(bound.epsilon > stated for bound in bounds)
        largest = max(largest, *(bound.epsilon / stated for bound in bounds))
        keras.utils.clear_session()
    return alarms, largest


def most(runs, rate):
    """As many alarms as happen by chance once in a million times."""
    return scipy.stats.binom.isf(1e-6, runs, rate)


@pytest.mark.slow
def test_sound_replays_fail_at_the_stated_rate(tmp_path):
    assert alarms_of_replays(200, tmp_path) <= most(200, SIGNIFICANCE)


@pytest.mark.slow
def test_audits_contradict_the_truth_at_the_stated_rate():
    # Four bounds, each of which may be above the truth in one of twenty audits.
    alarms, largest = alarms_of_audits(100)
    assert alarms <= most(100, 4 * 0.05)
    assert largest > 0.4  # they are not blind
