"""Every registered mechanism passes the inherited suite, and none is named outside of the tables."""

import ast
import importlib.util
import math
import pathlib

from tests.accounting.mechanisms.mechanism_suite import MechanismSuite
from tests.accounting.varying import vary
from tfdp.accounting import (
    Encoding,
    Run,
    Strategy,
    claimed,
    describe,
    mechanism_names,
    proven,
)
from tfdp.accounting.mechanisms import mechanism_class

POISSON = describe(
    mechanism="dpsgd",
    num_examples=500,
    lot_size=25,
    steps=40,
    sampling="poisson",
    noise_multiplier=2.0,
)
CYCLIC = vary(POISSON, sampling="cyclic", noise_multiplier=4.0)


class TestDPSGD(MechanismSuite):
    RUN = POISSON


class TestDPSGDInEpochs(MechanismSuite):
    RUN = CYCLIC


class TestDPSGDInTurns(MechanismSuite):
    RUN = vary(CYCLIC, sampling="cyclic_poisson", groups=4)


class TestDPSGDWithReplacement(MechanismSuite):
    RUN = vary(CYCLIC, sampling="with_replacement", num_examples=20, lot_size=2, steps=2)


class TestDPSGDFixedSize(MechanismSuite):
    RUN = vary(CYCLIC, sampling="fixed_size")


class TestDPSGDMicrobatches(MechanismSuite):
    RUN = vary(CYCLIC, sampling="poisson", microbatch_size=5)


class TestSIDPSGD(MechanismSuite):
    RUN = vary(CYCLIC, mechanism="si_dpsgd", noise_multiplier=60.0, momentum=0.5)


class TestSIDPSGDPoisson(MechanismSuite):
    RUN = vary(POISSON, mechanism="si_dpsgd", noise_multiplier=60.0)


class TestDiscreteSGD(MechanismSuite):
    RUN = vary(
        POISSON,
        mechanism="discrete_sgd",
        encoding=Encoding(noise="laplace", num_weights=5),
    )


class TestDPDropout(MechanismSuite):
    RUN = vary(POISSON, mechanism="dp_dropout", noise_multiplier=8.0)


class TestSGLD(MechanismSuite):
    RUN = vary(POISSON, mechanism="sgld", noise_multiplier=8.0)


class TestMatrix(MechanismSuite):
    RUN = vary(
        CYCLIC, mechanism="matrix", strategy=Strategy(name="sqrt_toeplitz"), noise_multiplier=9.0
    )
    takes_tables = False


class TestMatrixAmplified(MechanismSuite):
    RUN = vary(
        TestDPSGDInTurns.RUN,
        mechanism="matrix",
        strategy=Strategy(name="banded_toeplitz", coefficients=(1.0, 0.5, 0.25)),
    )
    takes_tables = False


class TestNoMechanism(MechanismSuite):
    RUN = vary(POISSON, mechanism="none")
    finite = takes_tables = False

    def test_more_noise_and_fewer_steps_are_not_worse(self):
        assert self.RUN.with_noise(3.0) == self.RUN

    def test_no_noise_is_infinite(self):
        assert proven(self.RUN, 1e-5).epsilon == claimed(self.RUN, 1e-5).epsilon == math.inf

    def test_round_trip(self):
        assert Run.from_dict(self.RUN.to_dict()) == self.RUN


def suites_of(path):
    """Yields the subclasses of the suite that a test module defines."""
    if "(MechanismSuite)" not in path.read_text():
        return
    specification = importlib.util.spec_from_file_location(f"suites_in_{path.stem}", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    yield from (v for v in vars(module).values() if isinstance(v, type) and hasattr(v, "RUN"))


def test_no_mechanism_is_left_out():
    """The subclass of a new mechanism may be in a test module of its own."""
    others = (p for p in TESTS.rglob("test_*.py") if p != pathlib.Path(__file__))
    suites = [v for v in globals().values() if isinstance(v, type) and hasattr(v, "RUN")]
    suites += [suite for path in others for suite in suites_of(path)]
    assert {suite.RUN.mechanism.name for suite in suites} == set(mechanism_names())


# ------------------------------------------------------------------ names of mechanisms

TESTS = pathlib.Path(__file__).resolve().parents[2]
ROOM = TESTS.parent / "tfdp"
# The modules of the mechanisms, their theorems, claims and sentences.
HOME = ("mechanisms", "proofs", "claims", "assumptions", "wording", "meaning")
HOME += ("encoded_steps", "linear_steps", "numerics/linear_response", "band_choice")  # of one each
OF_MODULES = ROOM / "optimizers" / "__init__.py"  # its strings are names of modules
OUTSIDE = sorted(
    {*ROOM.rglob("*.py")} - {OF_MODULES, *(ROOM / "accounting" / f"{name}.py" for name in HOME)}
)
# Rooms in which a mechanism's name is an ordinary word, as in "no normalization", or the default.
WORDS = {"none": ("models", "gradients", "experiments"), "si_dpsgd": ("experiments",)}


def named_mechanisms(tree):
    """Yields the mechanisms that a module names in string constants or in isinstance."""
    names = set(mechanism_names())
    classes = {mechanism_class(name).__name__ for name in names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in names:
            yield node.lineno, node.value
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in (
            "isinstance",
            "issubclass",
        ):
            for part in ast.walk(node.args[1]):
                name = getattr(part, "id", getattr(part, "attr", None))
                if name in classes:
                    yield node.lineno, name


def test_no_mechanism_is_named_outside_of_the_tables():
    found = []
    for path in OUTSIDE:
        room = path.relative_to(ROOM).parts[0]
        for line, name in named_mechanisms(ast.parse(path.read_text())):
            if room not in WORDS.get(name, ()):
                found.append(f"{path.relative_to(ROOM)}, line {line}: {name}")
    assert found == []
