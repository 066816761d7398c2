"""tfdp's accounting agrees with the accountants of TensorFlow Privacy and Opacus.

The numbers were computed with tensorflow-privacy 0.9.0
(`compute_dp_sgd_privacy_lib.compute_dp_sgd_privacy`, on dp-accounting 0.4.3) and Opacus 1.6.0
(`RDPAccountant`, `PRVAccountant` and `accountants.analysis.rdp.compute_rdp`), all for Poisson
sampling and one record added or removed.
"""

import dataclasses

import pytest

from tfdp.accounting import Run, claimed, proven


@dataclasses.dataclass(frozen=True)
class Case:
    """A training, and its epsilon by each accountant.

    Attributes:
        tf_privacy_rdp: Rényi, its orders, conversion of Canonne et al. 2020.
        opacus_rdp: Rényi, its orders, conversion of Balle et al. 2020.
        opacus_prv: numerical composition; an upper bound, up to 1% above the truth by default.
        classic: Opacus' Rényi divergences at the orders of TensorFlow Privacy in 2020, converted
            the classic way (Mironov 2017), as TensorFlow Privacy did then.
    """

    num_examples: int
    lot_size: int
    noise_multiplier: float
    steps: int
    delta: float
    tf_privacy_rdp: float
    opacus_rdp: float
    opacus_prv: float
    classic: float

    def run(self):
        return Run(
            mechanism="dpsgd",
            num_examples=self.num_examples,
            lot_size=self.lot_size,
            steps=self.steps,
            sampling="poisson",
            noise_multiplier=self.noise_multiplier,
            nominal=True,
        )


CASES = (
    Case(60000, 256, 1.1, 14063, 1e-5, 2.5970795, 2.5966555, 2.3918365, 3.0092112),
    Case(60000, 256, 1.3, 3516, 1e-5, 0.9545640, 0.9545640, 0.8746071, 1.1922644),
    Case(50000, 512, 1.0, 2930, 1e-6, 4.0213357, 3.9975475, 3.6864597, 4.5073351),
    Case(1797, 64, 2.0, 281, 1e-4, 1.2039025, 1.2043847, 1.0781562, 1.5173987),
)
EACH = pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.num_examples}-{c.steps}")


@EACH
def test_claimed_is_the_accountant_of_2020(case):
    assert claimed(case.run(), case.delta).epsilon == pytest.approx(case.classic, rel=1e-5)


@EACH
def test_proven_is_at_most_the_numerical_accountant(case):
    epsilon = proven(case.run(), case.delta, "add_or_remove_one").epsilon
    assert epsilon <= case.opacus_prv * (1 + 1e-3)
    # Both are upper bounds of the same epsilon; Opacus' bound has an error of 0.01.
    assert epsilon == pytest.approx(case.opacus_prv, abs=0.012)


@EACH
def test_proven_is_below_every_renyi_accountant(case):
    epsilon = proven(case.run(), case.delta, "add_or_remove_one").epsilon
    assert epsilon < min(case.tf_privacy_rdp, case.opacus_rdp, case.classic)


@EACH
def test_renyi_bound(case):
    """tfdp takes the best of more orders, so its bound is at most theirs, and not far below."""
    bound = proven(case.run(), case.delta).details["epsilon_rdp"]
    assert bound <= min(case.tf_privacy_rdp, case.opacus_rdp) * (1 + 1e-4)
    assert bound == pytest.approx(case.tf_privacy_rdp, rel=1e-2)
