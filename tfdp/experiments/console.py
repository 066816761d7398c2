"""Starts and ends a training command in a terminal.

This module imports neither TensorFlow nor Keras.
"""

import logging
import os
import platform
import signal
import sys
from collections.abc import Callable
from pathlib import Path


def command_line() -> str:
    """Returns the training command: tfdp-train if that is running, else python train.py."""
    return "tfdp-train" if Path(sys.argv[0]).stem == "tfdp-train" else "python train.py"


def _program() -> str:
    """Returns the current program: train.py, tfdp-train or python -m tfdp.auditing."""
    path = Path(sys.argv[0])
    return f"python -m tfdp.{path.parent.name}" if path.name == "__main__.py" else path.name


def refuse(error: Exception) -> int:
    """Prints an error that the user can correct, with its notes, and returns the exit status."""
    said = " ".join([str(error), *getattr(error, "__notes__", ())])
    print(f"{_program()}: error: {said}", file=sys.stderr, flush=True)
    return 2


def guarded(command: Callable[[], int | None]) -> None:
    """Runs a command and exits with its status. Ctrl-C and SIGTERM print one line."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        sys.exit(command())
    except KeyboardInterrupt as interruption:
        notes = getattr(interruption, "__notes__", ())
        said = " ".join(["interrupted.", *notes])
        print(f"\n{_program()}: {said}", file=sys.stderr, flush=True)
        sys.exit(128 + (interruption.args or (signal.SIGINT,))[0])


def _terminate(number, frame):
    raise KeyboardInterrupt(number)


def prepare_tensorflow() -> None:
    """Configures TensorFlow's kernels and log before its import, unless the user has done so.

    Without the kernels of oneDNN, which TensorFlow enables by default only on some CPUs, private steps
    of convolutions take several times as long, and some convolutions have no gradients
    (docs/decisions/command_line.md). This was measured only on x86.

    The log shows only errors, because each point of a sweep makes TensorFlow warn about retracing.
    """
    if platform.machine() in ("x86_64", "AMD64"):
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "3":
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
