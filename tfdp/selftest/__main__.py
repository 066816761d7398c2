"""The command `python -m tfdp.selftest`: prints the checks, and ends with code 1 if one fails."""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence

from tfdp import selftest
from tfdp.selftest import MODES, ON_GPUS, Check, checks


def _table(found: Sequence[Check]) -> str:
    width = max(len(check.name) for check in found)
    lines = []
    for check in found:
        mark = "ok    " if check.passed else "FAILED"
        lines.append(f"{mark}  {check.mode:16}{check.name:{width}}  {check.measured}")
    return "\n".join(lines)


def _modes():
    import tensorflow as tf

    found = tf.config.list_logical_devices("GPU")
    return [mode for mode in MODES if found or mode not in ON_GPUS]


def _devices() -> str:
    import keras
    import tensorflow as tf

    found = [device.device_type for device in tf.config.list_logical_devices()]
    return f"TensorFlow {tf.__version__}, Keras {keras.__version__}, devices: {', '.join(found)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tfdp.selftest",
        description=selftest.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--modes",
        help=f"a list with commas; by default all that differ here, of {', '.join(MODES)}",
    )
    parser.add_argument("--json", action="store_true", help="writes JSON for programs")
    options = parser.parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    modes = [mode.strip() for mode in options.modes.split(",")] if options.modes else _modes()
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        parser.error(f"expected --modes among {', '.join(MODES)}, found {', '.join(unknown)}")
    if not options.json:
        print(_devices(), flush=True)
    found = []
    for check in checks(modes):
        found.append(check)
        if not options.json:
            print(_table([check]), flush=True)
    failed = [check for check in found if not check.passed]
    if options.json:
        rows = [dataclasses.asdict(check) for check in found]
        print(json.dumps({"devices": _devices(), "checks": rows}, indent=2))
    else:
        seconds = sum(check.seconds for check in found)
        print(f"{len(found) - len(failed)} of {len(found)} checks hold, in {seconds:.0f} seconds.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
