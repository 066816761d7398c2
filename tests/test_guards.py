"""The list of guards is up to date: each text occurs once in its file, each named test exists."""

import ast
import functools

import guards
import pytest


@functools.cache
def defined(file):
    """Returns the names of the tests in a file: "test_this" and "TestThat::test_this"."""
    found = set()
    for node in ast.parse((guards.ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{n.name}" for n in node.body if isinstance(n, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("guard", guards.GUARDS, ids=lambda guard: guard.name)
def test_an_entry_fits_the_sources(guard):
    for file, before, after in guard.edits:
        text = (guards.ROOT / file).read_text()
        assert text.count(before) == 1, f"{file} holds this {text.count(before)} times:\n{before}"
        assert before != after
        compile(text.replace(before, after), file, "exec")
    assert guard.tests
    for test in guard.tests:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in defined(file), test


def test_names_are_unique_and_found():
    names = [guard.name for guard in guards.GUARDS]
    assert len(names) == len(set(names))
    assert guards.named([names[0].upper()])[0].name == names[0]
    assert guards.named([]) == list(guards.GUARDS)
