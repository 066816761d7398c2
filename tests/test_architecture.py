"""Imports go in one direction, without cycles, and the accountant does not import TensorFlow."""

import ast
import functools
import pathlib
import re
import subprocess
import sys

import pytest

import tfdp

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The rooms from top to bottom. A room imports only from rooms below it. Rooms on one line do not
# import each other. docs/architecture.md has the picture.
LEVELS = [
    ["papers"],
    ["experiments", "selftest"],
    ["callbacks", "models", "auditing"],
    ["training"],
    ["optimizers"],
    ["gradients"],
    ["session"],
    ["account"],
    ["layers", "noise"],
    ["accounting", "data"],
    ["_compat", "_files", "_interruptions", "_other_libraries", "_registration"],
    ["_palette", "_validate"],
]
# Commands that stand above all rooms, in whichever folder they are.
COMMANDS = {"tfdp.auditing.__main__", "tfdp.experiments.__main__"}
# The parts inside a room from top to bottom. A part does not import from parts above it.
INSIDE = {
    "accounting": [["command"], ["mechanisms"], ["numerics"]],
    "data": [["schemes"], ["lots"], ["arrays", "randomness"]],
    "gradients": [
        ["lot"],
        ["engines"],
        ["contract"],
        ["rules"],
        ["forward", "bounds"],
        ["encoding"],
    ],
    "training": [
        ["calibrated"],
        ["dp_model"],
        ["private_training"],
        ["accounted_weights", "feeding", "model_privacy", "step"],
        ["export", "loop", "planning"],
    ],
    "optimizers": [["factory"], ["dp_keras_optimizer"], ["accounted", "adaptive_clipping", "made"]],
}
# Packages with non-public names, from which only `tfdp._compat` imports.
BORROWED = ("keras.src", "tensorflow.python")


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted((ROOT / "tfdp").rglob("*.py"))}


def imports(tree):
    """Yields the import statements that run; those for type checkers only do not."""
    if isinstance(tree, ast.If) and getattr(tree.test, "id", None) == "TYPE_CHECKING":
        return
    if isinstance(tree, ast.Import | ast.ImportFrom):
        yield tree
    for child in ast.iter_child_nodes(tree):
        yield from imports(child)


def imported_by(tree, modules):
    """Yields the modules of tfdp that an import statement of `tree` names, at any depth."""
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
    """Returns one cycle of a graph as a list of names, or None if there is none."""
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
    """Returns the imports that go up or sideways in `levels`; parts are at `depth` in the names."""
    level = {part: number for number, parts in enumerate(levels) for part in parts}
    for name, others in graph.items():
        for other in others:
            ours, theirs = (m.split(".")[depth : depth + 1] for m in (name, other))
            known = ours and theirs and ours != theirs and {*ours, *theirs} <= level.keys()
            if known and level[theirs[0]] <= level[ours[0]]:
                yield f"{name} imports {other}"


def test_a_room_imports_only_from_rooms_below():
    graph = {name: others for name, others in GRAPH.items() if name not in COMMANDS}
    assert list(violations(graph, LEVELS, 1)) == []
    assert not COMMANDS & set().union(*GRAPH.values())


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
    """Returns the pairs of rooms that the second diagram of a page connects."""
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
        if "." in name and "." in other and name not in COMMANDS
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


def private(text):
    """Whether a text is a name with one leading underscore, but without the prefix `_tfdp_`."""
    return bool(re.fullmatch(r"_[A-Za-z]\w*", text)) and not text.startswith("_tfdp_")


def on_self(node):
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def defined(tree):
    """Yields the names that a module defines: functions, classes, fields and attributes of self."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and on_self(node):
            yield node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            past_setattr = ast.unparse(node.value) in ("vars(self)", "self.__dict__")
            yield from [node.slice.value] if past_setattr else []


def borrowed(tree, ours, theirs):
    """Private names in a module that belong to Keras or TensorFlow, as attributes or in quotes.

    Args:
        tree: the module.
        ours: what all modules define.
        theirs: what objects of Keras and TensorFlow have. Where both have a name, it counts as ours
            on `self` in the module that defines it.
    """
    here = {*defined(tree)}
    within_texts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if id(node) in within_texts:
            continue
        if isinstance(node, ast.Attribute) and private(node.attr):
            safe = node.attr not in theirs or (on_self(node) and node.attr in here)
            if not (safe and node.attr in ours):
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            # Names of ops have capital letters, and are public.
            if text.islower() and private(text) and text not in ours:
                yield text


@functools.cache
def names_of_keras_and_tensorflow():
    import keras
    import tensorflow as tf

    model = keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization()])
    model.compile(keras.optimizers.SGD(use_ema=True), "mse", metrics=["mae"])
    dataset = tf.data.Dataset.range(1).batch(1)
    graph = tf.function(lambda: tf.constant(0)).get_concrete_function().graph
    objects = [
        *(model, model.optimizer, *model.metrics, *model.layers, *model.variables, model.inputs[0]),
        *(keras.callbacks.Callback(), keras.losses.MeanSquaredError(), keras.StatelessScope()),
        *(keras.layers.LSTM(1), keras.layers.LSTM(1).cell, keras.Model()),
        *(dataset, iter(dataset), graph, graph.get_operations()[0], tf.Variable(0), tf.constant(0)),
    ]
    return {name for item in objects for name in dir(item) if private(name)}


TREES = {
    name: ast.parse(path.read_text())
    for name, path in MODULES.items()
    if not name.startswith("tfdp._compat")
}


def test_private_names_of_keras_and_tensorflow_are_borrowed_in_one_place():
    ours = {name for tree in TREES.values() for name in defined(tree)}
    theirs = names_of_keras_and_tensorflow()
    assert {"_flatten_layers", "_compile_loss", "_input_dataset", "_trainable_variables"} <= theirs
    found = {name: [*borrowed(tree, ours, theirs)] for name, tree in TREES.items()}
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("model._compile_loss", ["_compile_loss"]),
        ("super()._clear_losses()", ["_clear_losses"]),
        ("leaf._keras_mask = 1", ["_keras_mask"]),
        ("getattr(loss, '_fn_kwargs', None)", ["_fn_kwargs"]),
        ("self._graph.x", ["_graph"]),  # an attribute of TensorFlow, unless this module defines it
        ("def f(self):\n  self._graph = 1\n  return self._graph", []),
        ("def f(self):\n  self._graph = 1\n  return other._graph", ["_graph"]),
        ("other._ours, self._ours, '_ours', variable._tfdp_seen, '_ReadVariablesOp'", []),
        ("self.__dict__, model.__class__, _local, f'{name}_norm'", []),
        ("def f(self):\n  vars(self)['_mine'] = self._ours\n  return self._ours", []),
    ],
)
def test_borrowed_names_are_found(code, found):
    ours, theirs = {"_ours", "_mine", "_graph"}, {"_graph", "_clear_losses"}
    assert [*borrowed(ast.parse(code), ours, theirs)] == found


def test_what_a_module_defines_is_found():
    code = "class A:\n  _a: int\n  def _b(self):\n    self._c = x._d = vars(self)['_e'] = 1"
    assert {*defined(ast.parse(code))} == {"A", "_a", "_b", "_c", "_e"}


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


def needs_keras(tree):
    return any(
        "keras" in [alias.name.partition(".")[0] for alias in node.names]
        or (getattr(node, "module", None) or "").partition(".")[0] == "keras"
        for node in imports(tree)
    )


WITHOUT_KERAS = ("tfdp.accounting", "tfdp._other_libraries")
ROOMS_WITH_KERAS = sorted({".".join(n.split(".")[:2]) for n, t in TREES.items() if needs_keras(t)})
# Settings and the command line do not import Keras; the modules that train do.
ROOMS_WITH_KERAS[ROOMS_WITH_KERAS.index("tfdp.experiments")] += ".experiment"
ROOMS_WITH_KERAS[ROOMS_WITH_KERAS.index("tfdp.auditing")] += ".canaries"  # bounds need no Keras
ROOMS_WITH_KERAS.remove("tfdp.selftest")  # it imports Keras when it runs


def test_another_keras_backend_is_refused_clearly(tmp_path):
    # A stand-in for Keras on another backend, so that the test does not need that backend.
    (tmp_path / "keras.py").write_text(
        "class backend:\n    @staticmethod\n    def backend():\n        return 'jax'\n"
    )
    assert {"tfdp.layers", "tfdp.models", "tfdp.optimizers", "tfdp.training"} <= {*ROOMS_WITH_KERAS}
    code = f"""
import importlib, sys
sys.path.insert(0, {str(tmp_path)!r})
import tfdp
for room in {ROOMS_WITH_KERAS!r}:
    try:
        importlib.import_module(room)
    except ImportError as error:
        print(room, "KERAS_BACKEND=tensorflow" in str(error))
for name in tfdp._PUBLIC:
    if tfdp._PUBLIC[name] not in {WITHOUT_KERAS}:
        try:
            getattr(tfdp, name)
        except ImportError as error:
            print(name, "KERAS_BACKEND=tensorflow" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    public = [name for name, module in tfdp._PUBLIC.items() if module not in WITHOUT_KERAS]
    assert done.stdout.splitlines() == [f"{n} True" for n in [*ROOMS_WITH_KERAS, *public]]


@pytest.mark.parametrize(("version", "said"), [("3.11.3", "Error"), ("3.99.0", "Warning")])
def test_other_versions_of_keras_are_named(tmp_path, version, said):
    (tmp_path / "tensorflow.py").write_text("__version__ = '2.21.0'")
    (tmp_path / "keras.py").write_text(
        "class backend:\n    @staticmethod\n    def backend():\n        return 'tensorflow'\n"
        f"__version__ = {version!r}\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import tfdp.gradients"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode != 0) == (said == "Error")
    assert f"{said}: tfdp " in done.stderr
    assert f"Expected Keras 3.12 to 3.15 and TensorFlow 2.18 to 2.21. Found Keras {version}. " in (
        done.stderr
    )


def test_public_names_exist():
    for name in tfdp.__all__:
        assert getattr(tfdp, name) is not None
