"""How a command that trains begins and ends: its statuses, its one line, and TensorFlow's settings."""

import os
import signal
import sys

import pytest

from tfdp.experiments import console


@pytest.mark.parametrize(
    ("user", "machine", "found"),
    [(None, "x86_64", "1"), (None, "aarch64", None), ("0", "x86_64", "0")],
)
def test_onednn_is_asked_for_unless_the_user_has_decided(user, machine, found, monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", user or "")
    if user is None:
        monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    monkeypatch.setattr(console.platform, "machine", lambda: machine)
    console.prepare_tensorflow()
    assert os.environ.get("TF_ENABLE_ONEDNN_OPTS") == found


@pytest.mark.parametrize(
    ("ending", "status", "word"),
    [
        (lambda: signal.raise_signal(signal.SIGINT), 130, "interrupted"),
        (lambda: signal.raise_signal(signal.SIGTERM), 143, "interrupted"),
        (lambda: sys.exit(3), 3, ""),
        (lambda: 2, 2, ""),
        (lambda: None, None, ""),
    ],
)
def test_a_command_ends_with_a_status_and_one_line(ending, status, word, capsys):
    with pytest.raises(SystemExit) as end:
        console.guarded(ending)
    assert end.value.code == status
    said = capsys.readouterr().err.strip()
    assert word in said and "\n" not in said and bool(said) == bool(word)
