"""The command: exit statuses, words and files."""

import json
import math
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAST = ["--model=linear", "--sampling=cyclic", "--batch_size=479", "--steps=3", "--canaries=60"]


def audit(*arguments, folder=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "tfdp.auditing", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def test_a_sound_training_stands(tmp_path):
    result = audit("--mechanism=dpsgd", "--epsilon=2", *FAST, f"--json={tmp_path / 'a.json'}")
    assert result.returncode == 0, result.stderr
    assert "stands" in result.stdout and "is refuted" not in result.stdout
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["refuted"]["proven"] is False and content["seed"] == 0
    assert content["bound"]["epsilon"] <= content["stated"]["proven"]["epsilon"] <= 2.0


def test_the_released_model_is_attacked(tmp_path):
    files = {name: tmp_path / f"roc.{name}" for name in ("json", "png")}
    result = audit(
        "membership", "--mechanism=dpsgd", "--epsilon=2", *FAST[:-1], "--models=4", "--examples=50",
        f"--json={files['json']}", f"--plot={files['png']}",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "LiRA" in result.stdout and "proven epsilon 2" in " ".join(result.stdout.split())
    content = json.loads(files["json"].read_text())
    assert (content["models"], content["examples"]) == (4, 50) and files["png"].stat().st_size > 0
    assert [row["fpr"] for row in content["rates"]] == [0.001, 0.01, 0.1]
    # What is proven at many deltas allows less than epsilon and delta of the report alone.
    stated = content["guarantee"]
    alone = 0.1 * math.exp(stated["epsilon"]) + stated["delta"]
    assert 0.1 < content["rates"][2]["allowed"] < 0.7 * alone


def test_the_recipe_is_refuted():
    path = ROOT / "flags" / "audit" / "si_dpsgd_claimed.cfg"
    result = audit(f"--flagfile={path}")
    assert result.returncode == 1, result.stderr
    assert "The claimed epsilon 0.05 is refuted" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mechanism=none"], "private mechanism"),
        (["--canaries=0"], "canaries"),
        (["--canaries=5", "--guesses=6"], "guesses"),
        (["--mechanism=dpsdg"], "dpsgd"),
        (["replay"], "replay FOLDER"),
        (["replay", "nowhere"], "recording"),
        (["word"], "Found word"),
        (["memebership"], "Did you mean 'membership'"),
        (["membership", "--canaries=9"], "Found --canaries"),
        (["replay", "--epsilon=7", "folder"], "Found --epsilon"),
        (["--models=8"], "Found --models"),
        (["--dataset=mnist", "--data_dir=nowhere"], "--data_dir"),
        (["membership", "--examples=5000"], "Expected examples"),
        (["membership", "--insecure_seed=1", "--mechanism=dpsgd"], "same noise"),
    ],
)
def test_what_cannot_be_audited_has_status_2(arguments, words):
    result = audit(*arguments)
    assert result.returncode == 2
    assert words in result.stderr and "Traceback" not in result.stderr


def test_help_has_the_values_that_are_taken():
    result = audit("--help")
    assert result.returncode == 0 and not result.stderr
    said = " ".join(result.stdout.split())
    assert "python -m tfdp.auditing membership" in said and "--canaries" in said
    assert "[linear]" in said  # of the recipe, which is what runs


def test_a_training_is_audited_afterwards(tmp_path):
    command = [
        sys.executable,
        "train.py",
        "--mechanism=dpsgd",
        "--epsilon=2",
        *FAST[:-1],
        "--audit",
    ]
    result = subprocess.run(
        [*command, f"--model_dir={tmp_path / 'r'}"],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "Audit" in result.stdout and "stands" in result.stdout
    assert (tmp_path / "r" / "audit.json").exists()
    again = subprocess.run(
        [*command[:-1], "--overwrite", f"--model_dir={tmp_path / 'r'}"],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr


def test_a_sweep_is_not_audited():
    result = subprocess.run(
        [sys.executable, "train.py", "--sweep=epsilon=1,2", "--audit"],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert result.returncode == 2 and "--sweep" in result.stderr
