"""Makes one result again and again, and ends or disturbs the process at its k-th file operation.

    python killed_commits.py FOLDER {new,empty,over,aside} {kill,fail}

For k = 1, 2, ... it leaves FOLDER/<k>, as a process left it that died before its k-th operation
("kill"), or whose k-th operation failed for want of space ("fail"), up to the first k that is more
than there are. It needs no TensorFlow, so that it may fork, which is fast.
"""

import errno
import itertools
import os
import pathlib
import sys
import traceback

from result_helpers import TrainingFailed, make

from tfdp.experiments import result_folder
from tfdp.experiments.result_folder import ResultError

COUNTED = {
    "open", "os.chmod", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir",
    "test",
}  # fmt: skip
KILLED, REFUSED, FAILED = 9, 3, 4


def announced(function):
    """The function, as an operation that counts."""

    def wrapped(*arguments):
        sys.audit("test")
        return function(*arguments)

    return wrapped


def disturbed(k, kill):
    """Lets the k-th operation from now on end the process, or fail. There is no way back."""
    numbers = itertools.count(1)

    def hook(event, arguments):
        if event in COUNTED and next(numbers) == k:
            if kill:
                os._exit(KILLED)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sys.addaudithook(hook)


def child(target, mode, k, kill):
    os.fsync = announced(os.fsync)
    swap = announced(result_folder.exchange) if mode != "aside" else lambda *names: False
    result_folder.exchange = swap
    disturbed(k, kill)
    try:
        make(target, "new", overwrite=mode in ("over", "aside"))
    except ResultError as error:
        print(k, error, flush=True)
        os._exit(REFUSED)
    except TrainingFailed:
        os._exit(FAILED)
    os._exit(0 if not kill else 1)


def main(folder, mode, action):
    os.fsync = lambda handle: None  # what is written outlives a process, if not the machine
    make(pathlib.Path(folder, "warm_up"), "old")  # whatever is imported late is imported now
    for k in itertools.count(1):
        scenario = pathlib.Path(folder, f"{k}")
        scenario.mkdir()
        target = scenario / "runs" / "r"
        if mode == "empty":
            target.mkdir(parents=True)
        if mode in ("over", "aside"):
            make(target, "old")
        process = os.fork()
        if not process:
            try:
                child(target, mode, k, action == "kill")
            except BaseException:
                traceback.print_exc()
                os._exit(2)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        scenario.joinpath("code").write_text(f"{code}")
        # Without an end by the k-th operation, there was none: all have had their turn. A failure
        # may be survived, so there the count is the one of the kills.
        if (code == 1 and action == "kill") or (action == "fail" and k == int(sys.argv[4])):
            return


if __name__ == "__main__":
    main(*sys.argv[1:4])
