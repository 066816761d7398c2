"""The console of a command that trains: what is filtered, how wide it is and how it ends."""

import logging
import os
import re
import subprocess
import sys

import pytest

from tfdp.experiments import console, stderr_filter
from tfdp.experiments.parsing import in_flags

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


def test_the_filter_leaves_errors_alone():
    done = subprocess.run(
        [sys.executable, "-I", "-S", stderr_filter.__file__],
        input=NOISE + KEPT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == KEPT and done.stdout == ""


def child(code, **environment):
    """Runs code in a process with `quiet_tensorflow` in `console`."""
    known = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, signal, sys\nfrom tfdp.experiments import console\n" + code,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env=known | environment,
    )


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


def test_a_user_who_set_the_log_level_sees_everything():
    code = f"with console.quiet_tensorflow(): os.write(2, {NOISE.encode()!r})"
    assert child(code, TF_CPP_MIN_LOG_LEVEL="0").stderr == NOISE


@pytest.mark.parametrize(
    ("user", "machine", "found"),
    [(None, "x86_64", "1"), (None, "aarch64", None), ("0", "x86_64", "0"), ("", "x86_64", "")],
)
def test_onednn_is_asked_for_unless_the_user_has_decided(user, machine, found, monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", user or "")
    if user is None:
        monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    monkeypatch.setattr(console.platform, "machine", lambda: machine)
    console.prefer_onednn()
    assert os.environ.get("TF_ENABLE_ONEDNN_OPTS") == found


@pytest.mark.parametrize(
    ("module", "arguments"), [("experiments", "list"), ("auditing", "replay of nothing")]
)
def test_commands_ask_for_onednn(module, arguments, monkeypatch, tmp_path):
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    monkeypatch.chdir(tmp_path)
    words = arguments.split() if module == "experiments" else ["auditing", *arguments.split()]
    code = f"""
from tfdp.{module} import __main__ as command
console.platform.machine = lambda: "x86_64"
command.main({words!r})
print(os.environ["TF_ENABLE_ONEDNN_OPTS"])
"""
    assert child(code).stdout.splitlines()[-1] == "1"


def test_tracing_again_is_not_warned_of():
    records = [
        logging.LogRecord("tensorflow", logging.WARNING, "", 0, message, (), None)
        for message in ("5 out of 11 calls triggered tf.function retracing.", "something else")
    ]
    assert [console._is_not_about_tracing(record) for record in records] == [False, True]


@pytest.mark.parametrize(
    ("ending", "status", "words"),
    [
        ("raise KeyboardInterrupt", 130, "interrupted"),
        # A shell starts processes in the background with SIGINT ignored.
        (
            "signal.signal(2, signal.default_int_handler); os.kill(os.getpid(), 2)",
            130,
            "interrupted",
        ),
        ("os.kill(os.getpid(), 15)", 143, "terminated"),
        ("sys.exit(3)", 3, ""),
        ("return 2", 2, ""),
        ("raise BrokenPipeError", 141, ""),
    ],
)
def test_how_a_command_ends(ending, status, words):
    done = child(f"def command():\n    {ending}\nconsole.guarded(command)")
    assert done.returncode == status
    assert words in done.stderr and "Traceback" not in done.stderr
    assert bool(done.stderr) == bool(words)


def test_other_errors_have_their_traceback():
    done = child("def command():\n    raise RuntimeError('lost')\nconsole.guarded(command)")
    assert done.returncode == 1 and "RuntimeError: lost" in done.stderr


def test_off_a_terminal_lines_are_as_long_as_the_page(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console.console().width == 100 and console.verbosity() == 2
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "70")
    assert console.console().width == 70 and console.verbosity() == 1
    monkeypatch.setenv("COLUMNS", "300")
    assert console.console().width == 120


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Expected lot_size to be 1. Use fewer.", "Expected --batch_size to be 1. Use fewer."),
        ("use num_microbatches, not more", "use --microbatches, not more"),
        ("Expected groups * lot_size to be", "Expected --groups * --batch_size to be"),
        ("with encode=True: encoding", "with --encode=True: encoding"),
        (
            "Invalid value received for argument `clipping`. Expected 'global'.",
            "--clipping cannot have this value. Expected 'global'.",
        ),
        ("leave --epsilon=2 alone", "leave --epsilon=2 alone"),
        ("in runs/epsilon=2,seed=1 there", "in runs/epsilon=2,seed=1 there"),
        ("The noise of a model.", "The noise of a model."),
    ],
)
def test_messages_name_flags(message, expected):
    assert in_flags(message) == expected
    assert not re.search("----", in_flags(expected))
