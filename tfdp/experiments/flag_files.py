"""Which flags a user has typed, and which come from a --flagfile.

absl puts the flags of a file in the place of --flagfile, and keeps no record of where a value came
from. Here the flags of all files come first, so that what is typed wins wherever it is typed.

This module imports neither TensorFlow nor Keras.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

from absl import flags


class Words(NamedTuple):
    """The words of a command line, without the program's name.

    Attributes:
        files: the flag files that are named, in order.
        filed: the flags in these files, and in the files that these name.
        typed: all other words.
    """

    files: tuple[str, ...]
    filed: tuple[str, ...]
    typed: tuple[str, ...]


def split(argv: Sequence[str], flag_values: flags.FlagValues) -> Words:
    """Splits a command line, with the program's name, into what files say and what is typed.

    Raises:
        ValueError: a flag file is not named or does not exist.
    """
    files, typed = [], []
    words = list(argv[1:])
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            typed += [word, *words]
            break
        if word.startswith("-") and name.lstrip("-") == "flagfile":
            if not equals and words:
                value = words.pop(0)
            files.append(_existing(value))
        else:
            typed.append(word)
            if _takes_next(word, flag_values) and words:
                typed.append(words.pop(0))
    directives = [f"--flagfile={path}" for path in files]
    try:
        filed = flag_values.read_flags_from_files(directives)
    except flags.Error as error:
        found = " ".join(str(error).replace("ERROR:: ", "").split())
        raise ValueError(f"Expected flag files that can be read. Found: {found}.") from error
    return Words(tuple(files), tuple(filed), tuple(typed))


def pairs(words: Sequence[str], flag_values: flags.FlagValues) -> list[tuple[str, str]]:
    """Returns the name and the value's text of each flag in `words`, in order.

    A boolean flag without a value has the text "true", or "false" after "no". Unknown flags are left
    out.
    """
    found, words = [], list(words)
    while words:
        word = words.pop(0)
        if word == "--":
            break
        if not word.startswith("-"):
            continue
        name, equals, text = word.lstrip("-").partition("=")
        if name in flag_values and not equals and flag_values[name].boolean:
            text = "true"
        elif name in flag_values and not equals:
            text = words.pop(0) if words else ""
        elif not equals and name.startswith("no") and name[2:] in flag_values:
            name, text = name[2:], "false"
        if name in flag_values:
            found.append((name, text))
    return found


def _takes_next(word: str, flag_values: flags.FlagValues) -> bool:
    """Whether the next word is the value of this one."""
    name = word.lstrip("-")
    return word.startswith("-") and name in flag_values and not flag_values[name].boolean


def _existing(path: str) -> str:
    if not path:
        raise ValueError("Expected --flagfile to name a file. Found no name.")
    path = os.path.expanduser(path)
    if not os.path.isfile(path):
        raise ValueError(f"Expected --flagfile to name a file. Found no file {path}.")
    return path
