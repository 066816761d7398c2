"""Record and replay: sound trainings pass, planted faults are found, and the step is named."""

import keras
import numpy as np
import pytest
import scipy.stats
from keras import layers

import tfdp
from tests.auditing.faults import FAULTS, LOSS, L, N, examples, network, optimizer, training
from tfdp.accounting import Strategy
from tfdp.auditing import record, replay


def recorded(made, folder):
    model, train = made
    with record(model, folder):
        train()
    return model


def replayed(folder, model=None):
    return replay(folder, model, steps=3, rows=3, significance=1e-6)


SOUND = {
    "dpsgd": lambda: training(optimizer(momentum=0.9), physical_batch_size=8),
    "adaptive": lambda: training(optimizer(clipping="adaptive")),
    "si_dpsgd": lambda: training(optimizer(tfdp.SIDPSGDOptimizer), sampling="cyclic"),
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
# Where the clip norm moves, or no row can be clipped by another way.
INCOMPLETE = ("adaptive", "dp_dropout", "sgld")


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_training_passes(name, tmp_path):
    model = recorded(SOUND[name](), tmp_path / "r")
    found = replayed(tmp_path / "r")
    assert found.passed, str(found)
    assert found.steps == model.privacy.steps_taken == 30
    assert found.verdict == ("pass, incomplete" if name in INCOMPLETE else "pass"), str(found)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, tmp_path):
    fault = FAULTS[name]
    with fault.planted():
        recorded(fault.training(), tmp_path / "r")
        found = replayed(tmp_path / "r")
    assert not found.passed and found.failures, str(found)


def test_recording_changes_nothing_that_is_trained(tmp_path):
    lots = tfdp.data.make_lots("cyclic", *examples(), lot_size=L)
    made = []
    for recording in (False, True):
        keras.utils.set_random_seed(0)
        model = tfdp.make_private(network())
        model.compile(optimizer(seed=1), LOSS)
        with record(model, tmp_path / f"{recording}"):
            model.fit(lots, epochs=1, verbose=0)
        made.append(np.concatenate([w.ravel() for w in model.get_weights()]))
    np.testing.assert_allclose(*made, atol=1e-6)


def edited(folder, step, ending, change):
    """Changes what a file of a recording says of a step."""
    path = folder / f"step_{step:06d}.npz"
    with np.load(path) as file:
        content = dict(file)
    name = next(key for key in content if key.endswith(ending))
    content[name] = change(content[name])
    np.savez(path, **content)


@pytest.mark.parametrize(
    ("ending", "change", "finding"),
    [(".rate", lambda rate: 1.01 * rate, "update"), (".before", lambda w: w + 1.0, "weights")],
)
def test_the_step_that_is_wrong_is_named(ending, change, finding, tmp_path):
    recorded(training(epochs=1), tmp_path / "r")
    assert (tmp_path / "r").stat().st_mode & 0o077 == 0  # a recording is a secret
    edited(tmp_path / "r", 5, ending, change)
    found = replayed(tmp_path / "r")
    assert [(f.name, f.step) for f in found.failures] == [(finding, 5)]


@pytest.mark.parametrize("kind", [tfdp.DPKerasSGDOptimizer, tfdp.SIDPSGDOptimizer])
def test_weights_may_change_between_two_fits(kind, tmp_path):
    made, train = training(optimizer(kind), sampling="cyclic", epochs=1)
    with record(made, tmp_path / "r"):
        train()
        made.set_weights([w + 1.0 for w in made.get_weights()])
        train()
    found = replayed(tmp_path / "r")
    assert found.passed and found.left_out, str(found)


class Unregistered(layers.Dense):
    pass


def test_a_model_that_cannot_be_loaded_is_given(tmp_path):
    def small():
        return keras.Sequential([keras.Input((6,)), Unregistered(4)])

    recorded(training(model=small(), epochs=1), tmp_path / "r")
    with pytest.raises(ValueError, match="registered"):
        replay(tmp_path / "r")
    again, _ = training(model=small())
    assert replayed(tmp_path / "r", again).passed
    other, _ = training()
    with pytest.raises(ValueError, match="shapes"):
        replay(tmp_path / "r", other)


def test_what_cannot_be_recorded_is_refused(tmp_path):
    with pytest.raises(ValueError, match="make_private"), record(network(), tmp_path / "a"):
        pass
    made, _ = training()
    (tmp_path / "b").mkdir(mode=0o700)
    (tmp_path / "b" / "file").write_text("x")
    with pytest.raises(ValueError, match="empty"), record(made, tmp_path / "b"):
        pass
    with pytest.raises(RuntimeError, match="compiled anew"), record(made, tmp_path / "c"):
        made.compile(optimizer(), LOSS)
    with pytest.raises(ValueError, match=r"about\.json"):
        replay(tmp_path / "c")
    made.compile(optimizer(), LOSS, jit_compile=True)
    with pytest.raises(ValueError, match="XLA"), record(made, tmp_path / "d"):
        pass


@pytest.mark.slow
def test_sound_trainings_fail_at_the_stated_rate(tmp_path):
    alarms = 0
    for number in range(100):
        recorded(training(epochs=2), tmp_path / str(number))
        found = replay(tmp_path / str(number), steps=2, rows=2, significance=0.05)
        alarms += not found.passed
        keras.utils.clear_session()
    # More alarms than these happen by chance once in a million times.
    assert alarms <= scipy.stats.binom.isf(1e-6, 100, 0.05)
