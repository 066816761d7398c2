"""Values of flags as a user types them, and sentences for those that cannot be parsed.

This module imports neither TensorFlow nor Keras.
"""

import re

from absl import flags

from tfdp._validate import did_you_mean
from tfdp.experiments.setting import not_a_choice
from tfdp.experiments.settings import SETTINGS

KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


class ChoiceParser(flags.EnumParser):
    """Parses one of a setting's choices; refuses others with the choice that was probably meant."""

    def __init__(self, name: str, choices: tuple[str, ...]):
        super().__init__(choices)
        self._name = name

    def parse(self, argument: str) -> str:
        if argument not in self.enum_values:
            raise ValueError(not_a_choice(self._name, argument, tuple(self.enum_values)))
        return argument


def checkpoint_every(text: str) -> dict[str, int | float | None]:
    """Returns how often a state is written, as arguments of `run_into`.

    Args:
        text: a number of steps, or a time such as "30s", "5m" or "1h".

    Raises:
        ValueError: the text is neither.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)|([1-9]\d*)", text.strip())
    if not found:
        raise ValueError(
            "Expected --checkpoint_every to be a number of steps, such as 500, or a time, such as 30s, "
            f"5m or 1h. Found {text!r}."
        )
    number, unit, steps = found.groups()
    if steps is not None:
        return {"checkpoint_steps": int(steps), "checkpoint_seconds": 0.0}
    seconds = float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    return {"checkpoint_steps": None, "checkpoint_seconds": seconds}


def sentence(error: flags.Error, flag_values: flags.FlagValues) -> str:
    """Returns a sentence for an error of absl's parser."""
    if isinstance(error, flags.UnrecognizedFlagError):
        name = error.flagname
        known = [flag for flag in flag_values if flag in SETTINGS or flag in _OF_COMMANDS]
        meant = did_you_mean(name, known).replace("'", "").replace("mean ", "mean --")
        return f"Expected a known flag. Found --{name}.{meant or ' --help lists them.'}"
    found = re.fullmatch(r"flag --(\w+)=(.*?): (.*)", str(error), flags=re.DOTALL)
    if missing := re.fullmatch(r"Missing value for flag --(\w+)", str(error)):
        return f"Expected a value of --{missing[1]}. Found none."
    if not found:
        return str(error)
    name, text, reason = found.groups()
    if name not in SETTINGS or reason.startswith("Expected"):
        return reason if reason.startswith("Expected") else str(error)
    return f"Expected --{name} to be {KINDS[SETTINGS[name].kind]}. Found {text!r}."


def in_flags(message: str) -> str:
    """Returns a message of the rest of tfdp with flags in place of the names of arguments."""
    names = {known.argument or name: name for name, known in SETTINGS.items()}
    names |= {name: name for name in SETTINGS}
    any_name = "|".join(sorted(names, key=len, reverse=True))
    other = "|".join(known.argument for known in SETTINGS.values() if known.argument)
    for pattern in (
        rf"Invalid value received for argument `(?P<name>{any_name})`\.",
        rf"(?<=Expected )(?P<name>{any_name})(?= )",
        rf"(?<![\w/,.=-])(?P<name>{any_name})=(?P<value>'\w+'|[\w.+-]*\w)",
        rf"(?<![\w/-])(?P<name>{other})(?![\w=])",
    ):
        message = re.sub(pattern, lambda found: _as_flag(found, names), message)
    return message


def _as_flag(found: re.Match, names: dict[str, str]) -> str:
    flag = f"--{names[found['name']]}"
    if found[0].startswith("Invalid"):
        return f"{flag} cannot have this value."
    value = found.groupdict().get("value")
    return flag if value is None else f"{flag}={value.strip(chr(39))}"


_OF_COMMANDS = (
    "sweep", "model_dir", "overwrite", "resume", "checkpoint_every", "flagfile", "help",
)  # fmt: skip
