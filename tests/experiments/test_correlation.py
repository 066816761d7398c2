"""Settings of correlated noise that are left open are completed, or the user is asked for them."""

import pytest
from helpers import private

from tests.accounting.varying import vary
from tfdp.data import make_lots
from tfdp.experiments import Experiment
from tfdp.experiments.construction import complete, make_optimizer, plan


def experiment(**changes):
    settings = dict(
        mechanism="matrix",
        dataset="digits",
        model="mlp",
        batch_size=50,
        learning_rate=0.5,
        epsilon=4.0,
        sampling="cyclic_poisson",
        steps=100,
    )
    return Experiment(**settings | changes)


def found(**changes):
    made = complete(experiment(**changes), 2000)
    return made.strategy, made.bands, made.groups


def test_other_mechanisms_stay_as_they_are():
    for mechanism in ("dpsgd", "si_dpsgd"):
        made = experiment(mechanism=mechanism, sampling="poisson")
        assert complete(made, 2000) is made


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"groups": 8}, ("banded_toeplitz", 8, 8)),
        ({"groups": 8, "bands": 4}, ("banded_toeplitz", 4, 8)),
        ({"groups": 8, "steps": 5}, ("banded_toeplitz", 5, 8)),
        ({"groups": 8, "strategy": "sqrt_toeplitz"}, ("sqrt_toeplitz", 8, 8)),
        ({"sampling": "cyclic"}, ("banded_toeplitz", 40, None)),
        ({"sampling": "cyclic", "steps": None, "epochs": 0.5}, ("banded_toeplitz", 20, None)),
        ({"sampling": "cyclic", "strategy": "prefix_sum"}, ("prefix_sum", None, None)),
        ({"sampling": "shuffle", "bands": 3}, ("banded_toeplitz", 3, None)),
    ],
)
def test_defaults(changes, expected):
    assert found(**changes) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": None, "noise_multiplier": 1.0},
        {"strategy": "sqrt_toeplitz"},
        {"sampling": "poisson"},
        {"sampling": "shuffle"},
    ],
)
def test_what_has_no_default_is_asked_for(changes):
    with pytest.raises(ValueError, match=r"--(bands|groups)"):
        found(**changes)


def test_the_plan_is_what_runs():
    made = complete(experiment(groups=4, batch_size=3, steps=5), 24)
    x = [[0.0] * 4] * 25
    lots = make_lots("cyclic_poisson", x, [0] * 25, lot_size=3, groups=4)
    model = private(make_optimizer(made, lots, 5, 2.0))
    planned = plan(made, lots, 5, model)
    assert (
        planned.sampling.groups,
        planned.sampling.num_examples,
        planned.mechanism.strategy.bands,
    ) == (4, 24, 4)
    model.fit(lots, steps_per_epoch=5, verbose=0)
    (run,) = model.privacy.ledger.runs
    assert run == vary(planned, noise_multiplier=2.0, steps=5)
