"""`make_private_with_epsilon`: noise for the planned epochs, and a budget that holds beyond them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.accounting import BudgetExhausted, CalibrationError, noise_for
from tfdp.data import make_lots

N, L = 200, 20
X = np.random.default_rng(0).normal(size=(N, 3)).astype("float32")
Y = (X[:, 0] > 0).astype("int32")
BUDGET = {"epsilon": 2.0, "delta": 1e-4}
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


def calibrated(optimizer=None, data=(X, Y), **settings):
    if isinstance(data, tuple):
        settings = {"batch_size": L} | settings
    optimizer = optimizer or keras.optimizers.SGD(0.1)
    return tfdp.make_private_with_epsilon(
        model(), optimizer, data, **(BUDGET | {"epochs": 3} | settings)
    )


def trained(found, epochs=3):
    private, optimizer, data = found
    private.compile(optimizer, LOSS)
    private.fit(data, epochs=epochs, verbose=0)
    return private.privacy.spent()


@pytest.mark.parametrize("sampling", ["poisson", "cyclic", "shuffle", "fixed_size"])
def test_the_planned_epochs_spend_the_budget_and_no_more(sampling):
    assert 1.99 < trained(calibrated(sampling=sampling)).epsilon <= 2.0


@pytest.mark.parametrize("kind", ["claimed", "proven"])
@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_the_guarantee_that_is_asked_for(kind, adjacency):
    found = calibrated(kind=kind, adjacency=adjacency)
    trained(found)
    spent = found.model.privacy.spent(1e-4, kind, adjacency)
    assert 1.99 < spent.epsilon <= 2.0
    assert found.model.privacy.budget == tfdp.PrivacyBudget(2.0, 1e-4, kind, adjacency)


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.Adam(1e-3),
        tfdp.DPKerasSGDOptimizer(l2_norm_clip=0.5, noise_multiplier=7.0, momentum=0.9),
        tfdp.SIDPSGDOptimizer(learning_rate=0.1, l2_norm_clip=1.0, noise_multiplier=1.0),
        tfdp.DPKerasSGDOptimizer(l2_norm_clip=0.5, noise_multiplier=7.0, clipping="each_layer"),
        tfdp.DPDropoutOptimizer(learning_rate=0.1, l2_norm_clip=1.0, noise_multiplier=1.0),
        tfdp.DiscreteSGDOptimizer(learning_rate=0.1, l2_norm_clip=1.0, noise_multiplier=1.0),
    ],
    ids=lambda optimizer: optimizer.name,
)
def test_every_mechanism(optimizer):
    assert 1.99 < trained(calibrated(optimizer)).epsilon <= 2.0
    assert not optimizer.built  # the one that was given is not changed


def test_correlated_noise():
    lots = make_lots("cyclic_poisson", X, Y, lot_size=L, groups=2)
    optimizer = tfdp.MatrixDPSGDOptimizer(
        learning_rate=0.1, l2_norm_clip=1.0, noise_multiplier=1.0, bands=2, steps=30
    )
    assert 1.99 < trained(calibrated(optimizer, lots)).epsilon <= 2.0


def test_the_configuration_is_kept():
    given = tfdp.DPKerasSGDOptimizer(l2_norm_clip=0.5, noise_multiplier=7.0, momentum=0.9)
    found = calibrated(given).optimizer.get_config()
    assert found | {"noise_multiplier": 7.0} == given.get_config()
    assert calibrated(given, l2_norm_clip=2.0).optimizer.l2_norm_clip == 2.0
    assert calibrated(keras.optimizers.Adam(1e-3)).optimizer.l2_norm_clip == 1.0


def test_the_noise_is_that_of_noise_for():
    found = calibrated()
    drawn = {"sampling": "poisson", "num_examples": N, "lot_size": L, "steps": 30}
    run = tfdp.accounting.Run(mechanism="dpsgd", noise_multiplier=1.0, **drawn)
    assert found.optimizer.noise_multiplier == pytest.approx(noise_for(2.0, 1e-4, run), rel=1e-9)


@pytest.mark.parametrize(
    "data",
    [
        tf.data.Dataset.from_tensor_slices((X, Y)).batch(L, drop_remainder=True),
        make_lots("poisson", X, Y, lot_size=L),
        make_lots("cyclic", X, Y, lot_size=L).as_dataset(),
        (X, Y, np.ones(N, "float32")),
    ],
    ids=["dataset", "lots", "dataset of lots", "weighted arrays"],
)
def test_other_data(data):
    assert 1.98 < trained(calibrated(data=data)).epsilon <= 2.0


def test_more_epochs_than_planned_are_refused():
    with pytest.raises(BudgetExhausted):
        trained(calibrated(), epochs=4)


def test_other_data_than_planned_cannot_exceed_the_budget():
    private, optimizer, _ = calibrated()
    private.compile(optimizer, LOSS)
    with pytest.raises(BudgetExhausted):
        private.fit(X, Y, batch_size=4 * L, epochs=30, verbose=0)
    assert private.privacy.spent().epsilon <= 2.0


def built():
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model().trainable_variables)
    return optimizer


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"epsilon": -1.0}, ValueError, "epsilon"),
        ({"delta": 0.0}, ValueError, "delta"),
        ({"epochs": 0}, ValueError, "Expected epochs"),
        ({"batch_size": None}, ValueError, "Expected batch_size"),
        ({"data": make_lots("poisson", X, Y, lot_size=L), "batch_size": 5}, ValueError, "batch_size"),
        ({"data": X}, ValueError, "tuple of arrays"),
        ({"optimizer": 3}, ValueError, "Expected optimizer"),
        ({"optimizer": "adm"}, ValueError, "Received 'adm'. Did you mean 'adam'"),
        ({"optimizer": built()}, ValueError, "not used yet"),
        (
            {"optimizer": tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0, seed=1)},
            ValueError,
            "secret noise",
        ),
        (
            {"optimizer": tfdp.SIDPSGDOptimizer(
                learning_rate=0.1, l2_norm_clip=1.0, noise_multiplier=1.0, release="mu")},
            CalibrationError,
            "No noise",
        ),
        ({"max_grad_norm": 1.0}, TypeError, "Its name here is l2_norm_clip.$"),
        ({"num_microbatches": 5}, TypeError, "Pass a private optimizer that has it as the second"),
        ({"target_epsilon": 1.0}, TypeError, "Its name here is epsilon"),
        ({"noise_multiplier": 1.0}, TypeError, "It is computed from epsilon"),
        ({"enginee": "auto"}, TypeError, "Did you mean 'engine'"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        calibrated(**arguments)


def test_weights_that_have_spent_something_are_refused():
    found = calibrated()
    trained(found, epochs=1)
    with pytest.raises(ValueError, match="have spent privacy already"):
        tfdp.make_private_with_epsilon(
            found.model, keras.optimizers.SGD(0.1), (X, Y), batch_size=L, epochs=1, **BUDGET
        )


@pytest.mark.parametrize(
    "stricter", [{"epsilon": 0.5, "delta": 1e-4}, {"epsilon": 0.5, "delta": 1e-6}]
)
def test_a_budget_that_was_there_stays(stricter):
    budget = tfdp.PrivacyBudget(**stricter)
    private = tfdp.make_private(model(), budget=budget)
    found = tfdp.make_private_with_epsilon(
        private, keras.optimizers.SGD(0.1), (X, Y), batch_size=L, epochs=3, **BUDGET
    )
    assert budget in private.privacy.ledger.budgets
    with pytest.raises(BudgetExhausted):
        trained(found)
    assert private.privacy.spent(budget.delta).epsilon <= 0.5


@pytest.mark.parametrize("save", ["save", "save_weights"])
def test_the_budget_is_saved_before_the_first_step(save, tmp_path):
    private, optimizer, _ = calibrated()
    name = "a.keras" if save == "save" else "a.weights.h5"
    with pytest.raises(ValueError, match="or a budget, which are saved with a private optimizer"):
        getattr(private, save)(tmp_path / name)
    private.compile(optimizer, LOSS)
    getattr(private, save)(tmp_path / name)
    if save == "save":
        again = tfdp.make_private(keras.models.load_model(tmp_path / name))
    else:
        again = tfdp.make_private(model())
        again.load_weights(tmp_path / name)
    assert again.privacy.budget == private.privacy.budget


@pytest.mark.parametrize("name", ["sgd", "Adam"])
def test_an_optimizer_by_its_name(name):
    found = calibrated(name)
    assert isinstance(found.optimizer, type(keras.optimizers.get(name)))
    assert 1.99 < trained(found).epsilon <= 2.0


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(2)

    def call(self, inputs):
        return self.inner(inputs)


class OfDict(Subclassed):
    def call(self, inputs):
        return super().call(inputs["a"])


def unbuilt(model, data=(X, Y), **settings):
    settings = {"batch_size": L} | settings
    return tfdp.make_private_with_epsilon(
        model, keras.optimizers.SGD(0.1), data, epochs=3, **BUDGET, **settings
    )


@pytest.mark.parametrize("kind", [Subclassed, lambda: keras.Sequential([keras.layers.Dense(2)])])
def test_an_unbuilt_model_is_built_for_the_shape_of_the_data(kind):
    found = unbuilt(kind())
    assert [tuple(w.shape) for w in found.model.trainable_variables] == [(3, 2), (2,)]
    assert 1.99 < trained(found).epsilon <= 2.0


def test_layers_of_a_model_that_is_built_here_are_checked():
    layers = [keras.layers.Dense(2), keras.layers.BatchNormalization()]
    with pytest.raises(ValueError, match="BatchNormalization"):
        unbuilt(keras.Sequential(layers))


def test_an_unbuilt_model_is_built_for_lots_and_structures():
    lots = make_lots("poisson", X, Y, lot_size=L)
    found = unbuilt(keras.Sequential([keras.layers.Dense(2)]), lots, batch_size=None)
    assert [tuple(w.shape) for w in found.model.trainable_variables] == [(3, 2), (2,)]
    found = unbuilt(OfDict(), ({"a": X}, Y))
    assert [tuple(w.shape) for w in found.model.trainable_variables] == [(3, 2), (2,)]


def test_a_model_that_does_not_fit_the_data_is_refused():
    with pytest.raises(ValueError, match=r"cannot be built for inputs of shape \(None, 3\)"):
        unbuilt(keras.Sequential([keras.layers.Conv2D(2, 3)]))


@pytest.mark.parametrize(("delta", "warns"), [(1 / N, True), (0.5 / N, False)])
def test_a_delta_that_protects_nobody_is_warned_of(delta, warns, caplog):
    with caplog.at_level("WARNING"):
        calibrated(delta=delta)
    assert any("is not below 1/N" in r.getMessage() for r in caplog.records) == warns
