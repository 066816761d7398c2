"""The text of --help: every flag in its group, with the value that it has if it is not set.

This module imports neither TensorFlow nor Keras.
"""

import os
from types import ModuleType

from absl import flags

from tfdp.accounting.mechanisms.registry import mechanism_class, mechanism_names
from tfdp.experiments.command import Point, flag_of
from tfdp.experiments.settings import SETTINGS

# The words that ask for the text.
WORDS = {"--help", "-help", "-h", "-?", "--helpshort"}
_WIDTH = 100


def text(module: ModuleType, point: Point, flag_values: flags.FlagValues = flags.FLAGS) -> str:
    """Returns the text of --help: the docstring of the program, then its flags in groups.

    Args:
        module: the module of the program, which has its docstring and defines its own flags.
        point: the training whose values are shown.
        flag_values: the defined flags.
    """
    own = [flag.name for flag in flag_values.get_key_flags_for_module(module)]
    own += ["sweep"] if "sweep" in flag_values else []
    lines = [module.__doc__.strip(), "", _about(point), "", "This command:"]
    lines += [_flag(flag_values[name]) for name in own]
    group = None
    for name, known in SETTINGS.items():
        if known.group != group:
            group = known.group
            lines += ["", f"{group}:"]
        lines.append(_flag(flag_values[name], _value(name, point)))
        if name == "mechanism":
            for choice in mechanism_names():
                said = f"{choice}: {mechanism_class(choice).summary}."
                lines.append(flags.text_wrap(said, _WIDTH, " " * 10))
    return "\n".join([*lines, "", "--helpfull lists absl's own flags as well."])


def _about(point: Point) -> str:
    read = " and ".join(os.path.relpath(path) for path in point.read)
    source = f"* from {read}, the others the program's own" if read else "the program's own"
    experiment = point.experiment
    said = (
        f"The values in brackets are what --dataset={experiment.dataset} "
        f"--mechanism={experiment.mechanism} takes without further flags: {source}."
    )
    return flags.text_wrap(said, length=_WIDTH)


def _value(name: str, point: Point) -> str:
    """Returns the value of a setting in brackets; "" if it has none, or gives way to its rival."""
    known, value = SETTINGS[name], getattr(point.experiment, name)
    replaced = (
        known.rival and known.default is not None
    )  # as --epochs, where the recipe has --steps
    if value is None or (replaced and getattr(point.experiment, known.rival) is not None):
        return ""
    shown = flag_of(name, value).partition("=")[2] or ("yes" if value else "no")
    return f" [{shown}{'*' if name in point.from_files else ''}]"


def _flag(flag: flags.Flag, value: str = "") -> str:
    about = flag.help.partition(";\n")[0]  # absl adds that flags may be repeated
    said = f"--{'[no]' if flag.boolean else ''}{flag.name}: {about}{value}"
    return flags.text_wrap(said, length=_WIDTH, indent="      ", firstline_indent="  ")
