"""`model.privacy`: one new member on a user's model, and the names that it had before."""

import warnings

import keras
import numpy as np
import pytest

import tfdp
from tfdp.training.model_privacy import EARLIER_NAMES, ModelPrivacy

X, Y = np.zeros((20, 3), "float32"), np.zeros(20, "int32")


def private(**settings):
    layers = [keras.Input((3,)), keras.layers.Dense(2)]
    model = tfdp.make_private(keras.Sequential(layers), **settings)
    model.compile(
        tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=2.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


@pytest.fixture(scope="module")
def trained():
    model = private()
    model.fit(X, Y, batch_size=5, epochs=2, verbose=0)
    return model


def test_a_private_model_has_one_new_public_member():
    plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    before = {name for name in dir(plain) if not name.startswith("_")}
    after = {name for name in dir(tfdp.make_private(plain)) if not name.startswith("_")}
    # Keras gives every model that is trained an attribute `stop_training`, which is a property here.
    assert after - before == {"privacy", "stop_training"}


@pytest.mark.parametrize("name", sorted(EARLIER_NAMES))
def test_earlier_names_work_and_warn(trained, name):
    new = getattr(trained.privacy, EARLIER_NAMES[name])
    with pytest.warns(DeprecationWarning, match=f"model.{name} is called model.privacy."):
        old = getattr(trained, name)
    if callable(old):
        assert old.__func__ is new.__func__
    elif name == "ledger":
        assert old is new
    else:
        assert old == new


def test_saving_and_copying_warn_of_nothing(trained, tmp_path):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="model.* is called model.privacy")
        trained.save(tmp_path / "model.keras")
        trained.save_weights(tmp_path / "model.weights.h5")


def test_a_member_of_ones_own_with_an_earlier_name_is_left_alone():
    class Own(keras.Model):
        ledger = "mine"

        def __init__(self):
            super().__init__()
            self.steps_left = 3

    model = tfdp.make_private(Own())
    assert (model.ledger, model.steps_left) == ("mine", 3)
    assert isinstance(model.privacy, ModelPrivacy)


def test_a_getattr_of_ones_own_still_answers():
    class Own(keras.Model):
        def __getattr__(self, name):
            if name == "answer":
                return 42
            raise AttributeError(name)

    assert tfdp.make_private(Own()).answer == 42


def test_a_member_called_privacy_is_refused():
    class Own(keras.Model):
        privacy = "mine"

    with pytest.raises(ValueError, match="attribute 'privacy' of its own"):
        tfdp.make_private(Own())


def test_names_that_nobody_has_are_attribute_errors(trained):
    with pytest.raises(AttributeError, match="no attribute 'privacy_spend'"):
        trained.privacy_spend  # noqa: B018


def test_delta_is_that_of_the_budget_unless_given():
    model = private(budget=tfdp.PrivacyBudget(50.0, 1e-2))
    model.fit(X, Y, batch_size=5, verbose=0)
    assert model.privacy.spent() == model.privacy.spent(delta=1e-2)
    assert model.privacy.spent(delta=1e-4).epsilon > model.privacy.spent().epsilon
    assert model.privacy.statement() == model.privacy.statement(delta=1e-2)


def test_no_delta_and_no_budget_are_refused(trained):
    for ask in (trained.privacy.spent, trained.privacy.statement):
        with pytest.raises(ValueError, match="Expected delta, such as delta=1e-5"):
            ask()


def test_the_budget_is_set_on_the_weights():
    model = private()
    assert model.privacy.budget is None
    model.privacy.budget = tfdp.PrivacyBudget(1.0, 1e-3)
    assert model.privacy.budget == model.privacy.ledger.budget == tfdp.PrivacyBudget(1.0, 1e-3)


def test_the_release_is_the_export(trained, tmp_path):
    trained.privacy.release(tmp_path / "release.keras")
    released = keras.models.load_model(tmp_path / "release.keras")
    np.testing.assert_array_equal(released.predict(X, verbose=0), trained.predict(X, verbose=0))
    assert type(released) is keras.Sequential and not hasattr(released, "privacy")


def test_configure_takes_the_settings_of_make_private():
    model = private()
    assert model.privacy.configure(physical_batch_size=2) is model
    assert model._privacy.physical_batch_size == 2


def test_it_says_what_it_is(trained):
    assert repr(trained.privacy) == f"<privacy of model '{trained.name}': Ledger(1 runs, 8 steps)>"
