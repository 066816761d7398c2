"""`model.privacy`: one new member on a user's model."""

import keras
import numpy as np
import pytest
from helpers import data

import tfdp
from tests.accounting.varying import vary
from tests.rounding import OF_EPSILON
from tests.training.small import small, train
from tfdp.accounting import proven
from tfdp.accounting.guarantee import format_epsilon
from tfdp.training.model_privacy import ModelPrivacy

DELTA = 1e-5


@pytest.fixture(scope="module")
def trained():
    model = small()
    train(model)
    return model


def test_members_of_ones_own_are_left_alone():
    class Own(keras.Model):
        ledger = "mine"

        def __getattr__(self, name):
            if name == "answer":
                return 42
            raise AttributeError(name)

    model = tfdp.make_private(Own())
    assert (model.ledger, model.answer) == ("mine", 42)
    assert isinstance(model.privacy, ModelPrivacy)


def test_a_member_called_privacy_is_refused():
    class Own(keras.Model):
        privacy = "mine"

    with pytest.raises(ValueError, match="'privacy'"):
        tfdp.make_private(Own())


def test_the_statement_names_both_guarantees(trained):
    text = trained.privacy.statement(DELTA).lower()
    assert "proven" in text and "claimed" in text
    assert set(trained.privacy.diagnostics()) >= {"fraction_clipped", "median_gradient_norm"}
    run = trained.privacy.current_run
    assert trained.privacy.spent(DELTA).epsilon == proven(run, DELTA).epsilon


def test_a_guarantee_may_be_for_users(trained):
    run = vary(trained.privacy.current_run, max_examples_per_user=3)
    spent = trained.privacy.spent(DELTA, "proven", "replace_one", max_examples_per_user=3)
    assert spent == proven(run, DELTA, "replace_one")
    text = trained.privacy.statement(DELTA, "replace_one", max_examples_per_user=3, full=True)
    assert format_epsilon(spent.epsilon) in text and "more than 3 examples" in text


def test_the_whole_trade_off_of_tests(trained):
    fprs, fnrs = trained.privacy.curve(DELTA)
    assert (fprs[0], fprs[-1], fnrs[-1]) == (0, 1, 0)
    spent = trained.privacy.spent(DELTA)
    assert max(1 - fprs - fnrs) == pytest.approx(spent.advantage, rel=OF_EPSILON)
    users = trained.privacy.curve(DELTA, max_examples_per_user=3)
    assert max(1 - users[0] - users[1]) > spent.advantage


def test_delta_is_that_of_the_budget_unless_given(trained):
    model = small(budget=tfdp.PrivacyBudget(50.0, 1e-2))
    train(model)
    assert model.privacy.spent() == model.privacy.spent(delta=1e-2)
    assert model.privacy.spent(delta=1e-4).epsilon > model.privacy.spent().epsilon
    for ask in (trained.privacy.spent, trained.privacy.statement):
        with pytest.raises(ValueError, match="delta"):
            ask()


def test_the_release_is_the_export(trained, tmp_path):
    trained.privacy.release(tmp_path / "release.keras")
    released = keras.models.load_model(tmp_path / "release.keras")
    np.testing.assert_array_equal(released(data(8)[0]), trained(data(8)[0]))
    assert type(released) is keras.Sequential and not hasattr(released, "privacy")
