"""Follows docs/adding.md literally in a copy of the repository, and runs what the page adds."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
COPIED = ("tfdp", "tests", "flags", "docs", "setup.cfg", "train.py")
BLOCK = re.compile(r"^```(\w+)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page):
    """Returns (kind, file, text) of every block of code that begins with the name of a file."""
    return [match.groups() for match in BLOCK.finditer(page)]


def patched(text, diff):
    """Applies a diff to `text`, which must hold the diff's old lines exactly once, in a row."""
    lines = diff.splitlines()
    assert all(line[0] in " +-" for line in lines), f"Expected ' ', '+' or '-' first in:\n{diff}"
    old, new = (
        "".join(f"{line[1:]}\n" for line in lines if line[0] in kinds) for kinds in (" -", " +")
    )
    assert text.count(old) == 1, f"Expected once, found {text.count(old)} times:\n{old}"
    return text.replace(old, new)


def follow(page, tree):
    """Writes every block of a page into a copy of the tree; returns the files that were touched."""
    touched = []
    for kind, name, text in blocks(page):
        path = tree / name
        if kind == "diff":
            text = patched(path.read_text(), text)
        else:
            assert not path.exists(), f"{name} is there already"
        path.write_text(text)
        touched.append(name)
    return touched


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """The copy of the tree, and the files that the page touched."""
    tree = tmp_path_factory.mktemp("adding")
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    return tree, follow((ROOT / "docs" / "adding.md").read_text(), tree)


def run(tree, *command):
    environment = os.environ | {"PYTHONPATH": str(tree), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return done.stdout


def test_a_mechanism_touches_at_most_six_files(followed):
    _, touched = followed
    files = {name for name in touched if "rounded_dpsgd" in name or "__init__" in name}
    files |= {name for name in touched if "registry" in name}
    files.discard("tfdp/gradients/rules/__init__.py")
    assert len(files) <= 6
    assert len({*touched} - files) == 5  # the rule and the data set


def test_what_the_page_adds_passes_its_tests(followed):
    tree, touched = followed
    tests = [name for name in touched if name.startswith("tests/")]
    for everybody in (
        "test_no_mechanism_is_left_out",
        "test_no_mechanism_is_named_outside_its_own_file",
    ):
        tests.append(f"tests/accounting/mechanisms/test_mechanism_suite.py::{everybody}")
    tests.append("tests/optimizers/test_every_mechanism.py::test_no_mechanism_is_left_out")
    output = run(tree, "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *tests)
    assert re.search(r"\d{2,} passed", output)


def test_the_mechanism_is_known_to_the_command_lines(followed):
    tree, _ = followed
    said = run(
        tree, "tfdp.accounting", "--mechanism=rounded_dpsgd", "--num_examples=1000", "--lot_size=50",
        "--steps=10", "--noise_multiplier=2", "--delta=1e-5",
    )  # fmt: skip
    assert "rounded after the noise" in said


def test_a_wrong_page_is_noticed(tmp_path):
    page = "```diff\n# file.py\n one\n+two\n```\n"
    (tmp_path / "file.py").write_text("zero\none\nthree\n")
    assert follow(page, tmp_path) == ["file.py"]
    assert (tmp_path / "file.py").read_text() == "zero\none\ntwo\nthree\n"
    with pytest.raises(AssertionError, match="found 0 times"):
        follow(page.replace(" one", " four"), tmp_path)
    with pytest.raises(AssertionError, match="there already"):
        follow("```python\n# file.py\nfive\n```\n", tmp_path)
