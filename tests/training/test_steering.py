"""Un-noised private numbers cannot steer training, and known seeds give no guarantee."""

import keras
import numpy as np
import pytest
from helpers import data, fit, private, sgd, steps

from tfdp.data import make_lots

DELTA = 1e-5


class MyStopping(keras.callbacks.EarlyStopping):
    pass


STEERING = {
    "EarlyStopping": lambda: keras.callbacks.EarlyStopping(monitor="loss"),
    "EarlyStopping on accuracy": lambda: keras.callbacks.EarlyStopping(monitor="accuracy"),
    "a subclass": lambda: MyStopping(monitor="loss"),
    "ReduceLROnPlateau": lambda: keras.callbacks.ReduceLROnPlateau(monitor="loss"),
    "TerminateOnNaN": keras.callbacks.TerminateOnNaN,
    "ModelCheckpoint": lambda: keras.callbacks.ModelCheckpoint(
        "m.keras", monitor="loss", save_best_only=True
    ),
}


@pytest.mark.parametrize("wrap", [list, keras.callbacks.CallbackList, lambda c: c[0]])
@pytest.mark.parametrize("name", STEERING)
def test_callbacks_that_follow_training_metrics_are_refused(name, wrap):
    model = private()
    with pytest.raises(ValueError, match=r"(?s)private examples.*Expected"):
        fit(model, callbacks=wrap([STEERING[name]()]))
    assert steps(model) == 0


def test_callbacks_that_follow_validation_data_or_nothing_are_not(tmp_path):
    callbacks = [
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=5),
        keras.callbacks.ReduceLROnPlateau(monitor="val_accuracy"),
        keras.callbacks.ModelCheckpoint(
            tmp_path / "a.keras", monitor="val_loss", save_best_only=True
        ),
        keras.callbacks.ModelCheckpoint(tmp_path / "b.keras", monitor="loss"),
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.1),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
    ]
    model = private()
    fit(model, epochs=2, callbacks=callbacks, validation_data=data(8, seed=3))
    assert steps(model) == 6


def test_a_training_metric_that_is_called_like_a_validation_metric_is_refused():
    model = private(compiled={"metrics": [keras.metrics.SparseCategoricalAccuracy("val_accuracy")]})
    with pytest.raises(ValueError, match="private examples"):
        fit(model, callbacks=[keras.callbacks.EarlyStopping(monitor="val_accuracy", mode="max")])


@pytest.mark.parametrize("monitor", ["foo", "validation_loss"])
def test_a_monitor_that_nothing_is_called_is_not_said_to_be_private(monitor):
    model = private()
    with pytest.raises(
        ValueError, match=r"no such figure.*'val_loss', which needs validation_data"
    ):
        fit(model, callbacks=[keras.callbacks.EarlyStopping(monitor=monitor, mode="min")])
    assert steps(model) == 0


def test_a_checkpoint_that_has_no_place_for_the_ledger_is_refused_before_the_first_step(tmp_path):
    model = private()
    with pytest.raises(ValueError, match=r"privacy ledger.*'\.keras'"):
        fit(model, callbacks=[keras.callbacks.ModelCheckpoint(tmp_path / "q.h5")])
    assert steps(model) == 0
    path = tmp_path / "q.weights.h5"
    fit(model, callbacks=[keras.callbacks.ModelCheckpoint(path, save_weights_only=True)])
    assert path.exists()


# -- seeds -------------------------------------------------------------------------------------------


def test_a_seed_of_the_noise_leaves_nothing_proven():
    model = private(sgd(seed=7))
    fit(model)
    guarantee = model.privacy.spent(DELTA)
    assert guarantee.epsilon == np.inf and "seed" in guarantee.reason
    assert model.privacy.spent(DELTA, "claimed").epsilon < np.inf
    assert "seed" in model.privacy.statement(DELTA)


@pytest.mark.parametrize(
    ("sampling", "proven"),
    [
        ("poisson", False),
        ("with_replacement", False),
        ("fixed_size", False),
        ("shuffle", True),
        ("cyclic", True),
    ],
)
def test_a_seed_of_the_lots_matters_where_their_secrecy_does(sampling, proven):
    for seed in (3, None):
        model = private()
        model.fit(make_lots(sampling, *data(), lot_size=8, seed=seed), verbose=0)
        assert np.isfinite(model.privacy.spent(DELTA).epsilon) == (proven or seed is None)


def test_a_seed_of_fit_is_one_of_the_lots():
    model = private(seed=3)
    fit(model, shuffle=True)
    assert model.privacy.spent(DELTA).epsilon == np.inf


# -- neighbours with one record more ---------------------------------------------------------------


def test_adding_a_record_needs_a_probability_that_does_not_depend_on_the_data():
    model = private(sgd(noise=4.0))
    model.fit(make_lots("poisson", *data(), lot_size=8), verbose=0)
    with pytest.raises(ValueError, match="nominal_examples"):
        model.privacy.spent(DELTA, adjacency="add_or_remove_one")
    model = private(sgd(noise=4.0))
    lots = make_lots("poisson", *data(), lot_size=8, nominal_examples=40)
    model.fit(lots, epochs=2, verbose=0)
    (run,) = model.privacy.ledger.runs
    assert (run.num_examples, run.steps, run.nominal) == (40, 10, True)
    added = model.privacy.spent(DELTA, adjacency="add_or_remove_one")
    assert added.epsilon == model.privacy.spent(DELTA).epsilon < np.inf
    assert "24" not in model.privacy.statement(DELTA)  # the real number of examples


def test_lots_of_fixed_size_train_and_are_accounted():
    model = private(sgd(noise=4.0))
    model.fit(make_lots("fixed_size", *data(), lot_size=8), epochs=2, verbose=0)
    (run,) = model.privacy.ledger.runs
    assert (run.sampling_name, run.steps) == ("fixed_size", 6)
    zero, replaced = (model.privacy.spent(DELTA, adjacency=a) for a in ("zero_out", "replace_one"))
    assert 0 < zero.epsilon < replaced.epsilon < np.inf
