"""`help()` explains every argument, and type checkers see the arguments that there are."""

import ast
import importlib
import inspect
import pathlib

import pytest
from test_examples import public

import tfdp
from tfdp.optimizers import arguments
from tfdp.optimizers.arguments import parts_of

PARAMETERS = inspect.Parameter


def described(text):
    """Returns the names of arguments, or of fields, that a docstring explains."""
    entries = parts_of(text)[1] | parts_of(text.replace("\nAttributes:\n", "\nArgs:\n"))[1]
    return {name.strip(" *") for entry in entries for name in entry.split(",")}


@pytest.mark.parametrize("name", [n for n, v in public().items() if not inspect.ismodule(v)])
def test_every_argument_is_explained(name):
    value = public()[name]
    of_python = inspect.isclass(value) and issubclass(value, Exception)
    taken = set() if of_python else {*inspect.signature(value).parameters}
    assert taken <= described(inspect.getdoc(value)), taken - described(inspect.getdoc(value))


def constructors():
    """Yields classes of optimizers, and their constructors, that name a TypedDict of arguments."""
    for path in sorted(pathlib.Path(tfdp.optimizers.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                        shared = each.args.kwarg and each.args.kwarg.annotation
                        if shared and ast.unparse(shared).startswith("Unpack["):
                            module = importlib.import_module(f"tfdp.optimizers.{path.stem}")
                            yield pytest.param(getattr(module, node.name), each.args, id=node.name)


@pytest.mark.parametrize(("made", "written"), [*constructors()])
def test_type_checkers_see_the_arguments_that_there_are(made, written):
    shared = getattr(arguments, ast.unparse(written.kwarg.annotation)[len("Unpack[") : -1])
    named = [arg.arg for arg in (*written.args[1:], *written.kwonlyargs)]
    parameters = inspect.signature(made).parameters
    assert {*named, *shared.__required_keys__, *shared.__optional_keys__} == {*parameters}
    for arg, default in zip(reversed(written.args), reversed(written.defaults), strict=False):
        if isinstance(default, ast.Constant):
            assert parameters[arg.arg].default == default.value
    needed = {n for n, p in parameters.items() if p.default is PARAMETERS.empty}
    assert needed >= shared.__required_keys__
