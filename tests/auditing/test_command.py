"""The command: exit statuses, words and files."""

import json
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


@pytest.mark.slow
def test_a_sound_training_stands(tmp_path):
    result = audit("--mechanism=dpsgd", "--epsilon=2", *FAST, f"--json={tmp_path / 'a.json'}")
    assert result.returncode == 0, result.stderr
    assert "stands" in result.stdout and "is refuted" not in result.stdout
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["refuted"]["proven"] is False and content["seed"] == 0
    assert content["bound"]["epsilon"] <= content["stated"]["proven"]["epsilon"] <= 2.0


@pytest.mark.slow
def test_the_released_model_is_attacked(tmp_path):
    files = {name: tmp_path / f"roc.{name}" for name in ("json", "png")}
    result = audit(
        "membership", "--mechanism=dpsgd", "--epsilon=2", *FAST[:-1], "--models=4", "--examples=50",
        f"--json={files['json']}", f"--plot={files['png']}",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "lira" in result.stdout and "proven epsilon 2" in " ".join(result.stdout.split())
    content = json.loads(files["json"].read_text())
    assert (content["models"], content["examples"]) == (4, 50) and files["png"].stat().st_size > 0
    assert [row["fpr"] for row in content["rates"]] == [0.001, 0.01, 0.1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--mechanism=dpsdg"], "'dpsgd'"),
        (["replay"], "membership"),
        (["--models=8"], "--models"),
    ],
)
def test_what_cannot_be_audited_has_status_2(arguments, says):
    result = audit(*arguments)
    assert result.returncode == 2
    assert says in result.stderr and "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_training_is_audited_afterwards(tmp_path):
    flags = ["--mechanism=dpsgd", "--epsilon=2", *FAST[:-1], "--audit", f"--model_dir={tmp_path}/r"]
    result = subprocess.run(
        [sys.executable, "train.py", *flags],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "Audit" in result.stdout and "stands" in result.stdout
    assert (tmp_path / "r" / "audit.json").exists()
