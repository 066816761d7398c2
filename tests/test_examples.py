"""Every public name has an example in its docstring, and every example shows what happens.

Public are the names that `tfdp` and its rooms export: those in `__all__`, or, in a module without one,
the classes and functions that it defines and that it imports under their own names (`import x as x`);
and the classes of the objects in `ALSO`, which public functions return. Constants have no docstring.
"""

import ast
import doctest
import functools
import importlib
import inspect
import pathlib

import pytest

import tfdp

ROOT = pathlib.Path(tfdp.__file__).resolve().parent
ROOMS = (
    "accounting",
    "auditing",
    "callbacks",
    "data",
    "experiments",
    "gradients",
    "layers",
    "models",
    "noise",
    "optimizers",
)
ALSO = ("training.calibrated.Calibrated", "training.model_privacy.ModelPrivacy")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def exported(module):
    """Returns the names that a module exports."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    names = []
    for node in ast.parse(pathlib.Path(module.__file__).read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            names.append(node.name)
        elif isinstance(node, ast.ImportFrom):
            names += [alias.name for alias in node.names if alias.asname == alias.name]
    return names


@functools.cache
def public():
    """Returns the public objects by name; an object with several names has the first of them."""
    found = {"tfdp": tfdp}
    for room in ("tfdp", *(f"tfdp.{room}" for room in ROOMS)):
        module = importlib.import_module(room)
        found.setdefault(room, module)
        found |= {f"{room}.{name}": getattr(module, name) for name in exported(module)}
    for name in ALSO:
        module, _, attribute = name.rpartition(".")
        found[f"tfdp.{name}"] = getattr(importlib.import_module(f"tfdp.{module}"), attribute)
    first = {}
    for name, value in found.items():
        if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
            first.setdefault(id(value), (name, value))
    return dict(first.values())


def docstrings(name, value):
    """Yields the names and docstrings of a public object and of the members that its class defines."""
    yield name, inspect.getdoc(value) or ""
    if inspect.isclass(value):
        for member, function in vars(value).items():
            text = getattr(function, "__doc__", None)
            if not member.startswith("_") and isinstance(text, str) and ">>>" in text:
                yield f"{name}.{member}", inspect.cleandoc(text)


def examples(text):
    """Returns the examples in the section of that name of a docstring."""
    return doctest.DocTestParser().get_examples(text.partition("\nExample:\n")[2])


def test_every_public_name_has_an_example():
    without = [
        name
        for name, value in public().items()
        if not any(example.want for example in examples(inspect.getdoc(value) or ""))
    ]
    assert not without


def test_examples_in_the_source_are_those_of_public_names():
    executed = {
        text.partition("\nExample:\n")[2]
        for name, value in public().items()
        for _, text in docstrings(name, value)
    }
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                example = text.partition("\nExample:\n")[2]
                assert ">>>" not in text or (example in executed and "+SKIP" not in text), text


@pytest.fixture
def registries(monkeypatch):
    """Forgets what the examples register."""
    mechanisms = importlib.import_module("tfdp.accounting.mechanisms")
    monkeypatch.setattr(mechanisms, "_CLASSES", dict(mechanisms._CLASSES))


# These train and audit; others train the same experiment, and `tests/auditing` tests the audits.
SLOW = (
    *(f"tfdp.auditing.{name}" for name in ("Audit", "audit", "draw", "record", "verdict")),
    "tfdp.auditing.membership_inference",
    *(
        f"tfdp.experiments.{name}"
        for name in ("attack_experiment", "card", "print_table", "Result")
    ),
)
NAMES = [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in public()]


@pytest.mark.parametrize("name", NAMES)
def test_examples(name, tmp_path, monkeypatch, registries):
    monkeypatch.chdir(tmp_path)
    for place, text in docstrings(name, public()[name]):
        runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
        test = doctest.DocTestParser().get_doctest(text, {}, place, place, 0)
        report = []
        runner.run(test, out=report.append)
        assert not runner.failures, "".join(report)
