"""Un-noised private numbers cannot steer training, and known seeds give no guarantee."""

import keras
import numpy as np
import pytest
from helpers import data, sgd, si_dpsgd, steps

import tfdp
from tests.training.small import small, train
from tfdp.data import make_lots

DELTA = 1e-5


class MyStopping(keras.callbacks.EarlyStopping):
    pass


class Mine(keras.callbacks.Callback):
    monitor = "loss"


STEERING = {
    "EarlyStopping": lambda: keras.callbacks.EarlyStopping(monitor="loss"),
    "a subclass, on accuracy": lambda: MyStopping(monitor="accuracy"),
    "ReduceLROnPlateau": lambda: keras.callbacks.ReduceLROnPlateau(monitor="loss"),
    "one of the user's own": Mine,
    "TerminateOnNaN": keras.callbacks.TerminateOnNaN,
    "ModelCheckpoint": lambda: keras.callbacks.ModelCheckpoint(
        "m.keras", monitor="loss", save_best_only=True
    ),
}


@pytest.mark.parametrize("name", STEERING)
def test_callbacks_that_follow_training_metrics_are_refused(name):
    model = small(compiled={"metrics": ["accuracy"]})
    for given in (STEERING[name](), keras.callbacks.CallbackList([STEERING[name]()])):
        with pytest.raises(ValueError, match="private examples"):
            train(model, callbacks=given)
    assert steps(model) == 0


def test_callbacks_that_follow_validation_data_or_nothing_are_not(tmp_path):
    held = keras.callbacks.ModelCheckpoint(tmp_path / "a.keras", "val_loss", save_best_only=True)
    callbacks = [
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=5),
        keras.callbacks.ReduceLROnPlateau(monitor="val_accuracy"),
        held,
        keras.callbacks.ModelCheckpoint(tmp_path / "b.keras", monitor="loss"),
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.1),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
    ]
    model = small(compiled={"metrics": ["accuracy"]})
    train(model, 2, batch_size=8, callbacks=callbacks, validation_data=data(8, seed=3))
    assert steps(model) == 2 and (tmp_path / "b.keras").exists()


@pytest.mark.parametrize("kind", ["arrays", "slices", "parts"])
def test_validation_data_that_are_training_data_hold_out_nothing(kind):
    x, y = data(8)
    source = tfdp.data.as_source((x, y))
    trained, same, held_out = {
        "arrays": ((x, y), (x, y), (x.copy(), y.copy())),
        "slices": ((x[:5], y[:5]), (x[4:], y[4:]), (x[5:], y[5:])),
        "parts": ((source[:6],), source[np.array([5, 7])], source[6:]),
    }[kind]
    stops = [keras.callbacks.EarlyStopping(monitor="val_loss")]
    model = small()
    with pytest.raises(ValueError, match="none of the training data"):
        model.fit(*trained, batch_size=4, validation_data=same, callbacks=stops, verbose=0)
    assert steps(model) == 0
    model.fit(*trained, batch_size=8, validation_data=same, verbose=0)
    model.fit(*trained, batch_size=8, validation_data=held_out, callbacks=stops, verbose=0)


class Objective:
    """What `keras_tuner.Objective` has."""

    def __init__(self, *names):
        self.name = "-".join(names)
        if len(names) > 1:
            self.objectives = [Objective(name) for name in names]


class SaveBestEpoch(keras.callbacks.Callback):
    def __init__(self, *names):
        super().__init__()
        self.objective = Objective(*names)


@pytest.mark.parametrize(
    ("names", "warned"),
    [(["loss"], True), (["val_loss", "accuracy"], True), (["val_loss"], False)],
)
def test_a_search_by_training_metrics_is_a_warning(names, warned, caplog):
    model = small(compiled={"metrics": ["accuracy"]})
    train(model, batch_size=8, callbacks=SaveBestEpoch(*names), validation_data=data(8))
    assert ("objective='val_loss'" in caplog.text) == warned
    assert model.privacy.steps_taken == 1


def test_a_tuner_finds_a_model_with_its_steps(tmp_path, caplog):
    tuner = pytest.importorskip("keras_tuner", reason="KerasTuner is no dependency")

    def build(trial):
        return small(sgd(rate=trial.Choice("rate", [0.1, 0.5])), compiled={"metrics": ["accuracy"]})

    for objective in ("accuracy", "val_accuracy"):
        caplog.clear()
        search = tuner.RandomSearch(build, objective=objective, directory=tmp_path / objective)
        x, y = data(8)
        search.search(x, y, batch_size=4, epochs=2, validation_data=data(8), verbose=0)
        assert ("val_loss" in caplog.text) == (objective == "accuracy")
        best = search.get_best_models()[0].privacy
        assert best.steps_taken in (2, 4) and [run.steps for run in best.ledger.runs] == [4]


def test_a_monitor_that_nothing_is_called_is_refused():
    with pytest.raises(ValueError, match="validation_data"):
        train(small(), callbacks=[keras.callbacks.EarlyStopping("validation_loss", mode="min")])


def test_a_checkpoint_that_has_no_place_for_the_ledger_is_refused_before_the_first_step(tmp_path):
    model = small()
    with pytest.raises(ValueError, match="ledger"):
        train(model, callbacks=[keras.callbacks.ModelCheckpoint(tmp_path / "q.h5")])
    assert steps(model) == 0
    path = tmp_path / "q.weights.h5"
    kept = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    train(model, batch_size=8, callbacks=[kept])
    assert path.exists()


# -- seeds -------------------------------------------------------------------------------------------


def test_a_seed_of_the_noise_leaves_nothing_proven():
    model = small(sgd(seed=7))
    train(model, batch_size=8)
    guarantee = model.privacy.spent(DELTA)
    assert guarantee.epsilon == np.inf and "seed" in guarantee.reason
    assert model.privacy.spent(DELTA, "claimed").epsilon < np.inf


@pytest.mark.parametrize(("sampling", "proven"), [("poisson", False), ("shuffle", True)])
def test_a_seed_of_the_lots_matters_where_their_secrecy_does(sampling, proven):
    for seed in (3, None):
        model = small()
        model.fit(make_lots(sampling, *data(8), lot_size=8, seed=seed), verbose=0)
        assert np.isfinite(model.privacy.spent(DELTA).epsilon) == (proven or seed is None)


def test_a_seed_of_fit_is_one_of_the_lots():
    model = small(seed=3)
    train(model, batch_size=8, shuffle=True)
    assert model.privacy.spent(DELTA).epsilon == np.inf


# -- neighbours with one record more -----------------------------------------------------------------


def test_adding_a_record_needs_a_probability_that_does_not_depend_on_the_data():
    model = small(sgd(noise=4.0))
    model.fit(make_lots("poisson", *data(8), lot_size=8), verbose=0)
    with pytest.raises(ValueError, match="nominal_examples"):
        model.privacy.spent(DELTA, adjacency="add_or_remove_one")
    model = small(sgd(noise=4.0))
    lots = make_lots("poisson", *data(9), lot_size=4, nominal_examples=12)
    model.fit(lots, steps_per_epoch=1, verbose=0)
    (run,) = model.privacy.ledger.runs
    assert (run.sampling.num_examples, run.steps, run.sampling.nominal) == (12, 1, True)
    added = model.privacy.spent(DELTA, adjacency="add_or_remove_one")
    assert added.epsilon == model.privacy.spent(DELTA).epsilon < np.inf


@pytest.mark.parametrize("name", ["BackupAndRestore", "OrbaxCheckpoint"])
def test_checkpoints_without_a_ledger_are_refused_and_ours_is_named(name):
    model, kind = small(), getattr(keras.callbacks, name, None)
    if kind is None:
        pytest.skip("an older Keras")
    callback = kind.__new__(kind)  # that of Orbax needs a package to be made
    with pytest.raises(ValueError, match=r"tfdp\.callbacks\.BackupAndRestore"):
        train(model, callbacks=[callback])
    assert not model.privacy.ledger.runs


@pytest.mark.parametrize(
    "callback",
    [keras.callbacks.ReduceLROnPlateau(), keras.callbacks.LearningRateScheduler(lambda e: 0.1)],
)
def test_rates_that_are_fixed_are_not_assigned_midway(callback):
    for optimizer in (
        si_dpsgd(),
        sgd(rate=keras.optimizers.schedules.ExponentialDecay(0.1, 9, 0.9)),
    ):
        model = small(optimizer)
        with pytest.raises(ValueError, match="learning rates"):
            train(model, callbacks=[callback], validation_data=data(8))
        assert steps(model) == 0
