"""The console of a command that trains: what is filtered, how wide it is and how it ends."""

import os
import signal
import subprocess
import sys

import pytest

from tfdp.experiments import console

NOISE = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795391891.137832    2916 port.cc:153] oneDNN custom operations are on.
W0000 00:00:1795391891.137832    2916 gpu_device.cc:2342] Cannot dlopen some GPU libraries.
E0000 00:00:1795391893.355486    2916 cuda_platform.cc:52] failed call to cuInit: UNKNOWN ERROR (303)
E0000 00:00:1795391893.355486    2916 cuda_dnn.cc:8579] Unable to register cuDNN factory: Attempting
"""
KEPT = """\
E0000 00:00:1795391893.355486    2916 gpu_device.cc:1] CUDA_ERROR_OUT_OF_MEMORY: out of memory
F0000 00:00:1795391893.355486    2916 tensor.cc:1] Check failed: a == b
2026-11-22 12:00:00.000000: E tensorflow/core/x.cc:1] something failed
Segmentation fault
without a newline"""


def child(code):
    """Runs code in a process that knows `console`."""
    known = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    code = f"import os, sys\nfrom tfdp.experiments import console\n{code}"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=known)


def test_the_noise_of_a_process_is_left_out_and_its_last_words_are_not():
    code = f"""
with console.quiet_tensorflow():
    os.write(2, {NOISE.encode()!r})
    print("from Python", file=sys.stderr)
os.write(2, b"afterwards\\n")
with console.quiet_tensorflow():
    os.write(2, {KEPT.encode()!r})
    os.abort()
"""
    done = child(code)
    assert done.returncode < 0
    assert done.stderr == f"from Python\nafterwards\n{KEPT}"


@pytest.mark.parametrize(
    ("user", "machine", "found"),
    [(None, "x86_64", "1"), (None, "aarch64", None), ("0", "x86_64", "0")],
)
def test_onednn_is_asked_for_unless_the_user_has_decided(user, machine, found, monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", user or "")
    if user is None:
        monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    monkeypatch.setattr(console.platform, "machine", lambda: machine)
    console.prefer_onednn()
    assert os.environ.get("TF_ENABLE_ONEDNN_OPTS") == found


@pytest.mark.parametrize(
    ("ending", "status", "word"),
    [
        (lambda: signal.raise_signal(signal.SIGINT), 130, "interrupted"),
        (lambda: signal.raise_signal(signal.SIGTERM), 143, "terminated"),
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


def test_a_closed_pipe_is_no_traceback_and_other_errors_have_one():
    done = child("def command():\n    raise BrokenPipeError\nconsole.guarded(command)")
    assert (done.returncode, done.stderr) == (141, "")
    with pytest.raises(RuntimeError):
        console.guarded(lambda: exec("raise RuntimeError"))


def test_lines_are_as_wide_as_the_terminal_within_limits(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console.console().width == 100 and console.verbosity() == 2
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert console.verbosity() == 1
    for columns, width in (("70", 70), ("300", 120)):
        monkeypatch.setenv("COLUMNS", columns)
        assert console.console().width == width
