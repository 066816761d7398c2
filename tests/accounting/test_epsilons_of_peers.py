"""Epsilons and noise multipliers that Opacus, TensorFlow Privacy and Microsoft's accountant compute.

Golden values: pytorch/opacus at commit 4d0ebc84 (after version 1.5.4), below `opacus/tests/`, and
tensorflow/privacy at commit 03035d5d (after 0.9.0), below `tensorflow_privacy/privacy/`; each table
names the file and the test that it was read from. All are for Poisson sampling and one record added or
removed, if not said otherwise.
"""

import dataclasses
import math

import pytest

import tfdp
from tfdp.accounting import Run, claimed, describe, noise_for, proven
from tfdp.accounting.numerics.privacy_loss import ORDERS, rdp_to_epsilon
from tfdp.accounting.numerics.subsampled import renyi_divergences
from tfdp.accounting.proofs import analyse


def poisson(n, lot, noise, steps):
    return describe(
        mechanism="dpsgd", sampling="poisson", num_examples=n, lot_size=lot, nominal=True,
        noise_multiplier=noise, steps=steps,
    )  # fmt: skip


# ------------------------------------------------------------------ computed with the packages


def by_renyi(run, delta):
    """Epsilon by the Rényi divergences that decide where delta is tiny."""
    (loss,) = analyse(run, delta, "zero_out").losses
    divergences, left_out = renyi_divergences(loss, ORDERS)
    return rdp_to_epsilon(divergences, delta - left_out)[0]


@dataclasses.dataclass(frozen=True)
class Case:
    """A training, and its epsilon by each accountant.

    tensorflow-privacy 0.9.0 (`compute_dp_sgd_privacy_lib.compute_dp_sgd_privacy`) on dp-accounting
    0.4.3, and Opacus 1.6.0.

    Attributes:
        tf_privacy_rdp: Rényi, its orders, conversion of Canonne et al. 2020.
        opacus_rdp: Rényi, its orders, conversion of Balle et al. 2020.
        opacus_prv: numerical composition; an upper bound, up to 1% above the truth by default.
        classic: Opacus' Rényi divergences at the orders of TensorFlow Privacy in 2020, converted
            the classic way (Mironov 2017), as TensorFlow Privacy did then.
    """

    run: Run
    delta: float
    tf_privacy_rdp: float
    opacus_rdp: float
    opacus_prv: float
    classic: float


CASES = (
    Case(poisson(60000, 256, 1.1, 14063), 1e-5, 2.5970795, 2.5966555, 2.3918365, 3.0092112),
    Case(poisson(60000, 256, 1.3, 3516), 1e-5, 0.9545640, 0.9545640, 0.8746071, 1.1922644),
    Case(poisson(50000, 512, 1.0, 2930), 1e-6, 4.0213357, 3.9975475, 3.6864597, 4.5073351),
    Case(poisson(1797, 64, 2.0, 281), 1e-4, 1.2039025, 1.2043847, 1.0781562, 1.5173987),
)


@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c.run.sampling.num_examples}-{c.run.steps}"
)
def test_every_accountant(case):
    found = proven(case.run, case.delta, "add_or_remove_one")
    # Both are upper bounds of the same epsilon; Opacus' bound has an error of 0.01.
    assert case.opacus_prv - 0.012 <= found.epsilon <= case.opacus_prv * (1 + 1e-3)
    assert found.epsilon < min(case.tf_privacy_rdp, case.opacus_rdp, case.classic)
    # tfdp takes the best of more orders, so its Rényi bound is at most theirs, and not far below.
    bound = by_renyi(case.run, case.delta)
    assert bound <= min(case.tf_privacy_rdp, case.opacus_rdp) * (1 + 1e-3)
    assert bound == pytest.approx(case.tf_privacy_rdp, rel=1e-2)
    assert claimed(case.run, case.delta).epsilon == pytest.approx(case.classic, rel=1e-5)


# ------------------------------------------------------------------ Opacus


# accountants_test.py: noise 1.5, rate 0.04, 90 epochs, delta 1e-5.
BY_RDP, BY_PRV, BY_GDP = 7.32911117143, 6.777395712150674, 6.59


def test_epsilon_of_90_epochs():
    """test_rdp_accountant, test_prv_accountant, test_gdp_accountant.

    The proven epsilon is the numerical one, below the Rényi bound. GDP's is a limit theorem and no
    bound: it is below the proven one.
    """
    found = proven(poisson(10_000, 400, 1.5, 2250), 1e-5, "add_or_remove_one")
    assert BY_GDP < found.epsilon < BY_RDP
    run = poisson(10_000, 400, 1.5, 2250)
    assert by_renyi(run, 1e-5) == pytest.approx(BY_RDP, rel=1e-3)
    shorter = proven(poisson(10_000, 400, 1.5, 2249), 1e-5, "add_or_remove_one").epsilon
    assert BY_PRV - 0.012 <= shorter <= BY_PRV + 1e-3


def test_noise_for_epsilon_8():
    """accountants_test.py, test_get_noise_multiplier_...: 1.416 by Rényi divergences, 1.34765625."""
    found = noise_for(8.0, 1e-5, poisson(10_000, 400, 1.0, 2250), adjacency="add_or_remove_one")
    assert found < 1.416
    # Opacus stops once epsilon is within 0.01, and its PRV bound has an error of 0.01.
    assert 1.34765625 * 0.995 <= found <= 1.34765625 * 1.001


# prv_accountant.py, msr_values, computed there by Microsoft's prv_accountant: noise, rate, steps and
# epsilon at delta 1e-6.
MICROSOFT = [
    (0.8, 0.001, 100, 0.27040336), (3.0, 0.001, 100, 0.02152009), (0.8, 0.05, 100, 6.74105194),
    (3.0, 0.05, 100, 0.76793379), (0.8, 0.2, 100, 24.33366418), (3.0, 0.2, 100, 3.38122051),
    (2.0, 0.001, 1000, 0.07121878), (1.5, 0.05, 1000, 6.20996925), (0.8, 0.001, 20000, 1.29600926),
    (3.0, 0.05, 20000, 13.96111470), (1.5, 0.001, 50000, 0.70421838),
    (2.0, 0.05, 50000, 45.23699586),
]  # fmt: skip


@pytest.mark.parametrize(("noise", "q", "steps", "expected"), MICROSOFT)
def test_values_of_microsoft(noise, q, steps, expected):
    """Theirs adds 0.01 to epsilon and leaves a thousandth of delta out; ours only rounds up."""
    run = poisson(10_000, round(q * 10_000), noise, steps)
    found = proven(run, 1e-6, "add_or_remove_one").epsilon
    assert expected * (1 - 4e-5) - 0.0104 <= found < expected


# ------------------------------------------------------------------ TensorFlow Privacy


# analysis/compute_dp_sgd_privacy_test.py, test_compute_dp_sgd_privacy: epsilon by Rényi divergences.
BY_RENYI = [
    (60000, 150, 1.3, 15, 1e-5, 0.7242234026109595),
    (100000, 100, 1.0, 30, 1e-7, 1.4154988495444842),
    (100000000, 1024, 0.1, 10, 1e-7, 5907982.3113984),
]


@pytest.mark.parametrize(("n", "lot", "noise", "epochs", "delta", "expected"), BY_RENYI)
def test_epsilon_of_poisson_lots(n, lot, noise, epochs, delta, expected):
    """The proven epsilon is at most theirs, which is a Rényi bound; ours is close to it."""
    epsilon, _ = tfdp.compute_dp_sgd_privacy(n, lot, noise, epochs, delta)
    assert epsilon <= expected * (1 + 1e-6)
    if expected < 100:
        run = poisson(n, lot, noise, math.ceil(epochs * n / lot))
        assert expected * 0.9 <= by_renyi(run, delta) <= expected * (1 + 1e-3)


# test_compute_dp_sgd_example_privacy: 1.2 epochs, noise multiplier 0.7, delta 1e-5: sampling, size of
# a microbatch, epsilon by privacy loss distributions and by Rényi divergences.
EXAMPLES = [
    ("cyclic", 1, 10.1224946, 10.8602036),
    ("cyclic", 2, 24.7160779, 26.2880374),
    ("poisson", 1, 2.4612381, 3.2392676),
]


@pytest.mark.parametrize(("sampling", "microbatch_size", "by_pld", "by_rdp"), EXAMPLES)
def test_epsilon_of_an_example(sampling, microbatch_size, by_pld, by_rdp):
    """1.2 epochs are two participations of an example, or 120 steps of probability 0.01."""
    run = describe(
        mechanism="dpsgd", sampling=sampling, num_examples=1000, lot_size=10,
        steps=200 if sampling == "cyclic" else 120, noise_multiplier=0.7,
        microbatch_size=microbatch_size,
    )  # fmt: skip
    found = proven(run, 1e-5).epsilon
    assert found == pytest.approx(by_pld, rel=1e-4)
    assert found < by_rdp
