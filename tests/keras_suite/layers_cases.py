"""Collects the cases of Keras' own layer tests: which layer, with which options, on which inputs.

Keras' tests of layers call `self.run_layer_test(layer class, arguments, input_shape=...)`. This module
runs these tests from the installed package with a recorder in place of `run_layer_test`, so the cases
are those of whatever version of Keras is installed.
"""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import pathlib
import re
import unittest

import keras
import numpy as np
from keras.src import testing

PACKAGE = pathlib.Path(keras.__file__).parent
ROOT = PACKAGE / "src" / "layers"


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of `run_layer_test`.

    Attributes:
        name: "core/dense_test.py::DenseTest::test_dense_basics#0": file, class, method, and the number
            of the call in the method.
        layer_class: the class of the layer.
        arguments: keyword arguments of its constructor.
        options: the other arguments of `run_layer_test`, by name.
    """

    name: str
    layer_class: type
    arguments: dict
    options: dict

    @property
    def layer(self) -> str:
        """The name of the layer's class."""
        return self.layer_class.__name__

    @property
    def value_range(self) -> tuple | None:
        """The range of the values that a layer for images expects; None where it has none.

        Outside of it, the cast to integers of some of these layers is undefined.
        """
        return self.arguments.get("value_range")


def files() -> list[str]:
    """The test files of Keras' layers that use `run_layer_test`, relative to `ROOT`."""
    found = (path for path in ROOT.rglob("*_test.py") if "run_layer_test" in path.read_text())
    return sorted(str(path.relative_to(ROOT)) for path in found)


def cases_of(file: str) -> list[Case]:
    """Runs the tests of a file and returns their cases.

    What a test asserts besides is not of interest here: after the last recorded call it may fail.
    """
    try:
        module = importlib.import_module("keras.src.layers." + file[:-3].replace("/", "."))
    except ImportError as error:
        if (error.name or "").startswith("keras"):
            raise
        return []  # needs another package, as grain, or the conftest of Keras
    found = []
    for name, tests in vars(module).items():
        if not (isinstance(tests, type) and issubclass(tests, testing.TestCase)):
            continue
        if tests.__module__ != module.__name__:
            continue
        for method in unittest.defaultTestLoader.getTestCaseNames(tests):
            if _uses_layer_test(tests, method):
                found += _recorded(tests, method, f"{file}::{name}::{method}")
    return found


def _uses_layer_test(tests, method):
    marks = getattr(getattr(tests, method), "pytestmark", [])
    if any(mark.name == "skipif" and mark.args[0] is True for mark in marks):
        return False
    return method in _methods_with_layer_test(tests)


@functools.cache
def _methods_with_layer_test(tests):
    """The methods of a class that call `run_layer_test`, themselves or by helpers of the class."""
    sources, seen = {}, {}
    for name, value in vars(tests).items():
        if inspect.isfunction(value):
            function = inspect.unwrap(value)  # one for all methods of a parameterized test
            if function not in seen:
                seen[function] = inspect.getsource(function)
            sources[name] = seen[function]
    names = {"run_layer_test"}
    while True:  # helpers of the class that call it, and their helpers
        pattern = re.compile(rf"\bself\.({'|'.join(map(re.escape, names))})\(")
        more = {name for name, source in sources.items() if pattern.search(source)} - names
        if not more:
            return names
        names |= more


def _recorded(tests, method, name):
    found = []

    def record(self, layer_cls, init_kwargs, *args, **kwargs):
        bound = _SIGNATURE.bind(self, layer_cls, init_kwargs, *args, **kwargs)
        options = dict([*bound.arguments.items()][3:])
        layer_cls(**(init_kwargs or {}))  # raises where the test expects that
        if options.get("input_data") is None and options.get("input_shape") is None:
            return
        found.append(Case(f"{name}#{len(found)}", layer_cls, dict(init_kwargs or {}), options))

    with _replaced(testing.TestCase, "run_layer_test", record):
        keras.utils.set_random_seed(0)
        np.random.seed(0)
        tests(method).run(unittest.TestResult())
    return found


_SIGNATURE = inspect.signature(testing.TestCase.run_layer_test)


@contextlib.contextmanager
def _replaced(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
