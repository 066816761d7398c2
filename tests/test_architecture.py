"""Imports go one way, without cycles, and the accountant stays free of TensorFlow."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
# From top to bottom: a room imports only from rooms further down. Rooms on one line do not import
# each other. docs/architecture.md draws it.
LEVELS = [
    ["experiments"],
    ["callbacks", "models"],
    ["training"],
    ["optimizers"],
    ["gradients"],
    ["session"],
    ["account"],
    ["layers", "noise"],
    ["accounting", "data"],
    ["_compat", "_validate"],
]
# The same inside a room: parts further down know nothing of parts further up.
INSIDE = {
    "accounting": [["mechanisms"], ["numerics"]],
    "gradients": [
        ["lot"],
        ["engines"],
        ["contract"],
        ["rules"],
        ["forward", "bounds"],
        ["encoding"],
    ],
    "training": [
        ["export"],
        ["models"],
        ["private_model"],
        ["accounted_weights", "feeding", "step"],
    ],
    "optimizers": [["factory"], ["dp_keras_optimizer"], ["adaptive_clipping"]],
}
# Functions import from the room's own registry when they are called, so that a name is enough.
BORROWED = ("keras.src", "tensorflow.python")


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted((ROOT / "tfdp").rglob("*.py"))}


def imports(tree):
    """Import statements that run; those for type checkers alone do not."""
    if isinstance(tree, ast.If) and getattr(tree.test, "id", None) == "TYPE_CHECKING":
        return
    if isinstance(tree, ast.Import | ast.ImportFrom):
        yield tree
    for child in ast.iter_child_nodes(tree):
        yield from imports(child)


def imported_by(tree, modules):
    """Modules of tfdp that an import statement of `tree` names, at any depth."""
    for node in imports(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif (node.module or "").partition(".")[0] == "tfdp":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else node.module


GRAPH = {
    name: set(imported_by(ast.parse(path.read_text()), MODULES)) - {name, "tfdp"}
    for name, path in MODULES.items()
}


def cycle(graph):
    """One cycle of a graph, as a list of names, or None."""
    done, path = set(), []

    def visit(name):
        if name in path:
            return path[path.index(name) :]
        if name in done:
            return None
        path.append(name)
        for other in sorted(graph.get(name, ())):
            if found := visit(other):
                return found
        done.add(path.pop())
        return None

    for name in graph:
        if found := visit(name):
            return found
    return None


def violations(graph, levels, depth):
    """Imports that go up, or sideways, in `levels` of the parts at `depth` of module names."""
    level = {part: number for number, parts in enumerate(levels) for part in parts}
    for name, others in graph.items():
        for other in others:
            ours, theirs = (m.split(".")[depth : depth + 1] for m in (name, other))
            known = ours and theirs and ours != theirs and {*ours, *theirs} <= level.keys()
            if known and level[theirs[0]] <= level[ours[0]]:
                yield f"{name} imports {other}"


def test_a_room_imports_only_from_rooms_below():
    assert list(violations(GRAPH, LEVELS, 1)) == []


def test_every_room_has_a_level_and_every_level_a_room():
    rooms = {name.split(".")[1] for name in MODULES if "." in name}
    assert rooms == {room for level in LEVELS for room in level}


@pytest.mark.parametrize("room", INSIDE)
def test_inside_a_room_imports_go_one_way(room):
    graph = {
        name: {o for o in others if o.startswith(f"tfdp.{room}.")}
        for name, others in GRAPH.items()
        if name.startswith(f"tfdp.{room}.")
    }
    parts = {name.split(".")[2] for name in graph}
    assert parts >= {part for level in INSIDE[room] for part in level}
    assert list(violations(graph, INSIDE[room], 2)) == []


def test_there_is_no_cycle():
    assert cycle(GRAPH) is None


def drawn_arrows(page):
    """Pairs of rooms that the second diagram of a page joins."""
    diagram = page.split("```mermaid")[2].partition("```")[0]
    for line in diagram.splitlines():
        source, arrow, targets = line.partition("-->")
        if arrow:
            yield from ((source.strip(), target.strip()) for target in targets.split("&"))


def test_the_picture_shows_the_imports():
    rooms = {
        (name.split(".")[1], other.split(".")[1])
        for name, others in GRAPH.items()
        for other in others
        if "." in name and "." in other
    }
    arrows = {(a, b) for a, b in rooms if a != b and not b.startswith("_")}
    drawn = list(drawn_arrows((ROOT / "docs" / "architecture.md").read_text()))
    assert sorted(drawn) == sorted(arrows)


def test_cycles_and_steps_up_are_found():
    graph = {"tfdp.a.x": {"tfdp.b.y"}, "tfdp.b.y": {"tfdp.b.z"}, "tfdp.b.z": {"tfdp.a.x"}}
    assert sorted(cycle(graph)) == ["tfdp.a.x", "tfdp.b.y", "tfdp.b.z"]
    assert list(violations(graph, [["a"], ["b"]], 1)) == ["tfdp.b.z imports tfdp.a.x"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None
    late = "def f():\n    from tfdp.a import x\nif TYPE_CHECKING:\n    import tfdp.b.y"
    assert list(imported_by(ast.parse(late), graph)) == ["tfdp.a.x"]


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith("tfdp._compat")])
def test_internals_of_keras_and_tensorflow_are_borrowed_in_one_place(name):
    for node in imports(ast.parse(MODULES[name].read_text())):
        names = (
            [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        )
        assert not [n for n in names if n.startswith(BORROWED)]


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
