"""Imports go one way, and the accountant stays free of TensorFlow."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
# From top to bottom: a room imports only from rooms further down. Rooms on one line do not import
# each other.
LEVELS = [
    ["experiments"],
    ["auditing", "callbacks", "models", "release", "repair"],
    ["training"],
    ["private_training"],
    ["private_step", "weights"],
    ["steering"],
    ["feeding", "train_function"],
    ["optimizers"],
    ["gradients"],
    ["session"],
    ["account"],
    ["layers", "mechanisms"],
    ["accounting", "data"],
    ["_backend", "_files"],
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
MODULES = sorted(
    p for p in (ROOT / "tfdp").rglob("*.py") if p.parent.name != "tfdp" or p.stem[0] != "_"
)


def rooms_imported_by(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tfdp":
            parts = node.module.split(".")
            yield from [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "tfdp" and len(parts) > 1:
                    yield parts[1]


def room_of(path):
    relative = path.relative_to(ROOT / "tfdp")
    return relative.parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT / "tfdp")))
def test_a_room_imports_only_from_rooms_below(path):
    room = room_of(path)
    assert room in LEVEL, f"{room} is a new room: give it a level"
    for other in rooms_imported_by(path):
        if other != room:
            assert LEVEL[other] > LEVEL[room], f"{room} imports {other}"


def test_every_room_that_is_named_and_built_is_seen():
    assert {room_of(p) for p in MODULES} >= {"experiments", "training", "gradients", "accounting"}


@pytest.mark.parametrize("name", ["tfdp", "tfdp.accounting"])
def test_importing_does_not_import_tensorflow(name):
    code = (
        f"import sys, {name}, tfdp.accounting as a\n"
        "a.proven(a.Run(mechanism='dpsgd', num_examples=100, lot_size=10, steps=5,"
        " sampling='poisson', noise_multiplier=1.0), 1e-5)\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_another_keras_backend_is_refused_clearly(tmp_path):
    # A stand-in for Keras on another backend, so that the test does not need that backend.
    (tmp_path / "keras.py").write_text(
        "class backend:\n    @staticmethod\n    def backend():\n        return 'jax'\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import tfdp; tfdp.make_private"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "KERAS_BACKEND=tensorflow" in done.stderr


def test_public_names_exist():
    import tfdp

    for name in tfdp.__all__:
        assert getattr(tfdp, name) is not None
