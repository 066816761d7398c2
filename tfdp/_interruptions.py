"""Delays Ctrl-C and SIGTERM until an operation in progress is complete."""

import signal
import threading
from typing import NoReturn

from absl import logging

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruptions:
    """Context in which the first Ctrl-C or SIGTERM is recorded; a second one takes effect at once.

    A recorded signal that was not handled (see `end`) is re-raised on exit. A signal that the process
    ignores, as a background job does, stays ignored. In other threads than the main one, the context
    does nothing, because signals interrupt only the main thread.

    Attributes:
        number: The recorded signal, or None.
    """

    def __init__(self):
        self.number = None
        self._before = {}

    def __enter__(self):
        self.number, self._before = None, {}
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception):
        number, _ = self._leave()
        if number is not None:
            signal.raise_signal(number)

    def _note(self, number, frame):
        if self.number is not None:
            self.number = number
            self.end()
        self.number = number

    def _leave(self):
        number, self.number = self.number, None
        before, self._before = self._before, {}
        for each, handler in before.items():
            # None stands for a handler that was not set from Python, which cannot restore it.
            signal.signal(each, signal.SIG_DFL if handler is None else handler)
        return number, before.get(number)

    def end(self, *notes: str) -> NoReturn:
        """Raises the exception that the recorded signal would have raised without this context.

        Args:
            *notes: Sentences to add as notes of the exception.

        Raises:
            BaseException: If the signal's own handler raises one.
            KeyboardInterrupt: If that handler raises nothing and the signal is Ctrl-C.
            SystemExit: If that handler raises nothing and the signal is SIGTERM. The notes are then
                logged, too.
        """
        number, handler = self._leave()
        try:
            if callable(handler):
                handler(number, None)
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            if notes:
                logging.warning("%s", " ".join(notes))
            raise SystemExit(128 + number)
        except BaseException as error:
            for note in notes:
                error.add_note(note)
            raise
