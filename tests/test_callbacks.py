"""The callbacks show the numbers of the accounting."""

import types

import keras
import pytest
import tensorflow as tf
from helpers import LOSS, data, steps
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.accounting.varying import vary
from tests.rounding import rounding
from tests.training.small import GRAPH, linear, small, train
from tfdp import callbacks
from tfdp.accounting import PrivacyBudget, claimed, describe, proven
from tfdp.accounting.guarantee import format_epsilon
from tfdp.callbacks import EpsilonCurve, PrivacyProgress, PrivacyTensorBoard, StopAtBudget

DELTA = 1e-5


def test_epsilon_in_the_logs_is_that_of_the_steps_so_far():
    model = small()
    seen = []

    class Watch(PrivacyProgress):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            seen.append(logs["epsilon"])

    shown = [
        Watch(DELTA),
        PrivacyProgress(DELTA, "claimed"),
        PrivacyProgress(DELTA, "claimed", name="mine"),
        PrivacyProgress(DELTA, adjacency="replace_one", name="replaced"),
    ]
    history = train(model, epochs=2, callbacks=shown).history
    run = model.privacy.current_run
    expected = [proven(vary(run, steps=steps), DELTA).epsilon for steps in range(1, 5)]
    assert seen == pytest.approx(expected)
    assert history["epsilon"] == pytest.approx([expected[1], expected[3]])
    assert history["claimed_epsilon"] == history["mine"]
    assert history["mine"][-1] == pytest.approx(claimed(run, DELTA).epsilon)
    assert history["replaced"][-1] == pytest.approx(proven(run, DELTA, "replace_one").epsilon)
    # Another fit with another run: the reported epsilon includes the earlier steps.
    history = train(model, shuffle=True, callbacks=[PrivacyProgress(DELTA)]).history
    assert history["epsilon"][-1] == pytest.approx(model.privacy.spent(DELTA).epsilon)
    assert history["epsilon"][-1] > expected[3]


def events_in(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def tags(folder):
    return events_in(folder).Tags()["tensors"]


def scalars(folder):
    events = events_in(folder)
    return {
        tag: [float(tf.make_ndarray(e.tensor_proto)) for e in events.Tensors(tag)]
        for tag in tags(folder)
        if tag != "privacy/picture"
    }


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A model, and the folder of TensorBoard that it was trained with."""
    model, folder = small(budget=PrivacyBudget(60.0, DELTA)), tmp_path_factory.mktemp("shown")
    train(model, epochs=2, callbacks=[PrivacyTensorBoard(folder, adjacency="replace_one")])
    return model, folder


def test_tensorboard_gets_the_named_scalars(shown):
    model, folder = shown
    values = scalars(folder)
    assert {"training/loss", "gradients/fraction_clipped"} <= set(values)
    run = model.privacy.current_run
    for kind, guarantee in {"claimed": claimed, "proven": proven}.items():
        runs = [vary(run, steps=steps) for steps in (2, 4)]
        expected = [guarantee(run, DELTA, "replace_one").epsilon for run in runs]
        assert values[f"privacy/epsilon_{kind}"] == pytest.approx(expected, rel=rounding(1))


def test_tensorboard_and_plot_show_what_was_spent_and_clipped(shown):
    pytest.importorskip("matplotlib")
    model, folder = shown
    epsilon, _, clipped = model.privacy.plot().axes
    assert epsilon.lines[0].get_ydata()[-1] == model.privacy.spent().epsilon
    assert list(clipped.lines[0].get_xdata()) == [2, 4]
    assert len(model.privacy.plot(clipping=False).axes) == 2  # for a release
    assert "privacy/picture" in tags(folder)


def test_stop_at_budget_ends_fit_without_an_error():
    run = describe(
        mechanism="dpsgd",
        num_examples=8,
        lot_size=4,
        steps=4,
        sampling="cyclic",
        noise_multiplier=1.0,
    )
    budget = PrivacyBudget(proven(run, DELTA).epsilon * 1.0001, DELTA)
    model = small(budget=budget)
    train(model, epochs=9, callbacks=[StopAtBudget()])
    assert steps(model) == model.privacy.steps_taken == 4 and model.privacy.steps_left == 0


def test_what_is_shown_at_an_early_end_counts_all_planned_steps(tmp_path):
    class Stops(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1

    model = small()
    shown = [PrivacyProgress(DELTA), PrivacyTensorBoard(tmp_path, DELTA), Stops()]
    history = train(model, epochs=9, callbacks=shown).history["epsilon"]
    spent = model.privacy.spent(DELTA).epsilon
    assert model.privacy.ledger.runs[0].steps == 18 and len(history) == 2
    assert history[1] == pytest.approx(spent) and history[0] < history[1] / 2
    assert scalars(tmp_path)["privacy/epsilon_proven"][-1] == pytest.approx(spent, rel=rounding(1))


def test_data_of_unknown_length_show_the_steps_so_far():
    model = small(compiled=GRAPH)
    batches = tf.data.Dataset.from_tensor_slices(data(8)).batch(4).filter(lambda *_: True)
    shown = model.fit(batches, epochs=3, verbose=0, callbacks=[PrivacyProgress(DELTA)]).history
    (run,) = model.privacy.ledger.runs
    expected = [proven(vary(run, steps=steps), DELTA).epsilon for steps in (2, 4, 6)]
    assert shown["epsilon"] == pytest.approx(expected)


def test_an_early_end_of_data_of_unknown_length_is_shown_as_it_is_stated():
    class Stops(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1

    model = small()
    batches = tf.data.Dataset.from_tensor_slices(data(8)).batch(4).filter(lambda *_: True)
    shown = [PrivacyProgress(DELTA), Stops()]
    history = model.fit(batches, epochs=3, verbose=0, callbacks=shown).history
    assert history["epsilon"][-1] == pytest.approx(model.privacy.spent(DELTA).epsilon)


def test_plain_models_are_refused():
    model = linear()
    model.compile("sgd", loss=LOSS, run_eagerly=True)
    for callback in (PrivacyProgress(DELTA), StopAtBudget()):
        with pytest.raises(ValueError, match="make_private"):
            model.fit(*data(8), verbose=0, callbacks=[callback])


def test_delta_and_adjacency_are_those_of_the_budget_and_without_one_delta_is_asked_for():
    model = small(budget=PrivacyBudget(60.0, 1e-3, adjacency="replace_one"))
    history = train(model, callbacks=[PrivacyProgress()]).history
    spent = model.privacy.spent(1e-3, adjacency="replace_one").epsilon
    assert history["epsilon"][-1] == spent == model.privacy.spent().epsilon
    assert spent > model.privacy.spent(1e-3, adjacency="zero_out").epsilon
    assert "replace_one" in model.privacy.statement()
    for callback in (PrivacyProgress(), PrivacyTensorBoard("nowhere")):
        with pytest.raises(ValueError, match="delta"):
            train(small(), callbacks=[callback])


@pytest.mark.parametrize(
    "make",
    [
        lambda: PrivacyProgress(1.5),
        lambda: PrivacyProgress(DELTA, adjacency="zeroout"),
        lambda: PrivacyProgress(DELTA, kind="provn"),
        lambda: PrivacyTensorBoard("nowhere", 0.0),
    ],
)
def test_a_wrong_value_is_refused_before_any_training(make):
    with pytest.raises(ValueError, match=r"delta|adjacency|kind"):
        make()


def test_the_delta_of_a_callback_is_that_of_all_warnings(caplog):
    model = small(compiled=GRAPH)
    batches = tf.data.Dataset.from_tensor_slices(data(8)).batch(4, drop_remainder=True)
    shown = model.fit(batches, verbose=0, callbacks=[PrivacyProgress(0.5, adjacency="replace_one")])
    assert "delta = 0.5 is not below 1/N" in caplog.text
    assert f"{format_epsilon(shown.history['epsilon'][-1])} at delta 0.5" in caplog.text


def test_a_stop_at_a_budget_needs_one():
    with pytest.raises(ValueError, match="PrivacyBudget"):
        train(small(), callbacks=[StopAtBudget()])


def test_a_ledger_that_comes_during_a_training_is_shown(tmp_path):
    class Merges(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                other = small(model=linear(7))
                train(other)
                self.model.privacy.ledger.merge(other.privacy.ledger)

    model = small()
    shown = [Merges(), PrivacyProgress(DELTA), PrivacyTensorBoard(tmp_path, DELTA)]
    history = train(model, epochs=2, callbacks=shown).history["epsilon"]
    spent = model.privacy.spent(DELTA).epsilon
    assert spent > 1.1 * proven(vary(model.privacy.current_run, steps=4), DELTA).epsilon
    assert history[-1] >= spent * (1 - rounding(100, dtype="float64"))
    assert scalars(tmp_path)["privacy/epsilon_proven"][-1] == pytest.approx(spent, rel=rounding(1))


# -- few evaluations ---------------------------------------------------------------------------------

POISSON = describe(
    mechanism="dpsgd",
    num_examples=1437,
    lot_size=256,
    steps=200,
    sampling="poisson",
    noise_multiplier=5.0,
)
RUNS = {
    "poisson": POISSON,
    "cyclic": vary(POISSON, sampling="cyclic"),
    "table": vary(POISSON, sampling="cyclic", noise_multiplier=(4.0,) * 90 + (6.0,) * 110),
    "si_dpsgd": vary(POISSON, mechanism="si_dpsgd", sampling="cyclic", noise_multiplier=90.0),
}


def curve_of(run, kind="proven", earlier=(), **more):
    entry = types.SimpleNamespace(run=run, if_ended=run.steps, earlier=lambda: list(earlier))
    account = types.SimpleNamespace(session=types.SimpleNamespace(entry=entry))
    privacy = types.SimpleNamespace(account=account, ledger=types.SimpleNamespace(changes=0))
    privacy.delta_and_adjacency = lambda delta, adjacency: (delta, adjacency or "zero_out")
    return EpsilonCurve(types.SimpleNamespace(privacy=privacy), DELTA, kind, **more)


@pytest.mark.parametrize("kind", ["proven", "claimed"])
@pytest.mark.parametrize("name", RUNS)
def test_a_curve_has_few_values_and_none_is_too_small(name, kind):
    run, exact = RUNS[name], {"proven": proven, "claimed": claimed}[kind]
    curve = curve_of(run, kind)
    values = [curve.at(steps) for steps in range(run.steps + 1)]
    assert len(set(values)) <= 17 and values == sorted(values)
    assert values[0] == 0 and values[-1] == exact(run, DELTA).epsilon
    for number in (1, 60, 199):
        assert values[number] >= exact(vary(run, steps=number), DELTA).epsilon


def test_a_curve_counts_earlier_runs():
    both = proven([vary(POISSON, steps=30), POISSON], DELTA).epsilon
    curve = curve_of(POISSON, earlier=[vary(POISSON, steps=30)])
    assert curve.at(200) == both
    assert proven(vary(POISSON, steps=30), DELTA).epsilon <= curve.at(0) < both


@pytest.mark.parametrize("steps", [0, 1, 28, 3515])
@pytest.mark.parametrize(("steps_per_epoch", "points"), [(1, 16), (7, 16), (234, 16), (7, 1)])
def test_step_counts(steps, steps_per_epoch, points):
    counts = callbacks.step_counts(steps, steps_per_epoch, points)
    assert counts[0] == 0 and counts[-1] == steps
    assert counts == sorted(set(counts)) and len(counts) <= points + 1
    if -(-steps // steps_per_epoch) <= points:
        assert set(range(0, steps, steps_per_epoch)) <= set(counts)
