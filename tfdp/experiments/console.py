"""Start and end of a command that trains, in a terminal.

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
    """How the user starts this command: python train.py, or tfdp-train where tfdp is installed."""
    return "tfdp-train" if Path(sys.argv[0]).stem == "tfdp-train" else "python train.py"


def refuse(error: Exception, name: str | None = None) -> int:
    """Prints an error that the user can correct, with its notes; returns the exit status.

    Args:
        error: the error.
        name: what the user calls the command; None for train.py or tfdp-train.
    """
    said = " ".join([str(error), *getattr(error, "__notes__", ())])
    print(f"{name or command_line().split()[-1]}: error: {said}", file=sys.stderr, flush=True)
    return 2


def guarded(command: Callable[[], int | None], name: str | None = None) -> None:
    """Runs a command and exits with its status; Ctrl-C and SIGTERM print one line, no traceback.

    Args:
        command: a function that ends with SystemExit or returns an exit status.
        name: as in `refuse`.
    """
    signal.signal(signal.SIGTERM, _terminate)
    try:
        sys.exit(command())
    except KeyboardInterrupt as interruption:
        notes = getattr(interruption, "__notes__", ())
        said = " ".join(["interrupted.", *notes])
        print(f"\n{name or command_line().split()[-1]}: {said}", file=sys.stderr, flush=True)
        sys.exit(128 + (interruption.args or (signal.SIGINT,))[0])


def _terminate(number, frame):
    raise KeyboardInterrupt(number)


def prepare_tensorflow() -> None:
    """Sets the kernels and the log of TensorFlow before it is imported, unless the user has set them.

    The kernels of oneDNN: TensorFlow itself uses them only on CPUs with instructions for neural
    networks, such as AVX512 VNNI. On others private steps of convolutions take several times as long
    without them, and TensorFlow has no gradients of dilated convolutions, nor those of grouped ones at
    their inputs. This was measured on x86 only, so elsewhere the choice is TensorFlow's.

    The log: errors only. Its warning that functions are traced again is left out, since each point of a
    sweep has a model of its own, which has to be traced.
    """
    if platform.machine() in ("x86_64", "AMD64"):
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "3":
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
