"""Record and replay: sound trainings pass, planted faults are found, and the step is named."""

import contextlib
import dataclasses

import numpy as np
import pytest

import tfdp
from tests.faults import FAULTS
from tests.replay.recorder import record
from tests.replay.replaying import p_value, replay
from tests.replay.trainings import BROKEN, LOSS, L, N, examples, network, optimizer, training
from tests.rounding import assert_close, terms_of
from tests.seeds import seed_keras
from tfdp.accounting import Strategy

LIMIT = 1e-6


def recorded(made):
    model, train = made
    with record(model) as recording:
        train()
    return recording


def replayed(recording, **options):
    return replay(recording, examples()[0], **options)


SOUND = {
    "dpsgd": lambda: training(optimizer(momentum=0.9), physical_batch_size=8),
    "adaptive": lambda: training(optimizer(clipping="adaptive")),
    "si_dpsgd": lambda: training(optimizer(tfdp.SIDPSGDOptimizer, momentum=0.5), sampling="cyclic"),
    "dp_dropout": lambda: training(optimizer(tfdp.DPDropoutOptimizer)),
    "sgld": lambda: training(optimizer(tfdp.SGLDOptimizer, num_examples=N)),
    "matrix": lambda: training(
        optimizer(
            tfdp.MatrixDPSGDOptimizer,
            strategy=Strategy(name="banded_toeplitz", coefficients=(1.0, 0.5, 0.3)),
        ),
        sampling="cyclic",
    ),
    "discrete_sgd": lambda: training(
        optimizer(tfdp.DiscreteSGDOptimizer, noise="student_t", encode=False, denoise=False)
    ),
    "private statistics": lambda: training(model=network(tfdp.layers.PrivateBatchNormalization())),
}
# Their gradients are not clipped by a fixed norm, or their rows draw random numbers.
NOT_ROW_BY_ROW = {"adaptive", "dp_dropout", "sgld"}


QUICK = ("dpsgd", "si_dpsgd", "matrix")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SOUND]
)
def test_a_sound_training_passes(name):
    recording = recorded(SOUND[name]())
    found = replayed(recording)
    assert p_value(found) > LIMIT, found
    assert len(recording.steps) == recording.model.privacy.steps_taken == 30
    names = {finding.name for finding in found}
    assert {"ledger", "update", "sum", "law", "variance"} <= names
    assert ("sum, row by row" in names) == (name not in NOT_ROW_BY_ROW)


# The quick tests of the checks find the same in lots and noise without a training.
SLOW = {
    "noise_has_two_thirds_of_its_scale",
    "noise_repeats_in_every_step",
    "poisson_lots_have_a_fixed_order",
}


@pytest.mark.parametrize(
    ("faults", "train"),
    [pytest.param(*b, marks=pytest.mark.slow) if SLOW & {*b[0]} else b for b in BROKEN],
)
def test_a_planted_fault_is_found(faults, train, monkeypatch):
    for fault in faults:
        plant = FAULTS[fault].plant if isinstance(fault, str) else fault
        plant(monkeypatch.setattr)
    # In three steps, every fiftieth training has no microbatch whose gradients oppose each other.
    found = replayed(recorded(train()), steps=9)
    assert p_value(found) < LIMIT, found


@pytest.mark.slow
def test_recording_changes_nothing_that_is_trained():
    lots = tfdp.data.make_lots("cyclic", *examples(), lot_size=L)
    made = []
    for recording in (False, True):
        seed_keras(0)
        model = tfdp.make_private(network())
        model.compile(optimizer(seed=1), LOSS)
        with record(model) if recording else contextlib.nullcontext():
            model.fit(lots, epochs=1, verbose=0)
        made.append(np.concatenate([w.ravel() for w in model.get_weights()]))
    assert_close(*made, terms=terms_of(model, L, steps=N // L))


def test_the_step_that_is_wrong_is_named():
    recording = recorded(training(epochs=1))
    step = recording.steps[5]
    for name, change in {
        "update": {"rate": 1.01 * step.rate},
        "weights": {"before": [w + 1.0 for w in step.before]},
        "ledger": {"counted": 5},
    }.items():
        recording.steps[5] = dataclasses.replace(step, **change)
        found = replayed(recording, steps=1)
        assert [(f.name, f.step) for f in found if f.p_value == 0] == [(name, 5)]
