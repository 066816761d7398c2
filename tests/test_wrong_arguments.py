"""Wrong arguments of public functions get a sentence of ours: what was expected, and what to do."""

import math

import keras
import numpy as np
import pytest

import tfdp
from tfdp import accounting, data
from tfdp.accounting import strategies

WRONG = {
    "0": 0,
    "-1": -1,
    "nan": math.nan,
    "inf": math.inf,
    "None": None,
    "text": "abc",
    "function": lambda: 0.1,
    "2.5": 2.5,
    "[]": [],
    "True": True,
    "object": object(),
    "{}": {},
    "matrix": np.ones((2, 2)),
}
RUN = accounting.Run(
    mechanism="dpsgd",
    sampling="poisson",
    num_examples=100,
    lot_size=10,
    steps=5,
    noise_multiplier=1.0,
)
MEANS = accounting.Run(
    mechanism="si_dpsgd",
    sampling="cyclic",
    num_examples=100,
    lot_size=100,
    steps=4,
    noise_multiplier=4.0,
    learning_rates=0.1,
)
BANDED = np.array([1.0, 0.5])
LEDGER = accounting.Ledger()
RUN_ID = LEDGER.open(RUN)


def case(function, correct, *, name, right=()):
    """A parameter of a function: its correct value, the others, and which of WRONG are right."""
    arguments = dict(correct)
    return pytest.param(
        function,
        arguments,
        name,
        set(right),
        id=f"{getattr(function, '__qualname__', function)}-{name}",
    )


def cases(function, correct, **right):
    return [case(function, correct, name=name, right=right.get(name, ())) for name in correct]


def adam(**arguments):
    options = {"l2_norm_clip": 1.0, "noise_multiplier": 1.0, "clipping": "adaptive"} | arguments
    return tfdp.DPKerasAdamOptimizer(**options)


def dropout(learning_rate):
    return tfdp.DPDropoutOptimizer(
        learning_rate=learning_rate, l2_norm_clip=1.0, noise_multiplier=1.0
    )


def matrix(**arguments):
    return tfdp.optimizers.MatrixDPSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0, **arguments)


def discrete(codebook):
    return tfdp.optimizers.DiscreteSGDOptimizer(
        l2_norm_clip=1.0, noise_multiplier=1.0, codebook=codebook
    )


CASES = [
    *cases(
        strategies.sensitivity,
        {"coefficients": BANDED, "steps": 4, "participations": 2, "separation": 2},
        participations=["None"],
    ),
    *cases(
        strategies.leftmost_squares,
        {"coefficients": BANDED, "steps": 4, "separation": 2, "participations": 2},
        participations=["None"],
    ),
    *cases(strategies.inverse, {"coefficients": BANDED, "steps": 4}),
    *cases(strategies.prefix_noise, {"coefficients": BANDED, "steps": 4}),
    *cases(strategies.losses, {"coefficients": BANDED, "steps": 4}),
    *cases(strategies.non_increasing, {"coefficients": BANDED}),
    *cases(strategies.sqrt_coefficients, {"number": 3}, number=["0"]),
    *cases(strategies.optimized, {"steps": 4, "bands": 2, "objective": "mean"}),
    *cases(
        accounting.strategy,
        {"name": "banded_toeplitz", "steps": 4, "bands": 2, "objective": "mean"},
    ),
    *cases(
        accounting.Strategy,
        {"name": "banded_toeplitz", "bands": 2, "coefficients": (1.0, 0.5)},
        bands=["None"],
    ),
    *cases(accounting.delta_warning, {"delta": 1e-5, "num_examples": 10}),
    *cases(accounting.proven, {"run": RUN, "delta": 1e-5, "adjacency": "zero_out"}),
    *cases(accounting.claimed, {"run": RUN, "delta": 1e-5, "adjacency": "zero_out"}),
    *cases(accounting.proven_composition, {"runs": [RUN], "delta": 1e-5}, runs=["[]", "{}"]),
    *cases(accounting.claimed_composition, {"runs": [RUN], "delta": 1e-5}, runs=["[]", "{}"]),
    *cases(accounting.statement, {"runs_or_run": RUN, "delta": 1e-5}, runs_or_run=["[]", "{}"]),
    *cases(accounting.advice, {"run": MEANS, "delta": 1e-5}),
    *cases(
        accounting.epsilon_curve,
        {"run": RUN, "steps": [1, 2], "delta": 1e-5, "earlier": ()},
        steps=["[]", "{}"],
        earlier=["[]", "{}"],
    ),
    *cases(
        accounting.max_steps,
        {"epsilon": 9.0, "delta": 1e-5, "run": RUN, "earlier": ()},
        epsilon=["2.5"],
        earlier=["[]", "{}"],
    ),
    *cases(
        accounting.best_bands,
        {"epsilon": 2.0, "delta": 1e-5, "run": RUN, "objective": "mean", "most": 2},
        epsilon=["2.5"],
    ),
    *cases(
        accounting.Encoding,
        {"num_weights": 2, "codebook": ((1.0, 0.5),)},
        codebook=["None", "matrix"],
    ),
    *cases(LEDGER.open, {"run": RUN}),
    *cases(LEDGER.merge, {"other": LEDGER}),
    *cases(LEDGER.add_budget, {"budget": accounting.PrivacyBudget(1.0, 1e-5)}),
    *cases(LEDGER.record, {"run_id": RUN_ID, "steps": 1}),
    *cases(LEDGER.withdraw, {"run_id": "unknown"}, run_id=["text"]),
    *cases(tfdp.make_dp_optimizer_class, {"base": keras.optimizers.SGD}),
    *cases(tfdp.optimizers.make_matrix_optimizer_class, {"base": keras.optimizers.SGD}),
    *cases(tfdp.optimizers.make_discrete_optimizer_class, {"base": keras.optimizers.SGD}),
    *cases(
        adam,
        {"target_quantile": 0.5, "quantile_learning_rate": 0.2, "quantile_noise_multiplier": 3.0},
        target_quantile=["0", "None"],
        quantile_learning_rate=["None", "2.5"],
        quantile_noise_multiplier=["None", "2.5"],
    ),
    *cases(dropout, {"learning_rate": 0.1}, learning_rate=["function", "2.5"]),
    *cases(matrix, {"strategy": "banded_toeplitz", "bands": 2, "steps": 4}),
    *cases(discrete, {"codebook": np.ones((2, 2))}, codebook=["None", "matrix"]),
    *cases(
        data.hash_tokens,
        {"texts": ["a"], "num_buckets": 3, "length": 2},
        texts=["[]", "{}", "matrix"],
    ),
    *cases(data.cut_bytes, {"texts": ["abc"], "length": 2}, texts=["[]", "{}", "matrix"]),
    *cases(data.row_multiple_for, {"lot_size": 64}),
    *cases(data.public, {"name": "digits", "count": 3, "seed": 0}, seed=["0"]),
    *cases(data.load_split, {"name": "digits", "split": "test"}),
]  # fmt: skip


@pytest.mark.parametrize(("function", "correct", "name", "right"), CASES)
def test_wrong_values_are_refused_with_a_sentence(function, correct, name, right):
    function(**correct)
    for kind, value in WRONG.items():
        arguments = correct | {name: value}
        if kind in right:
            function(**arguments)
            continue
        # RuntimeError: `DataUnavailable`; a TypeError has to be ours, too.
        with pytest.raises((ValueError, TypeError, RuntimeError)) as error:
            function(**arguments)
        said = str(error.value)
        raw = error.traceback[-1]
        assert "tfdp" in str(raw.path) and "raise" in str(raw.statement), (kind, said, raw)
        assert "xpected" in said or "has no split" in said, (kind, said)
