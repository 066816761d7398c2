"""Settings of a command, each declared once as a field of a dataclass.

The declaration determines the flag, its help, the check of its value, the error for a setting without
effect and the entry in run.json. A command defines its flags with `define`, parses them with `parse`,
and creates the dataclass from the result of `typed`.

This module imports neither TensorFlow nor Keras.
"""

import dataclasses
import re
import sys
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

import tfdp
from tfdp._validate import did_you_mean

# The interval of a setting that declares none.
_POSITIVE = {float: "(0, inf)", int: "[1, inf)"}
_DEFINE: dict[type, Callable[..., Any]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}
_VERSION = {"--version", "-version"}
# The arguments that request the help text.
_HELP = {"--help", "-help", "-h", "-?", "--helpshort"}


class Need(NamedTuple):
    """A condition on another setting that a setting needs to have an effect.

    Attributes:
        name: The other setting.
        accepts: The values that meet the condition, or a function that accepts them.
    """

    name: str
    accepts: tuple[Any, ...] | Callable[[Any], bool]

    def is_met(self, values: Mapping[str, Any]) -> bool:
        """Whether the other setting has a value that meets the condition."""
        found = values[self.name]
        return self.accepts(found) if callable(self.accepts) else found in self.accepts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """The declaration of one setting.

    Attributes:
        help: The help text, one or more sentences.
        default: The default value. If it is None, the value may be None.
        group: The heading in --help that begins with this setting; None continues the previous one.
        choices: The allowed values, a dictionary from them to a few words for the help, or a function
            that returns either; None allows any value.
        interval: The allowed numbers, such as "(0, 1)"; None allows all numbers above 0.
        needs: Conditions on other settings that the setting needs to have an effect.
        rival: The setting that this one replaces, as `steps` replaces `epochs`.
        recorded: Whether the setting is written into run.json.
        also: Other spellings of the flag.
        name: The name of the field.
        kind: The type of the value: bool, int, float or str.
    """

    help: str
    default: Any = None
    group: str | None = None
    choices: Collection[str] | Callable[[], Collection[str]] | None = None
    interval: str | None = None
    needs: tuple[Need, ...] = ()
    rival: str | None = None
    recorded: bool = True
    also: tuple[str, ...] = ()
    name: str = ""
    kind: type = str

    @property
    def allowed(self) -> Collection[str] | None:
        """The values that `choices` currently allows; None allows any value."""
        return self.choices() if callable(self.choices) else self.choices

    def field(self, **changes: Any) -> Any:
        """Returns a dataclass field with this declaration and some attributes changed."""
        changed = dataclasses.replace(self, **changes)
        return dataclasses.field(default=changed.default, metadata={"setting": changed})

    def check(self, value: Any) -> None:
        """Raises ValueError if the value is invalid for this setting, regardless of others."""
        if value is None and self.default is None:
            return
        allowed = self.allowed
        if allowed is not None and value not in allowed:
            raise ValueError(
                f"Expected --{self.name} to be one of {', '.join(allowed)}. Received {value}."
                f"{did_you_mean(str(value), allowed)}"
            )
        interval = self.interval or _POSITIVE.get(self.kind)
        if interval is not None and not _is_within(value, interval):
            raise ValueError(
                f"Expected --{self.name} to be a number in {interval}. Received {value}."
            )

    def unmet(self, values: Mapping[str, Any]) -> Need | None:
        """Returns the condition that the values do not meet; None if the setting has an effect."""
        return next((need for need in self.needs if not need.is_met(values)), None)

    def check_effect(self, values: Mapping[str, Any]) -> None:
        """Raises ValueError if the setting has no effect with the other values."""
        if need := self.unmet(values):
            raise ValueError(
                f"--{self.name} has no effect with --{need.name}={values[need.name]}. Remove it."
            )


def _is_within(value: float | None, interval: str) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    includes_low = interval.startswith("[") and value == low
    return value is not None and (low < value < high or includes_low)


def setting(help: str, default: Any = None, **known: Any) -> Any:
    """Declares a field of a dataclass of settings; the arguments are the attributes of `Setting`."""
    return Setting(help=help, default=default, **known).field()


def settings_of(declared: type) -> dict[str, Setting]:
    """Returns the settings of a dataclass by name, in the order of its fields."""
    group, known = None, {}
    for field in dataclasses.fields(declared):
        if found := field.metadata.get("setting"):
            group = found.group or group
            kind = (typing.get_args(field.type) or (field.type,))[0]  # float of "float | None"
            known[field.name] = dataclasses.replace(found, name=field.name, group=group, kind=kind)
    return known


def check_rivals(settings: Mapping[str, Setting], names: Collection[str]) -> None:
    """Raises ValueError if two of the given settings exclude each other."""
    if rivals := [name for name in settings if name in names and settings[name].rival in names]:
        raise ValueError(f"--{' and --'.join(rivals)} cannot both be set. Remove one.")


def flag_of(name: str, value: Any) -> str:
    """Returns the flag that sets a setting to a value."""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    short = isinstance(value, float) and float(f"{value:g}") == value
    return f"--{name}={value:g}" if short else f"--{name}={value}"


def define(settings: Mapping[str, Setting], flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines a flag for every setting, in its group."""
    for name, known in settings.items():
        words, allowed = known.help, known.allowed
        if isinstance(allowed, Mapping):
            words += "".join(f"\n{choice}: {about}." for choice, about in allowed.items())
        elif allowed is not None:
            words += f" One of: {', '.join(allowed)}."
        if known.also:
            words += f" Also --{', --'.join(known.also)}."
        here = {"flag_values": flag_values, "module_name": known.group}
        _DEFINE[known.kind](name, known.default, words, **here)


def parse(
    argv: Sequence[str], doc: str | None = None, flag_values: flags.FlagValues = flags.FLAGS
) -> list[str]:
    """Parses flags; with --help or --version, prints the help or the version and exits.

    Args:
        argv: The command line, with the name of the program.
        doc: The text above the flags in the help, such as the docstring of the command.
        flag_values: The defined flags.

    Returns:
        The positional arguments, without the name of the program.

    Raises:
        ValueError: If a flag is unknown or has a value of another type.
    """
    if _VERSION & {*argv}:
        print(f"tfdp {tfdp.__version__}")
        sys.exit(0)
    try:
        words = flag_values([word for word in argv if word not in _HELP])
    except flags.UnrecognizedFlagError as error:
        meant = did_you_mean(error.flagname, flag_values)
        raise ValueError(f"Unknown flag --{error.flagname}.{meant} See --help.") from error
    except flags.Error as error:
        raise ValueError(str(error)) from error
    if _HELP & {*argv}:
        groups = [name for name in flag_values.flags_by_module_dict() if "absl." not in name]
        print(_as_installed((doc or "").strip()), *map(flag_values.module_help, groups), sep="\n")
        sys.exit(0)
    return words


def _as_installed(doc: str) -> str:
    """Returns the docstring of a command, with the program name that the user typed."""
    program = Path(sys.argv[0]).stem  # tfdp-train of python train.py
    return re.sub(r"python (train\.py|-m tfdp\.\w+)", program, doc) if "tfdp-" in program else doc


def typed(
    settings: Mapping[str, Setting], flag_values: flags.FlagValues = flags.FLAGS
) -> dict[str, Any]:
    """Returns the values of the settings on the command line; ValueError if one is invalid."""
    values = {name: flag_values[name].value for name in settings if flag_values[name].present}
    for name, value in values.items():
        settings[name].check(value)
    return values
