"""Settings become arguments of optimizers by name, and no setting is silently ignored."""

import inspect

import keras
import numpy as np
import pytest

from tfdp import data, make_private, optimizers
from tfdp.accounting import PrivacyBudget
from tfdp.accounting.composition import guarantee_of_all
from tfdp.accounting.mechanisms import mechanism_class
from tfdp.experiments import Experiment
from tfdp.experiments.construction import budget, make_optimizer, plan


def experiment(**changes):
    settings = dict(
        mechanism="dpsgd",
        dataset="digits",
        model="mlp",
        batch_size=4,
        learning_rate=0.5,
        epsilon=2.0,
        momentum=0.5,
        l2_norm_clip=0.25,
    )
    return Experiment(**settings | changes)


def plain(**changes):
    return Experiment(mechanism="none", batch_size=4, **changes)


def model():
    return make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)]))


@pytest.fixture(scope="module")
def lots():
    return data.make_lots("poisson", np.zeros((8, 2), "float32"), np.zeros(8, "int32"), lot_size=4)


def test_settings_reach_the_parameters_of_their_names(lots):
    made = make_optimizer(experiment(clipping="automatic", microbatches=2), lots, 7, 1.5)
    assert isinstance(made, optimizers.DPKerasSGDOptimizer)
    assert (made.l2_norm_clip, made.noise_multiplier, made.momentum) == (0.25, 1.5, 0.5)
    assert (made.clipping, made.num_microbatches) == ("automatic", 2)
    assert float(made.learning_rate) == 0.5


def test_the_privacy_epsilon_is_not_adams(lots):
    made = make_optimizer(experiment(optimizer="adam", momentum=0.0), lots, 7, 1.0)
    assert made.epsilon == keras.optimizers.Adam().epsilon


def test_without_privacy_the_optimizer_is_plain(lots):
    made = make_optimizer(plain(momentum=0.5), lots, 7, None)
    assert type(made) is keras.optimizers.SGD
    assert made.momentum == 0.5


def test_si_dpsgd_takes_another_update_rule_for_its_means(lots):
    made = make_optimizer(
        experiment(mechanism="si_dpsgd", optimizer="adam", momentum=0.0, guarantee="claimed"),
        lots,
        7,
        1.0,
    )
    assert "adam on the means" in made.mechanism_fields([])["optimizer"].lower()


@pytest.mark.parametrize("mechanism", optimizers.MECHANISMS)
def test_a_mechanism_names_the_settings_that_its_optimizer_takes(mechanism):
    """Otherwise a setting would be refused that has an effect, or be accepted without one."""
    kind = mechanism_class(mechanism)
    taken = inspect.signature(optimizers.MECHANISMS[mechanism](keras.optimizers.SGD)).parameters
    # What becomes of the noise from epoch to epoch reaches the optimizer as a table of the noise.
    assert set(kind.settings) - {"noise_decay"} <= {*taken} & {*vars(plain())}
    assert "noise_decay" not in kind.settings or "noise_multiplier" in kind.schedules
    made = optimizers.MECHANISMS[mechanism](keras.optimizers.Adam)
    if kind.update_rules == "any":
        assert issubclass(made, keras.optimizers.Adam)
    else:
        assert not issubclass(made, keras.optimizers.Adam)
        assert ("update_rule" in taken) == (kind.update_rules == "linear")


@pytest.mark.parametrize("mechanism", ["dp_dropout", "sgld"])
def test_langevin_steps_from_settings(lots, mechanism):
    """The learning rate falls from epoch to epoch; an epoch has two steps."""
    settings = dict(mechanism=mechanism, momentum=0.0, composition="ac", clipping="each_layer")
    made = make_optimizer(experiment(learning_rate_exponent=2.0, **settings), lots, 7, 3.0)
    rates = [float(made._learning_rate(step)) for step in range(4)]
    np.testing.assert_allclose(rates, [0.5, 0.5, 0.125, 0.125])
    run = plan(experiment(noise_multiplier=3.0, epsilon=None, **settings), lots, 5, model())
    assert (run.mechanism.name, run.mechanism.composition) == (mechanism, "ac")
    assert run.mechanism.noise_multiplier == 3.0
    assert getattr(made, "num_examples", 8) == 8


def test_the_plan_is_what_the_optimizer_will_account(lots):
    noise = {"epsilon": None, "noise_multiplier": 3.0}
    made = experiment(mechanism="si_dpsgd", learning_rate_decay=0.5, **noise)
    run = plan(made, lots, 5, model())
    assert (run.mechanism.name, run.steps) == ("si_dpsgd", 5)
    assert (run.sampling.num_examples, run.sampling.lot_size) == (8, 4)
    assert run.mechanism.learning_rates == (0.5, 0.5, 0.25, 0.25, 0.125)
    assert (run.mechanism.noise_multiplier, run.mechanism.momentum) == (3.0, 0.5)


def test_the_plan_knows_of_microbatches_and_adaptive_clipping():
    x, y = np.zeros((8, 2), "float32"), np.zeros(8, "int32")
    pairs = data.make_lots("poisson", x, y, lot_size=4, microbatch_size=2)
    run = plan(experiment(microbatches=2, clipping="adaptive"), pairs, 5, model())
    assert run.contribution.microbatch_size == 2 and run.contribution.adaptive_clipping


@pytest.mark.parametrize(
    ("guarantee", "adjacency"), [("proven", "replace_one"), ("claimed", "zero_out")]
)
def test_noise_and_budget_are_for_the_guarantee_that_was_asked_for(guarantee, adjacency, lots):
    made = experiment(guarantee=guarantee, adjacency=adjacency, delta=1e-3)
    spent = guarantee_of_all(guarantee, [plan(made, lots, 5, model())], 1e-3, adjacency)
    assert 1.99 < spent.epsilon <= 2.0
    assert budget(made) == PrivacyBudget(2.0, 1e-3, guarantee, adjacency)


def test_public_data_is_for_private_mechanisms_unless_it_is_named():
    assert not plain(normalization="batch").takes_public_data
    named = plain(normalization="batch", public_data="strokes")
    assert named.takes_public_data and experiment(normalization="batch").takes_public_data
