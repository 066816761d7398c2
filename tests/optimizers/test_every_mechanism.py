"""Every mechanism passes the suite of whole training steps."""

import ast
import pathlib

from tests.optimizers.step_suite import StepSuite
from tfdp.accounting import Strategy
from tfdp.optimizers import MECHANISMS


class TestDPSGD(StepSuite):
    mechanism = "dpsgd"
    normalizes_batches = True


class TestSIDPSGD(StepSuite):
    mechanism = "si_dpsgd"


class TestMatrix(StepSuite):
    mechanism = "matrix"
    settings = {"strategy": Strategy(name="banded_toeplitz", coefficients=(1.0, 0.5))}


class TestDPDropout(StepSuite):
    mechanism = "dp_dropout"
    settings = {"clipping": "each_layer"}
    step_over_rate = 0.5


class TestSGLD(StepSuite):
    mechanism = "sgld"
    # With so many examples, Langevin noise is negligible beside the private noise.
    settings = {"clipping": "each_layer", "num_examples": 10**12}
    step_over_rate = 0.5


class TestDiscreteSGD(StepSuite):
    mechanism = "discrete_sgd"
    settings = {"noise": "gaussian", "denoise": False}
    attains_the_bound = False


def test_no_mechanism_is_left_out():
    """The subclass of a new mechanism may be in a test module of its own."""
    covered = set()
    for path in pathlib.Path(__file__).parents[1].rglob("test_*.py"):
        if "StepSuite" not in (text := path.read_text()):
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and "StepSuite" in map(ast.unparse, node.bases):
                covered |= {
                    statement.value.value
                    for statement in node.body
                    if isinstance(statement, ast.Assign)
                    and ast.unparse(statement.targets[0]) == "mechanism"
                }
    assert covered == set(MECHANISMS)
