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


def patched(text, diff):
    """Applies a diff to `text`, which must hold the diff's old lines exactly once, in a row."""
    lines = diff.splitlines()
    assert all(line[0] in " +-" for line in lines), f"Expected ' ', '+' or '-' first in:\n{diff}"
    old, new = (
        "".join(f"{line[1:]}\n" for line in lines if line[0] in kinds) for kinds in (" -", " +")
    )
    assert text.count(old) == 1, f"Expected once, found {text.count(old)} times:\n{old}"
    return text.replace(old, new)


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """A copy of the tree with what the page adds, and the tests among it."""
    tree = tmp_path_factory.mktemp("adding")
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    tests = []
    for kind, name, text in BLOCK.findall((ROOT / "docs" / "adding.md").read_text()):
        path = tree / name
        if kind == "diff":
            text = patched(path.read_text(), text)
        else:
            assert not path.exists(), f"{name} is there already"
        path.write_text(text)
        tests += [name] if name.startswith("tests/") else []
    return tree, tests


def run(tree, *command):
    environment = os.environ | {"PYTHONPATH": str(tree), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=900,
        env=environment,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return done.stdout


@pytest.mark.slow
def test_what_the_page_adds_passes_its_tests(followed):
    tree, tests = followed
    options = ["-n", "0", "-q", "-p", "no:cacheprovider", "-k", "not xla"]  # compiling takes long
    assert re.search(r"\d{2,} passed", run(tree, "pytest", *options, *tests))


def test_the_mechanism_is_known_to_the_command_line(followed):
    said = run(
        followed[0], "tfdp.accounting", "--mechanism=rounded_dpsgd", "--num_examples=1000",
        "--lot_size=50", "--steps=10", "--noise_multiplier=2", "--delta=1e-5", "--full",
    )  # fmt: skip
    assert "rounded after the noise" in said
