"""Wrong arguments of public functions are refused by tfdp itself, not by what it calls."""

import math

import numpy as np
import pytest

import tfdp
from tfdp import accounting

WRONG = {
    "-1": -1,
    "nan": math.nan,
    "None": None,
    "text": "abc",
    "2.5": 2.5,
    "[]": [],
    "object": object(),
    "matrix": np.ones((2, 2)),
}
RUN = accounting.describe(
    mechanism="dpsgd",
    sampling="poisson",
    num_examples=100,
    lot_size=10,
    steps=5,
    noise_multiplier=1.0,
)
LEDGER = accounting.Ledger()


def matrix(**options):
    return tfdp.MatrixDPSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0, **options)


# Functions with valid values of their arguments, and which of WRONG are valid as well.
CASES = [
    (
        accounting.proven,
        {"runs": RUN, "delta": 1e-5, "adjacency": "zero_out"},
        {"runs": ["[]"]},
    ),
    (accounting.Statement.of, {"runs_or_run": RUN, "delta": 1e-5}, {"runs_or_run": ["[]"]}),
    (
        accounting.max_steps,
        {"epsilon": 9.0, "delta": 1e-5, "run": RUN, "earlier": ()},
        {"epsilon": ["2.5"], "earlier": ["[]"]},
    ),
    (LEDGER.open, {"run": RUN}, {}),
    (LEDGER.record, {"run_id": LEDGER.open(RUN), "steps": 1}, {}),
    (matrix, {"strategy": "banded_toeplitz", "bands": 2, "steps": 4}, {}),
]


@pytest.mark.parametrize(("function", "correct", "right"), CASES)
def test_wrong_values_are_refused(function, correct, right):
    function(**correct)
    for name in correct:
        for kind, value in WRONG.items():
            arguments = correct | {name: value}
            if kind in right.get(name, ()):
                function(**arguments)
                continue
            with pytest.raises((ValueError, TypeError)) as error:
                function(**arguments)
            last = error.traceback[-1]
            assert "tfdp" in str(last.path) and "raise" in str(last.statement), (name, kind)
