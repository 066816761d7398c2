"""Turns a command line into trainings, and resolves the sources of each setting.

    command.define()
    command.start(main, __doc__)                # and in main:
    points = command.points(sys.argv)

A setting has its default unless a source sets it. The sources, from weakest to strongest:

1. the recipe flags/defaults/<dataset>_<mechanism>.cfg, if there is one, and no --flagfile;
2. the flag files;
3. the command line;
4. the value of a --sweep (the command line overrides a sweep in a flag file).

Each source is a dictionary of the settings that it sets, and `override` puts a stronger one over a
weaker one.

This module imports neither TensorFlow nor Keras.
"""

import dataclasses
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

import tfdp
from tfdp import _settings
from tfdp._validate import did_you_mean
from tfdp.experiments import console, own_data
from tfdp.experiments.settings import SETTINGS, Experiment

_PACKAGE = Path(tfdp.__file__).parent
# The folder flags/ of an installed package or of a clone.
FLAG_FILES = next(p for p in (_PACKAGE / "flags", _PACKAGE.parent / "flags") if p.is_dir())
RECIPES = FLAG_FILES / "defaults"
_DEFAULTS = {name: known.default for name, known in SETTINGS.items()}


@dataclasses.dataclass(frozen=True)
class Point:
    """One training of a command.

    Attributes:
        experiment: The settings of the training.
        values: The swept values as text, by setting; empty without a sweep.
        read: The flag files, or the recipe, that settings were read from.
    """

    experiment: Experiment
    values: dict[str, str]
    read: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The swept values as one text, unique among the points; also the name of the folder."""
        return ",".join(f"{name}={text}" for name, text in self.values.items()).replace("/", "-")


def command_of(experiment: Experiment) -> str:
    """Returns the command for an experiment, without its folder and unrecorded settings."""
    return f"{console.command_line()} --flagfile={os.devnull} {experiment}"  # so that no recipe is read


def define(flag_values: flags.FlagValues = flags.FLAGS, sweeps: bool = True) -> None:
    """Defines a flag for every setting, and, if `sweeps`, the flag --sweep."""
    _settings.define(SETTINGS, flag_values)
    if sweeps:
        flags.DEFINE_multi_string(
            "sweep",
            None,
            "Trains once for each value, as in --sweep=epsilon=0.5,1,2; several form a grid.",
            flag_values=flag_values,
            module_name="Sweeps",
        )


def parse(
    argv: Sequence[str], doc: str | None = None, flag_values: flags.FlagValues = flags.FLAGS
) -> list[str]:
    """Parses flags, as `tfdp._settings.parse` does. Typed flags override flag files, in any order."""
    files, others = _split(argv)
    return _settings.parse([argv[0], *map(_flagfile, files), *others], doc, flag_values)


def start(main: Callable[[list[str]], int], doc: str | None) -> None:
    """Runs a command and exits with its status.

    Args:
        main: A function of the program's name and the arguments that are not flags.
        doc: The docstring of the command, for --help.
    """

    def parser(argv: Sequence[str]) -> list[str]:
        try:
            return parse(argv, doc)
        except ValueError as error:
            sys.exit(console.refuse(error))

    console.guarded(functools.partial(app.run, main, flags_parser=parser))


def points(argv: Sequence[str], recipes: Path | None = RECIPES) -> list[Point]:
    """Returns the trainings of a command line, one for each point of the sweeps.

    Args:
        argv: The command line, with the program's name. Flags that are not settings are ignored.
        recipes: The folder of the recipes. None disables recipes.

    Raises:
        ValueError: If a setting or a sweep is invalid.
    """
    files, words = _split(argv)
    typed, typed_sweeps = _source(words)
    filed, sweeps = _source(map(_flagfile, files), "In a flag file: ")
    given = typed.keys() | typed_sweeps.keys()
    swept = {n: t for n, t in sweeps.items() if not given & {n, SETTINGS[n].rival}} | typed_sweeps
    found = []
    for row in itertools.product(*swept.values()):  # the first sweep varies slowest
        texts = dict(zip(swept, row, strict=True))
        varied, _ = _source([f"--{name}={text}" for name, text in texts.items()], "In --sweep: ")
        values, read = _combined([filed, typed, varied], files, recipes)
        found.append(Point(_experiment(values), texts, read))
    return found


def override(weaker: Mapping[str, Any], stronger: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a weaker source, overridden by those of a stronger one.

    A setting of the stronger source also removes its rival from the weaker one (`epochs` removes
    `steps`), and settings that have no effect with it (`optimizer=adam` removes `momentum`).
    """
    rivals = {SETTINGS[name].rival for name in stronger}
    values = {n: value for n, value in weaker.items() if n not in rivals} | dict(stronger)
    causes = set(stronger)
    while silenced := {
        name
        for name in values.keys() - causes
        if (need := SETTINGS[name].unmet(_DEFAULTS | values)) and need.name in causes
    }:
        values = {name: value for name, value in values.items() if name not in silenced}
        causes |= silenced
    return values


def _source(words: Iterable[str], where: str = "") -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Returns the values that flags set, and the swept values as texts, by setting."""
    known = flags.FlagValues()
    define(known)
    try:
        known(["", *words], known_only=True)
        fixed = _settings.typed(SETTINGS, known)
        swept = _swept(known["sweep"].value or ())
        if twice := sorted(fixed.keys() & swept.keys()):
            raise ValueError(f"--{twice[0]} is both set and swept. Remove one of them.")
        _settings.check_rivals(SETTINGS, fixed.keys() | swept.keys())
    except (flags.Error, ValueError) as error:
        raise ValueError(f"{where}{error}") from error
    return fixed, swept


def _swept(sweeps: Iterable[str]) -> dict[str, list[str]]:
    """Returns the values of each swept setting, as texts."""
    found = {}
    for sweep in sweeps:
        name, _, values = sweep.partition("=")
        if name not in SETTINGS or not SETTINGS[name].recorded:
            meant = did_you_mean(name, [n for n, known in SETTINGS.items() if known.recorded])
            raise ValueError(
                f"--sweep={sweep} does not name a setting recorded in run.json.{meant}"
            )
        if name in found:
            raise ValueError(f"--sweep={name}=... is given twice. Remove one of them.")
        found[name] = values.split(",")
        if not all(found[name]) or len({*found[name]}) < len(found[name]):
            raise ValueError(
                f"Expected different values, as in --sweep=name=1,2. Received {sweep!r}."
            )
    return found


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits a command line into its flag files and its other arguments."""
    files, others, words = [], [], iter(argv[1:])
    for word in words:
        name, equals, path = word.partition("=")
        if name in ("--flagfile", "-flagfile"):
            files.append(path if equals else next(words, ""))
        else:
            others.append(word)
    return files, others


def _flagfile(path: str) -> str:
    """Returns the flag for a flag file. `flags/...` is found from every working directory."""
    places = (Path(path).expanduser(), FLAG_FILES.parent / path)
    for place in places:
        if place.exists() and not place.is_dir():
            return f"--flagfile={place}"
    raise ValueError(f"--flagfile={path} is not a file.")


def _combined(sources, files, recipes) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the values of all sources, including a recipe, and the files that were read."""
    values = functools.reduce(override, sources)
    if files or recipes is None:
        return values, tuple(files)
    complete = _DEFAULTS | values
    name = complete["dataset"].removeprefix(own_data.TFDS)
    path = recipes / f"{name}_{complete['mechanism']}.cfg".replace("/", "-")
    if not path.exists():
        return values, ()
    recipe, _ = _source([f"--flagfile={path}"], f"In {path}: ")
    return functools.reduce(override, [recipe, *sources]), (str(path),)


def _experiment(values: Mapping[str, Any]) -> Experiment:
    """Returns the experiment with these settings, after checking that its files exist."""
    weights = values.get("initial_weights")
    if weights is not None and not Path(weights).expanduser().is_file():
        raise ValueError(
            f"--initial_weights={weights} is not a file. Name a file, or remove the flag."
        )
    experiment = Experiment(**values)
    own_data.check_files(experiment)
    return experiment
