"""Imports go in one direction, without cycles, and the accountant does not import TensorFlow."""

import ast
import graphlib
import pathlib
import subprocess
import sys

import pytest

import tfdp

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The rooms from top to bottom. A room imports only from rooms below it. Rooms on one line do not
# import each other.
LEVELS = [
    ["experiments", "selftest"],
    ["callbacks", "models", "auditing"],
    ["training"],
    ["optimizers"],
    ["gradients"],
    ["session"],
    ["account", "entry"],
    ["layers", "noise"],
    ["accounting", "data"],
    ["_compat", "_files", "_interruptions", "_registration", "_settings"],
    ["_lazy"],
    ["_palette", "_validate"],
]
# Commands that stand above all rooms, in whichever folder they are.
COMMANDS = {"tfdp.auditing.__main__"}


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted((ROOT / "tfdp").rglob("*.py"))}


def imported(tree):
    """Yields the names of the modules that a module imports, with names that may be modules.

    Imports inside of functions and for type checkers count, too.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


NAMES = {name: {*imported(ast.parse(path.read_text()))} for name, path in MODULES.items()}
GRAPH = {name: (found & MODULES.keys()) - {name, "tfdp"} for name, found in NAMES.items()}


def test_a_room_imports_only_from_rooms_below():
    level = {room: number for number, rooms in enumerate(LEVELS) for room in rooms}
    rooms = {name: name.split(".")[1] for name in MODULES if "." in name}
    assert {*rooms.values()} == level.keys()
    assert not [
        (name, other)
        for name in rooms.keys() - COMMANDS
        for other in GRAPH[name]
        if rooms[name] != rooms[other] and level[rooms[name]] >= level[rooms[other]]
    ]
    assert not COMMANDS & set().union(*GRAPH.values())


def test_modules_of_the_accountant_have_no_cycles():
    room = {name: others for name, others in GRAPH.items() if name.startswith("tfdp.accounting.")}
    graphlib.TopologicalSorter(room).prepare()  # raises CycleError


def test_internals_of_keras_and_tensorflow_are_borrowed_in_one_place():
    borrowed = ("keras.src", "tensorflow.python")
    assert not [
        (name, found)
        for name, others in NAMES.items()
        for found in others
        if found.startswith(borrowed) and not name.startswith("tfdp._compat")
    ]


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_the_accountant_does_not_import_tensorflow():
    done = run(
        "import sys, tfdp, tfdp.accounting as a\n"
        "a.proven(a.describe('dpsgd', num_examples=100, lot_size=10, steps=5,"
        " sampling='poisson', noise_multiplier=1.0), 1e-5)\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("room", "backend", "version", "says"),
    [
        ("training", "jax", "3.15.0", "ImportError: tfdp needs Keras on the TensorFlow backend"),
        ("optimizers", "tensorflow", "3.11.3", "ImportError: tfdp"),
        ("gradients", "tensorflow", "3.99.0", "UserWarning: tfdp"),
    ],
)
def test_another_keras_is_named_before_it_is_used(tmp_path, room, backend, version, says):
    (tmp_path / "tensorflow.py").write_text("__version__ = '2.21.0'")
    (tmp_path / "keras.py").write_text(
        f"class backend:\n    @staticmethod\n    def backend():\n        return {backend!r}\n"
        f"__version__ = {version!r}\n"
    )
    done = run(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import tfdp.{room}")
    assert says in done.stderr


def test_windows_is_refused_in_words():
    done = run("import sys; sys.platform = 'win32'; import tfdp.training")
    assert "ImportError: tfdp runs on Linux and macOS" in done.stderr


def test_public_names_exist():
    for name in tfdp.__all__:
        assert getattr(tfdp, name) is not None


# Rooms whose tests compare numbers of methods and papers in float64, with the accuracies of these.
OWN_ACCURACY = {"accounting", "papers"}
TOLERANCES = {"rtol", "atol", "rel", "abs", "rel_tol", "abs_tol", "tolerance"}


def test_no_test_has_a_tolerance_of_its_own_making():
    """Rounding follows from sizes, by tests/rounding.py; statistics accept a hundredth or more."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if OWN_ACCURACY.isdisjoint(path.parts):
            for call in ast.walk(ast.parse(path.read_text())):
                if isinstance(call, ast.Call):
                    name = ast.unparse(call.func).rpartition(".")[2]
                    values = [k.value for k in call.keywords if k.arg in TOLERANCES]
                    values += call.args[2:] if name in ("assert_allclose", "allclose") else []
                    for value in (leaf for one in values for leaf in ast.walk(one)):
                        if isinstance(value, ast.Constant) and 0 < value.value < 0.01:
                            found.append(f"{path.name}:{value.lineno}")
    assert not found, f"Compare by tests/rounding.py, or name the accuracy of the method: {found}"
