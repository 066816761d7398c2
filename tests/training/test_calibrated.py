"""`make_private_with_epsilon`: noise for the planned epochs, and a budget that holds beyond them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import LOSS

import tfdp
from tfdp.accounting import BudgetExhausted, CalibrationError, noise_for
from tfdp.data import make_lots

N, L = 40, 20
X = np.random.default_rng(0).normal(size=(N, 3)).astype("float32")
Y = (X[:, 0] > 0).astype("int32")
BUDGET = {"epsilon": 2.0, "delta": 1e-4}


def model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


def calibrated(optimizer=None, data=(X, Y), network=None, **settings):
    if isinstance(data, tuple):
        settings = {"batch_size": L} | settings
    optimizer = optimizer or keras.optimizers.SGD(0.1)
    network = model() if network is None else network
    settings = BUDGET | {"epochs": 1, "engine": "loop"} | settings
    return tfdp.make_private_with_epsilon(network, optimizer, data, **settings)


def trained(found, epochs=1):
    private, optimizer, data = found
    private.compile(optimizer, LOSS, run_eagerly=True)
    private.fit(data, epochs=epochs, verbose=0)
    return private.privacy.spent()


def test_the_planned_epochs_spend_the_budget_and_no_more():
    found = calibrated(data=X, y=Y, batch_size=L, sampling="poisson", epochs=2)
    assert 1.99 < trained(found, epochs=2).epsilon <= 2.0
    with pytest.raises(BudgetExhausted):
        trained(found)


@pytest.mark.parametrize(
    ("kind", "adjacency"), [("proven", "replace_one"), ("claimed", "zero_out")]
)
def test_the_guarantee_that_is_asked_for(kind, adjacency):
    found = calibrated(kind=kind, adjacency=adjacency)
    trained(found)
    spent = found.model.privacy.spent(1e-4, kind, adjacency)
    assert 1.99 < spent.epsilon <= 2.0
    assert found.model.privacy.budget == tfdp.PrivacyBudget(2.0, 1e-4, kind, adjacency)
    with pytest.raises(BudgetExhausted):
        trained(found)


MECHANISMS = {
    "adam": lambda: keras.optimizers.Adam(1e-3),
    "matrix": lambda: tfdp.MatrixDPSGDOptimizer(
        learning_rate=0.1, l2_norm_clip=1.0, noise_multiplier=1.0, bands=2, steps=2
    ),
}


@pytest.mark.parametrize("kind", MECHANISMS)
def test_other_mechanisms(kind):
    optimizer = MECHANISMS[kind]()
    # Turns of two groups, so that an example is in every second lot at most.
    lots = make_lots("cyclic_poisson", X, Y, lot_size=L, groups=2)
    found = calibrated(optimizer, lots if kind == "matrix" else (X, Y))
    assert 1.99 < trained(found).epsilon <= 2.0
    assert not optimizer.built  # the one that was given is not changed


def test_the_configuration_is_kept_and_the_noise_is_that_of_noise_for():
    given = tfdp.DPKerasSGDOptimizer(l2_norm_clip=0.5, noise_multiplier=7.0, momentum=0.9)
    found = calibrated(given).optimizer
    assert found.get_config() | {"noise_multiplier": 7.0} == given.get_config()
    assert calibrated(given, l2_norm_clip=2.0).optimizer.l2_norm_clip == 2.0
    assert isinstance(calibrated("Adam").optimizer, keras.optimizers.Adam)
    drawn = {"sampling": "poisson", "num_examples": N, "lot_size": L, "steps": 2}
    run = tfdp.accounting.describe("dpsgd", noise_multiplier=1.0, **drawn)
    assert found.noise_multiplier == pytest.approx(noise_for(2.0, 1e-4, run))


@pytest.mark.parametrize(
    "data",
    [
        tf.data.Dataset.from_tensor_slices((X, Y)).batch(L, drop_remainder=True),
        make_lots("cyclic", X, Y, lot_size=L).as_dataset(),
        (X, Y, np.ones(N, "float32")),
        tfdp.data.as_source((X, Y)),
        tfdp.data.OncePerEpoch(tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(N).batch(L)),
    ],
    ids=["dataset", "dataset of lots", "weighted arrays", "source", "once per epoch"],
)
def test_other_data(data):
    size = {"batch_size": L} if isinstance(data, tfdp.data.Source) else {}
    assert 1.98 < trained(calibrated(data=data, **size)).epsilon <= 2.0


@pytest.mark.parametrize("declared", [False, True])
def test_a_cached_dataset_of_unknown_batches_keeps_all_of_them(declared):
    """TensorFlow takes a cache that was begun and dropped for the whole of the data."""

    def batches():
        for first in range(0, N, L):
            yield X[first : first + L], Y[first : first + L]

    types = (tf.TensorSpec((None, 3), tf.float32), tf.TensorSpec((None,), tf.int32))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=types)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(N // L)).cache()
    found = calibrated(data=tfdp.data.OncePerEpoch(dataset) if declared else dataset, epochs=2)
    assert 1.98 < trained(found, epochs=2).epsilon <= 2.0
    assert int(found.optimizer.iterations) == found.model.privacy.steps_taken == 4


def built():
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model().trainable_variables)
    return optimizer


def released_means():
    return tfdp.SIDPSGDOptimizer(
        learning_rate=0.1, l2_norm_clip=1.0, noise_multiplier=1.0, release="mu"
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"epsilon": -1.0}, ValueError, "epsilon"),
        ({"epochs": 0}, ValueError, "epochs"),
        ({"batch_size": None}, ValueError, "batch_size"),
        (
            {"data": make_lots("poisson", X, Y, lot_size=L), "batch_size": 4},
            ValueError,
            "batch_size",
        ),
        ({"data": iter([(X[:4], Y[:4])]), "batch_size": None}, ValueError, "tf.data.Dataset"),
        ({"optimizer": "sdg"}, ValueError, "sdg"),
        ({"optimizer": built()}, ValueError, "unused optimizer"),
        ({"optimizer": released_means()}, CalibrationError, "noise"),
        ({"max_grad_norm": 1.0}, TypeError, "max_grad_norm"),
        ({"enginee": "auto"}, TypeError, "'enginee'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        calibrated(**arguments)


def test_weights_that_have_spent_something_are_refused():
    found = calibrated()
    trained(found)
    with pytest.raises(ValueError, match="spent"):
        calibrated(network=found.model)


def test_a_budget_that_was_there_stays():
    budget = tfdp.PrivacyBudget(epsilon=0.5, delta=1e-6)
    found = calibrated(network=tfdp.make_private(model(), budget=budget))
    assert budget in found.model.privacy.ledger.budgets
    with pytest.raises(BudgetExhausted):
        trained(found)
    assert found.model.privacy.spent(budget.delta).epsilon <= 0.5


@pytest.mark.parametrize("save", ["save", "save_weights"])
def test_the_budget_is_saved_before_the_first_step(save, tmp_path):
    private, _, _ = calibrated()
    path = tmp_path / ("a.keras" if save == "save" else "a.weights.h5")
    getattr(private, save)(path)
    if save == "save":
        again = keras.models.load_model(path)
    else:
        again = tfdp.make_private(model())
        again.load_weights(path)
    assert again.privacy.budget == private.privacy.budget


class OfDict(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(2)

    def call(self, inputs):
        return self.inner(inputs["a"])


def unbuilt(*layers):
    return keras.Sequential([*layers, keras.layers.Dense(2)])


def test_an_unbuilt_model_is_built_for_the_shape_of_the_data():
    lots = make_lots("poisson", X, Y, lot_size=L)
    for network, data in ((unbuilt(), (X, Y)), (unbuilt(), lots), (OfDict(), ({"a": X}, Y))):
        found = calibrated(network=network, data=data)
        assert [tuple(w.shape) for w in found.model.trainable_variables] == [(3, 2), (2,)]
    with pytest.raises(ValueError, match="BatchNormalization"):
        calibrated(network=unbuilt(keras.layers.BatchNormalization()))
    with pytest.raises(ValueError):
        calibrated(network=unbuilt(keras.layers.Conv2D(2, 3)))


@pytest.mark.parametrize(("delta", "warns"), [(1 / N, True), (0.5 / N, False)])
def test_a_delta_that_protects_nobody_is_warned_of(delta, warns, caplog):
    with caplog.at_level("WARNING"):
        trained(calibrated(delta=delta))
    assert any("1/N" in r.getMessage() for r in caplog.records) == warns


@pytest.mark.parametrize(("size", "warns"), [({}, True), ({"batch_size": L}, False)])
def test_lots_of_the_default_size_are_warned_of(size, warns, caplog):
    private, optimizer, _ = calibrated()
    private.compile(optimizer, LOSS, run_eagerly=True)
    private.fit(X, Y, verbose=0, **size)
    assert ("the default batch_size" in caplog.text) == warns


def test_the_price_of_batches_is_told_in_noise(caplog):
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4, drop_remainder=True)
    noise = calibrated(data=dataset).optimizer.noise_multiplier
    said = caplog.text
    lots = make_lots("poisson", dataset.unbatch(), lot_size=4)
    less = calibrated(data=lots).optimizer.noise_multiplier
    assert f"is {noise:.3g}, because" in said and f"It is {less:.3g} for lots" in said
    assert less < noise
