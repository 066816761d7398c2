"""The command `python -m tfdp.selftest`, which prints the checks, and exits with 1 if one fails."""

import dataclasses
import json
import os
import sys
from collections.abc import Sequence

from absl import flags

from tfdp import selftest
from tfdp._settings import define, parse, setting, settings_of, typed
from tfdp._validate import one_of
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Flags of the command."""

    modes: str | None = setting(
        "The ways to run steps, separated by commas; by default all that differ on this machine, of "
        f"{', '.join(MODES)}.",
        group="Checks",
    )
    json: bool = setting("Prints JSON for programs.", False)


OPTIONS = settings_of(Options)


def _options(arguments: Sequence[str]) -> Options:
    values = flags.FlagValues()
    define(OPTIONS, values)
    words = parse(["", *arguments], selftest.__doc__, values)
    if words[1:]:
        raise ValueError(f"Expected flags only. Received {' '.join(words[1:])}.")
    return Options(**typed(OPTIONS, values))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        options = _options(sys.argv[1:] if arguments is None else arguments)
        modes = options.modes.split(",") if options.modes else _modes()
        for mode in modes:
            one_of("--modes", mode, MODES)
    except ValueError as error:
        print(f"python -m tfdp.selftest: error: {error}", file=sys.stderr)
        return 2
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
        print(
            f"{len(found) - len(failed)} of {len(found)} checks passed, in {seconds:.0f} seconds."
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
