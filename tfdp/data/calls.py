"""Runs Python functions in the threads of `tf.data`, keeps their exceptions, and lets the process exit.

TensorFlow converts an exception to text, so the original is kept for the caller. A thread that calls
Python after the interpreter has shut down never returns, and TensorFlow waits for it. Therefore the
process waits for running calls before it exits, and rejects later ones.
"""

import atexit
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# After this many seconds without a call, buffers are full and `tf.data` makes no more calls.
_QUIET = 0.05


class Calls:
    """Function calls by the threads that read one data set.

    Attributes:
        error: The first exception in a call since the last iterator began, or None.
    """

    def __init__(self):
        self.error: Exception | None = None

    def call(self, function: Callable, *arguments: Any) -> Any:
        """Calls a function, unless the process is exiting."""
        with _running:
            try:
                return function(*arguments)
            except Exception as error:
                self.error = self.error or error
                raise

    def cause_of(self, error: tf.errors.OpError) -> Exception:
        """Returns the exception that TensorFlow turned into `error`, or `error` itself."""
        found = self.error
        if found is None or f"{type(found).__name__}: " not in error.message:
            return error
        return found


class _Running:
    """Context of a call; `finish` waits for all calls and rejects later ones."""

    def __init__(self):
        self._changed, self._number, self._begun = threading.Condition(), 0, 0
        self._finished = False

    def __enter__(self):
        with self._changed:
            self._begun += 1
            self.check()
            self._number += 1

    def __exit__(self, *exception):
        with self._changed:
            self._number -= 1
            self._changed.notify_all()

    def check(self):
        if self._finished:
            raise RuntimeError("The process is exiting; no more rows are read.")

    def finish(self):
        with self._changed:
            self._finished = True
            self._changed.wait_for(lambda: not self._number)
        begun = None
        while begun != self._begun:
            begun = self._begun
            time.sleep(_QUIET)


_running = _Running()
check_running = _running.check  # raises RuntimeError when the process exits
atexit.register(_running.finish)
