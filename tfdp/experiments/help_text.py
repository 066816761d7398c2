"""The text of --help: every flag in its group, with the value that it has if it is not set.

This module imports neither TensorFlow nor Keras.
"""

import os
import sys
from collections.abc import Sequence

from absl import flags

from tfdp.experiments.command_line import Point, flag_of
from tfdp.experiments.settings import GROUPS, SETTINGS, Setting

_OF_THE_COMMAND = "This command"
_WIDTH = 100


def is_asked(argv: Sequence[str]) -> bool:
    """Whether a command line asks for help."""
    return any(word in _WORDS for word in argv[1:])


def without_asking(argv: Sequence[str]) -> list[str]:
    """Returns a command line without the words that ask for help."""
    return [argv[0], *(word for word in argv[1:] if word not in _WORDS)]


_WORDS = ("--help", "-help", "-h", "-?", "--helpshort")


def text(point: Point | None = None, flag_values: flags.FlagValues = flags.FLAGS) -> str:
    """Returns the text of --help: the docstring of the program, then its flags in groups.

    Args:
        point: the training whose values are shown; None shows the defaults of the settings.
        flag_values: the defined flags.
    """
    lines = [(sys.modules["__main__"].__doc__ or "").strip(), ""]
    if point is not None:
        lines += [_about(point), ""]
    own = flag_values.get_key_flags_for_module(sys.argv[0])
    names = [flag.name for flag in own if flag.name not in (*SETTINGS, "sweep")]
    names += ["sweep"] if "sweep" in flag_values else []
    lines += [f"{_OF_THE_COMMAND}:", *(_flag(flag_values[name], "") for name in names), ""]
    for group in GROUPS:
        lines.append(f"{group}:")
        for known in SETTINGS.values():
            if known.group == group:
                lines += _setting(known, flag_values, point)
        lines.append("")
    return "\n".join([*lines, "--helpfull lists absl's own flags as well."])


def _about(point: Point) -> str:
    read = " and ".join(os.path.relpath(path) for path in point.read)
    source = f"those of {read}, and otherwise the program's own" if read else "the program's own"
    experiment = point.experiment
    said = (
        f"The values in brackets are what --dataset={experiment.dataset} "
        f"--mechanism={experiment.mechanism} takes without further flags: {source}."
    )
    return flags.text_wrap(said, length=_WIDTH)


def _setting(known: Setting, flag_values: flags.FlagValues, point: Point | None) -> list[str]:
    value = known.default if point is None else getattr(point.experiment, known.name)
    replaced = point is not None and known.rival and not known.optional
    if replaced and getattr(point.experiment, known.rival) is not None:
        value = None  # as of --epochs, where the recipe has --steps
    shown = flag_of(known.name, value).partition("=")[2] or ("yes" if value else "no")
    shown = "" if value is None else f" [{shown}]"
    lines = [_flag(flag_values[known.name], shown)]
    if known.explain is not None:
        for choice in known.allowed or ():
            lines.append(flags.text_wrap(f"{choice}: {known.explain(choice)}.", _WIDTH, " " * 10))
    return lines


def _flag(flag: flags.Flag, shown: str) -> str:
    about = flag.help.partition(";\n")[0]  # absl adds that flags may be repeated
    said = f"--{'[no]' if flag.boolean else ''}{flag.name}: {about}{shown}"
    return flags.text_wrap(said, length=_WIDTH, indent="      ", firstline_indent="  ")
