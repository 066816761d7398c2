"""Ctrl-C and SIGTERM that wait until something that has begun is whole."""

import contextlib
import os
import signal
import sys
import threading

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruptions:
    """Context in which Ctrl-C and SIGTERM are noted; a second one of either ends at once.

    A signal that was noted and not asked for (`end`) arrives when the context is left. A signal that
    the process ignores, as a job in the background does, stays ignored. Outside of the main thread,
    which alone is interrupted, nothing is noted.

    Attributes:
        number: the signal that was noted, or None.
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
        number, self.number = self.number, None
        self._leave()
        if number is not None:
            os.kill(os.getpid(), number)

    def _leave(self):
        before, self._before = self._before, {}
        for number, handler in before.items():
            # None stands for a handler that was not set by Python, and cannot be set again by it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number, frame):
        if self.number is None:
            self.number = number
            return
        self.number, handler = None, self._before.get(number)
        if callable(handler):
            handler(number, frame)
        raise KeyboardInterrupt

    def end(self, *words: str) -> None:
        """Ends as the signal would have without this context, after the context was left.

        Args:
            words: sentences, which become notes of the exception.

        Raises:
            BaseException: what the handler of the signal raises. Where it raises nothing,
                KeyboardInterrupt for Ctrl-C, and SystemExit for SIGTERM, with the words on stderr.
        """
        number, self.number = self.number, None
        handler = self._before.get(number)
        self._leave()
        try:
            if callable(handler):
                handler(number, None)
            if number == signal.SIGINT:
                raise KeyboardInterrupt
        except BaseException as error:
            for sentence in words:
                error.add_note(sentence)
            raise
        if words:
            with contextlib.suppress(OSError, AttributeError):  # a closed or missing stderr
                print(*words, file=sys.stderr, flush=True)
        raise SystemExit(128 + number)
