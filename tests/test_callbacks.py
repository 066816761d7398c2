"""The callbacks show the numbers of the accounting."""

import pytest
import tensorflow as tf
from helpers import LOSS, data, fit, plain, private, sgd
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tfdp
from tfdp.accounting import Run, claimed, proven, proven_composition
from tfdp.callbacks import EpsilonCurve, PrivacyProgress, PrivacyTensorBoard, StopAtBudget

DELTA = 1e-5


def test_epsilon_in_the_logs_is_that_of_the_steps_so_far():
    model = private()
    seen = []

    class Watch(PrivacyProgress):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            seen.append(logs["epsilon"])

    history = fit(model, epochs=2, callbacks=[Watch(DELTA)]).history
    run = model.privacy.current_run
    expected = [proven(run.with_(steps=steps), DELTA).epsilon for steps in range(1, 7)]
    assert seen == pytest.approx(expected)
    assert history["epsilon"] == pytest.approx([expected[2], expected[5]])
    # Another fit with another run: the reported epsilon includes the earlier steps.
    history = model.fit(
        *data(), batch_size=8, verbose=0, callbacks=[PrivacyProgress(DELTA)]
    ).history
    assert history["epsilon"][-1] == pytest.approx(model.privacy.spent(DELTA).epsilon)
    assert history["epsilon"][-1] > expected[5]


def test_a_coarse_curve_is_an_upper_bound():
    model = private()
    fit(model, epochs=4)
    curve = EpsilonCurve(model, DELTA, points=3)
    for steps in range(13):
        exact = proven_composition([model.privacy.current_run.with_(steps=steps)], DELTA).epsilon
        assert curve.at(steps) >= exact
    assert curve.at(12) == pytest.approx(exact)
    assert curve.at(0) == 0.0


def test_tensorboard_gets_the_named_scalars(tmp_path):
    model = private()
    board = PrivacyTensorBoard(tmp_path, DELTA, hparams={"lot": 8, "skipped": None})
    fit(model, epochs=2, callbacks=[board])
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    values = {
        tag: [float(tf.make_ndarray(e.tensor_proto)) for e in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
        if "hparams" not in tag
    }
    assert set(values) == {
        "training/loss",
        "training/accuracy",
        "privacy/epsilon_claimed",
        "privacy/epsilon_proven",
        "gradients/fraction_clipped",
        "gradients/median_gradient_norm",
        "gradients/noise_to_signal",
        "gradients/non_finite_examples",
    }
    run = model.privacy.current_run
    for kind, guarantee in {"claimed": claimed, "proven": proven}.items():
        expected = [guarantee(run.with_(steps=steps), DELTA).epsilon for steps in (3, 6)]
        assert values[f"privacy/epsilon_{kind}"] == pytest.approx(expected, rel=1e-5)


def test_stop_at_budget_ends_fit_without_an_error():
    run = Run(
        mechanism="dpsgd",
        num_examples=8,
        lot_size=8,
        steps=4,
        sampling="cyclic",
        noise_multiplier=1.0,
    )
    budget = tfdp.PrivacyBudget(proven(run, DELTA).epsilon * 1.0001, DELTA)
    model = private(sgd(), budget=budget)
    fit(model, rows=8, epochs=9, callbacks=[StopAtBudget()])
    assert model.privacy.steps_taken == 4 and model.privacy.steps_left == 0


def test_plain_models_are_refused():
    model = plain()
    model.compile("sgd", loss=LOSS)
    for callback in (PrivacyProgress(DELTA), StopAtBudget()):
        with pytest.raises(ValueError, match="make_private"):
            model.fit(*data(), verbose=0, callbacks=[callback])
