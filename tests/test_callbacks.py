"""The callbacks show the numbers of the accounting."""

import functools
import types

import keras
import pytest
import tensorflow as tf
from helpers import LOSS, data, fit, plain, private, sgd
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tfdp
from tfdp import callbacks
from tfdp.accounting import (
    Encoding,
    PrivacyBudget,
    Run,
    claimed,
    proven,
    proven_composition,
    strategy,
)
from tfdp.accounting.mechanisms.discrete_sgd import DiscreteSGD
from tfdp.accounting.mechanisms.matrix import Matrix
from tfdp.callbacks import EpsilonCurve, PrivacyProgress, PrivacyTensorBoard, StopAtBudget
from tfdp.training.model_privacy import ModelPrivacy

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


def test_a_claimed_epsilon_says_that_it_is_claimed():
    shown = [PrivacyProgress(DELTA), PrivacyProgress(DELTA, "claimed")]
    shown.append(PrivacyProgress(DELTA, "claimed", name="mine"))
    model = private(sgd())
    history = fit(model, callbacks=shown).history
    assert history["epsilon"][-1] == model.privacy.spent(DELTA).epsilon
    assert history["claimed_epsilon"] == history["mine"] != history["epsilon"]


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


# -- few evaluations -----------------------------------------------------------------------------

POISSON = Run(
    mechanism="dpsgd",
    num_examples=1437,
    lot_size=256,
    steps=200,
    sampling="poisson",
    noise_multiplier=5.0,
)
RUNS = {
    "poisson": POISSON,
    "cyclic": POISSON.with_(sampling="cyclic"),
    "shuffle": POISSON.with_(sampling="shuffle"),
    "with_replacement": POISSON.with_(sampling="with_replacement"),
    "fixed_size": POISSON.with_(sampling="fixed_size"),
    "cyclic_poisson": POISSON.with_(sampling="cyclic_poisson", groups=4),
    "table": POISSON.with_(noise_multiplier=(4.0,) * 90 + (6.0,) * 110),
    "dp_dropout": POISSON.with_(mechanism="dp_dropout", clip_groups=2),
    # With random lots, SI-DPSGD's bound rounds steps into bins, so it may fall with one more step.
    "si_dpsgd": POISSON.with_(mechanism="si_dpsgd", sampling="cyclic", noise_multiplier=90.0),
    "matrix": POISSON.with_(
        mechanism=Matrix(noise_multiplier=5.0, strategy=strategy("sqrt_toeplitz", 200, 8))
    ),
    "discrete_sgd": POISSON.with_(
        mechanism=DiscreteSGD(
            noise_multiplier=5.0, encoding=Encoding(noise="laplace", num_weights=100)
        )
    ),
}


def curve_of(run, kind="proven", earlier=(), **more):
    ledger = types.SimpleNamespace(changes=0)
    privacy = types.SimpleNamespace(current_run=run, earlier_runs=list(earlier), ledger=ledger)
    return EpsilonCurve(types.SimpleNamespace(privacy=privacy), DELTA, kind, **more)


@pytest.fixture
def evaluations(monkeypatch):
    """Step counts at which a curve computed epsilon."""
    found, exact = [], callbacks.epsilon_curve

    def counting(run, steps, *args):
        found.extend(steps)
        return exact(run, steps, *args)

    monkeypatch.setattr(callbacks, "epsilon_curve", counting)
    return found


@pytest.mark.parametrize("kind", ["proven", "claimed"])
@pytest.mark.parametrize("name", RUNS)
def test_a_curve_needs_few_evaluations_and_is_never_too_small(name, kind, evaluations):
    run, exact = RUNS[name], {"proven": proven, "claimed": claimed}[kind]
    curve = curve_of(run, kind)
    values = [curve.at(steps) for steps in range(run.steps + 1)]
    assert len(evaluations) <= 17 and len(set(evaluations)) == len(evaluations)
    assert values == sorted(values)
    assert values[0] == 0 and values[-1] == exact(run, DELTA).epsilon
    for steps in (1, 5, 13, 17, 60, 111, 186, 199):
        assert values[steps] >= exact(run.with_(steps=steps), DELTA).epsilon


def test_a_curve_counts_earlier_runs_to_the_last_digit():
    both = proven_composition([POISSON.with_(steps=30), POISSON], DELTA).epsilon
    curve = curve_of(POISSON, earlier=[POISSON.with_(steps=30)])
    assert curve.at(200) == both
    assert proven(POISSON.with_(steps=30), DELTA).epsilon <= curve.at(0) < both


@pytest.mark.parametrize("steps", [0, 1, 5, 7, 28, 200, 3510, 3515, 10**6])
@pytest.mark.parametrize("steps_per_epoch", [1, 5, 7, 234])
@pytest.mark.parametrize("points", [1, 3, 16])
def test_step_counts(steps, steps_per_epoch, points):
    counts = callbacks.step_counts(steps, steps_per_epoch, points)
    assert counts[0] == 0 and counts[-1] == steps
    assert counts == sorted(set(counts)) and len(counts) <= points + 1
    epochs = -(-steps // steps_per_epoch)
    if epochs <= points:
        assert set(range(0, steps, steps_per_epoch)) <= set(counts)


def test_short_trainings_are_shown_step_by_step():
    assert callbacks.step_counts(6, 3, 16) == [0, 1, 2, 3, 4, 5, 6]


def test_between_the_points_the_counter_of_steps_is_not_read(monkeypatch):
    monkeypatch.setattr(callbacks, "EpsilonCurve", functools.partial(EpsilonCurve, points=2))
    model, read = private(), []
    taken = ModelPrivacy.steps_taken

    class Watch(PrivacyProgress):
        def on_train_batch_end(self, batch, logs=None):
            with monkeypatch.context() as patch:
                counted = property(lambda self: read.append(1) or taken.fget(self))
                patch.setattr(ModelPrivacy, "steps_taken", counted)
                super().on_train_batch_end(batch, logs)
            steps = model.privacy.steps_taken
            assert (
                logs["epsilon"]
                >= proven(model.privacy.current_run.with_(steps=steps), DELTA).epsilon
            )

    history = fit(model, epochs=4, callbacks=[Watch(DELTA)]).history["epsilon"]
    assert len(read) <= 6 and model.privacy.steps_taken == 12
    assert history[-1] == proven(model.privacy.current_run, DELTA).epsilon


def test_delta_is_that_of_the_budget(tmp_path):
    model = private(budget=PrivacyBudget(60.0, 1e-3))
    history = fit(model, callbacks=[PrivacyProgress(), PrivacyTensorBoard(tmp_path)]).history
    assert history["epsilon"][-1] == model.privacy.spent(1e-3).epsilon


@pytest.mark.parametrize("make", [PrivacyProgress, lambda: PrivacyTensorBoard("nowhere")])
def test_neither_delta_nor_budget_is_refused(make):
    with pytest.raises(ValueError, match="Expected delta, such as delta=1e-5"):
        fit(private(), callbacks=[make()])


class Act(keras.callbacks.Callback):
    """Does something to the model at the beginning of the second epoch."""

    def __init__(self, act):
        super().__init__()
        self.act = act

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.act(self.model)


def more_steps_at_once(model):
    model.steps_per_execution = 5
    model.make_train_function(force=True)


def another_ledger(model):
    other = private(model=plain(seed=7))
    fit(other)
    model.privacy.ledger.merge(other.privacy.ledger)


def changed_weights(model):
    model.trainable_variables[0].assign_add(model.trainable_variables[0])


@pytest.mark.parametrize("act", [more_steps_at_once, another_ledger, changed_weights])
def test_what_happens_during_a_training_is_shown(act, tmp_path):
    model = private()
    callbacks = [Act(act), PrivacyProgress(DELTA), PrivacyTensorBoard(tmp_path, DELTA)]
    history = fit(model, epochs=3, callbacks=callbacks).history["epsilon"]
    spent = model.privacy.spent(DELTA).epsilon
    assert history[-1] >= spent * (1 - 1e-12)
    assert history[-1] > 1.1 * proven(model.privacy.current_run.with_(steps=9), DELTA).epsilon
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (*_, last) = events.Tensors("privacy/epsilon_proven")
    assert tf.make_ndarray(last.tensor_proto) == pytest.approx(spent, rel=1e-6)
