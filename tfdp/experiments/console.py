"""How a command that trains begins and ends in a terminal or a pipe.

This module imports neither TensorFlow nor Keras.
"""

import logging
import os
import platform
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tfdp._interruptions import SIGNALS

_BROKEN_PIPE = 128 + signal.SIGPIPE  # the exit status that a shell gives
_NOTHING = "No result was written, and nothing is released."


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


def guarded(command: Callable[[], object], name: str | None = None) -> None:
    """Runs a command and exits with its status; an interruption or a closed pipe is no traceback.

    Args:
        command: a function that ends with SystemExit or returns an exit status.
        name: as in `refuse`.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as for a job in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    status = 0
    try:
        try:
            status = command()
        except SystemExit as end:
            status = end.code
        sys.stdout.flush()
    except KeyboardInterrupt as interruption:
        status = interrupted(interruption, name)
    except BrokenPipeError:
        # Python flushes stdout once more at its end, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = _BROKEN_PIPE
    sys.exit(status)


def interrupted(interruption: KeyboardInterrupt, name: str | None = None) -> int:
    """Says that the command was interrupted, and what its notes say; returns the exit status."""
    for number in SIGNALS:  # the next one ends the process without contradicting what is said now
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    notes = getattr(interruption, "__notes__", None) or [_NOTHING]
    said = f"\n{name or command_line().split()[-1]}: interrupted. {' '.join(notes)}"
    print(said, file=sys.stderr, flush=True)
    return 128 + (interruption.args or (signal.SIGINT,))[0]


def _terminate(number, frame):
    raise KeyboardInterrupt(number)


def prepare_tensorflow() -> None:
    """Sets how TensorFlow, which is not imported yet, computes and logs, unless the user has decided.

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
