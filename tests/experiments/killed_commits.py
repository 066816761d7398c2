"""Makes one result repeatedly, and kills or disturbs the process at one of its file operations.

    python killed_commits.py FOLDER {new,over} {kill,fail} STRIDE [COUNT]

For k = 1, 1 + STRIDE, ... the script leaves a folder FOLDER/<k>. Its state is that after the process
died before its k-th operation ("kill"), or after the k-th operation failed for lack of space ("fail").
The script stops at the first k above the number of operations, which "fail" takes from COUNT. It forks,
so it does not import TensorFlow.
"""

import errno
import itertools
import os
import pathlib
import sys
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.experiments.result_helpers import Crash, make
from tfdp.experiments.run_folder import ResultError

COUNTED = {
    "open", "os.chmod", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir",
    "test",
}  # fmt: skip
KILLED, REFUSED, FAILED = 9, 3, 4


def disturbed(k, kill):
    """Makes the k-th operation from now on end the process or fail; this cannot be undone."""
    numbers = itertools.count(1)

    def hook(event, arguments):
        if event in COUNTED and next(numbers) == k:
            if kill:
                os._exit(KILLED)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sys.addaudithook(hook)


def child(target, overwrite, k, kill):
    os.fsync = lambda handle: sys.audit("test")  # files outlive the process without fsync
    disturbed(k, kill)
    try:
        make(target, "new", overwrite=overwrite)
    except ResultError as error:
        print(k, error, flush=True)
        os._exit(REFUSED)
    except Crash:
        os._exit(FAILED)
    os._exit(0 if not kill else 1)


def main(folder, mode, action, stride, count=None):
    make(pathlib.Path(folder, "warm_up"), "old")  # imports now what is imported on first use
    for k in itertools.count(1, int(stride)):
        scenario = pathlib.Path(folder, f"{k}")
        scenario.mkdir()
        target = scenario / "runs" / "r"
        if mode == "over":
            make(target, "old")
        process = os.fork()
        if not process:
            try:
                child(target, mode == "over", k, action == "kill")
            except BaseException:
                traceback.print_exc()
                os._exit(2)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        scenario.joinpath("code").write_text(f"{code}")
        # If no process died at operation k, all operations have had their turn.
        if (code == 1 and action == "kill") or (action == "fail" and k >= int(count)):
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
