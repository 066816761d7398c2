"""How a command that trains behaves in a terminal and in a pipe: its noise, its progress and its end.

This module imports neither TensorFlow nor Keras.
"""

import contextlib
import logging
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from tfdp._interruptions import SIGNALS

# The exit statuses of a shell for a process that such a signal has ended.
INTERRUPTED = 128 + signal.SIGINT
_BROKEN_PIPE = 128 + signal.SIGPIPE
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
_FILTER = Path(__file__).with_name("stderr_filter.py")
# The width of what is printed where there is no terminal.
_WIDTH = 100
_WIDEST = 120
_NOTHING = "No result was written, and nothing is released."


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM, or its terminal was closed.

    Args:
        number: the signal.
    """

    def __init__(self, number: int = signal.SIGTERM):
        super().__init__(number)
        self.number = number


def program() -> str:
    """What the user calls this command: train.py, or tfdp-train where tfdp is installed."""
    return "tfdp-train" if Path(sys.argv[0]).stem == "tfdp-train" else "train.py"


def command_line() -> str:
    """How the user starts this command in a shell."""
    return "tfdp-train" if program() == "tfdp-train" else "python train.py"


def guarded(command: Callable[[], object], name: str | None = None) -> None:
    """Runs a command and exits with its status; an interruption or a closed pipe is no traceback.

    Args:
        command: a function that ends with SystemExit or returns an exit status.
        name: what the user calls it; None for that of `program`.
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
    asked = isinstance(interruption, Terminated)
    notes = getattr(interruption, "__notes__", None) or [_NOTHING]
    print(
        f"\n{name or program()}: {'terminated' if asked else 'interrupted'}. {' '.join(notes)}",
        file=sys.stderr,
        flush=True,
    )
    return 128 + interruption.number if asked else INTERRUPTED


def _is_not_about_tracing(record: logging.LogRecord) -> bool:
    return "triggered tf.function retracing" not in record.getMessage()


def _terminate(number, frame):
    raise Terminated(number)


def verbosity() -> int:
    """The `verbose` of Keras: a progress bar on a terminal, and a line for each epoch elsewhere."""
    return 1 if sys.stdout.isatty() else 2


def console() -> Console:
    """The console that tables are printed to: as wide as the terminal, within limits."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return Console(width=_WIDTH)
    return Console(width=min(Console().width, _WIDEST))


def prefer_onednn() -> None:
    """Asks TensorFlow, before it is imported, for the kernels of oneDNN, unless the user has decided.

    TensorFlow itself uses them only on CPUs with instructions for neural networks, such as AVX512 VNNI.
    On others private steps of convolutions take several times as long without them, and TensorFlow has
    no gradients of dilated convolutions, nor those of grouped ones at their inputs. This was measured
    on x86 only, so elsewhere the choice is TensorFlow's.
    """
    if platform.machine() in ("x86_64", "AMD64"):
        os.environ.setdefault(_ONEDNN, "1")


@contextlib.contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Leaves out what TensorFlow's C++ code says at every start; its errors are still seen.

    The warning that functions are traced again is left out, too: each point of a sweep has a model of
    its own, which has to be traced.

    Nothing is left out if the user has set TF_CPP_MIN_LOG_LEVEL, or if TensorFlow is imported already.
    A process of its own does the filtering, so that the last words of a crash are not lost.
    """
    if _LOG_LEVEL in os.environ or "tensorflow" in sys.modules:
        yield
        return
    os.environ[_LOG_LEVEL] = "2"
    logging.getLogger("tensorflow").addFilter(_is_not_about_tracing)
    stderr = os.dup(2)
    # In a session of its own, the filter is not interrupted by Ctrl-C before this process has ended.
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_FILTER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.dup2(process.stdin.fileno(), 2)
    process.stdin.close()
    # What Python prints does not pass the filter, so that its order stays as it was.
    python_stderr = sys.stderr
    sys.stderr = os.fdopen(os.dup(stderr), "w", buffering=1, errors="backslashreplace")
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stderr = python_stderr
        os.dup2(stderr, 2)  # closes the pipe, so that the filter ends
        os.close(stderr)
        with contextlib.suppress(subprocess.TimeoutExpired):  # if another process holds the pipe
            process.wait(timeout=5)
