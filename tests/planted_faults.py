"""Plants faults in what keeps the guarantee true, one at a time, and reports which tests notice.

    python tests/planted_faults.py              # every fault against the tests that should notice it
    python tests/planted_faults.py noise clip   # faults whose names contain one of the words
    python tests/planted_faults.py --suite      # against the whole default suite; hours
    python tests/planted_faults.py --list

A fault patches a function or method of tfdp in a fresh process of pytest, so this is no part of the
suite. The exit status is 1 if a fault went unnoticed. Run it before and after a change to the core.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
_PLANTED = "TFDP_PLANTED_FAULT"


def faults():
    """Returns the module of the faults, which imports TensorFlow."""
    sys.path.insert(0, str(ROOT / "tests"))
    import faults

    return faults


def pytest_configure(config):
    """Plants a fault: this module is a plugin of the pytest that the command starts."""
    if os.environ.get(_PLANTED):
        faults().FAULTS[os.environ[_PLANTED]].plant(setattr)


def noticing(name: str, tests: tuple[str, ...]) -> tuple[list[str], str]:
    """Runs tests (none: the whole suite) with a fault; returns (those that fail, the output's end)."""
    environment = os.environ | {
        _PLANTED: name,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    options = [
        *(["-n", "0"] if tests else []),
        "-p",
        "planted_faults",
        "-p",
        "no:cacheprovider",
        "-q",
        "--tb=no",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(f"tests/{test}" for test in tests)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    failed = re.findall(r"^(?:FAILED|ERROR) tests/(\S+)", done.stdout, re.MULTILINE)
    return failed, done.stdout[-2000:] + done.stderr[-2000:]


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", help="plant faults whose names contain one of these")
    parser.add_argument("--suite", action="store_true", help="run the whole default suite for each")
    parser.add_argument("--list", action="store_true", help="print the faults and their tests")
    given = parser.parse_args(arguments)
    known = faults().FAULTS
    names = [n for n in known if not given.words or any(word in n for word in given.words)]
    if given.list:
        for name in names:
            print(f"{name}: {', '.join(known[name].tests)}")
        return 0
    unnoticed = 0
    with concurrent.futures.ThreadPoolExecutor(1 if given.suite else os.cpu_count()) as pool:
        runs = {
            name: pool.submit(noticing, name, () if given.suite else known[name].tests)
            for name in names
        }
        for name, run in runs.items():
            failed, output = run.result()
            unnoticed += not failed
            more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
            print(f"{name}: {', '.join(failed[:3]) + more if failed else 'UNNOTICED'}", flush=True)
            if not failed and " passed" not in output:
                print(output)
    print(f"{len(names) - unnoticed} of {len(names)} faults were noticed.")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
