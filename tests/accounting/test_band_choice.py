"""The chosen number of bands is the best power of two, and never worse than DP-SGD."""

import pytest

from tests.accounting.varying import vary
from tfdp.accounting import CalibrationError, best_bands, describe, noise_for, proven, strategy
from tfdp.accounting.strategies import losses

DELTA = 1e-5
RUN = describe(
    mechanism="dpsgd",
    num_examples=1003,
    lot_size=50,
    steps=100,
    sampling="poisson",
    noise_multiplier=1.0,
)


def candidate(bands, objective="mean"):
    return vary(
        RUN, mechanism="matrix", sampling="cyclic_poisson", groups=bands,
        num_examples=1003 - 1003 % bands,
        strategy=strategy("banded_toeplitz", RUN.steps, bands, objective),
    )  # fmt: skip


@pytest.mark.parametrize(("objective", "which"), [("max", 1)])
def test_it_is_the_best_of_all(objective, which):
    errors = {}
    for bands in (1, 2, 4, 8, 16):  # 32 groups of 31 examples give no lots of 50
        run = candidate(bands, objective)
        noise = noise_for(4.0, DELTA, run)
        errors[bands] = noise * losses(run.mechanism.strategy.first(RUN.steps), RUN.steps)[which]
    found = best_bands(4.0, DELTA, RUN, objective=objective)
    assert found.bands == min(errors, key=errors.get)
    assert found.error == pytest.approx(errors[found.bands])
    assert found.error < errors[1]


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_plain_poisson_lots_are_no_better(epsilon):
    least = best_bands(epsilon, DELTA, RUN, most=4).error
    for bands in (2, 4):
        run = candidate(bands)
        noise = noise_for(epsilon, DELTA, vary(run, groups=1))
        assert noise * losses(run.mechanism.strategy.first(RUN.steps), RUN.steps)[0] > least


def test_its_noise_meets_the_budget():
    found = best_bands(2.0, DELTA, RUN, most=2)
    chosen = vary(candidate(found.bands), noise_multiplier=found.noise_multiplier)
    assert found.bands == 2
    assert 1.99 < proven(chosen, DELTA).epsilon <= 2.0
    plan = chosen.mechanism.strategy
    assert found.error == pytest.approx(
        found.noise_multiplier * losses(plan.first(RUN.steps), RUN.steps)[0]
    )


def test_little_budget_wants_few_bands():
    tight, loose = (best_bands(epsilon, DELTA, RUN, most=4).bands for epsilon in (0.05, 8.0))
    assert tight < loose
    assert best_bands(8.0, DELTA, vary(RUN, steps=1)).bands == 1


def test_a_budget_that_no_noise_meets_is_refused():
    with pytest.raises(CalibrationError, match="bands"):
        best_bands(1.0, DELTA, vary(RUN, batch_statistics=True))
