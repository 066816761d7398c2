"""The flags of a command that trains, made from the fields of `Experiment`.

    command_line.define()
    app.run(main, flags_parser=command_line.parse)       # and in main:
    points = command_line.points(sys.argv, recipes)

A setting has the value on the command line or in a --flagfile, if there is one. Otherwise it has the
value in the recipe <recipes>/<dataset>_<mechanism>.cfg, if that file exists and no --flagfile is
given. Otherwise it has the field's default.

This module imports neither TensorFlow nor Keras.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags

from tfdp.experiments import sweep
from tfdp.experiments.settings import GROUPS, NONE, SETTINGS, Experiment, Setting

_DEFINE = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}
_OF_THE_COMMAND = "This command"


@dataclasses.dataclass(frozen=True)
class Point:
    """One training of a command.

    Attributes:
        experiment: the settings of the training.
        values: the swept values as texts, by the names of the settings; empty if the command trains
            only once.
    """

    experiment: Experiment
    values: dict[str, str]

    @property
    def name(self) -> str:
        """The swept values in one text, unique among the points; also the name of the folder."""
        return sweep.folder_name(self.values)


def define(flag_values: flags.FlagValues = flags.FLAGS, sweeps: bool = True) -> None:
    """Defines a flag for every setting and, if `sweeps`, the flag --sweep."""
    here = {"flag_values": flag_values, "module_name": __name__}
    for name, known in SETTINGS.items():
        if known.allowed is not None:
            flags.DEFINE_enum(name, known.default, known.allowed, describe(known), **here)
        else:
            _DEFINE[known.kind](name, known.default, describe(known), **here)
    if not sweeps:
        return
    flags.DEFINE_multi_string(
        "sweep",
        None,
        'Trains once for each value, as in --sweep=epsilon=0.5,1,2 or --sweep="epsilon=1,2 seed=3,4", '
        "where the settings move together. Several make the product. A swept setting that is set as "
        "well keeps the points with that value.",
        **here,
    )


def describe(known: Setting) -> str:
    """Returns the help text of a flag. absl adds the default value, unless it is None."""
    if known.otherwise is None:
        return known.help
    return f"{known.help} It is {known.otherwise:g} where neither it nor --{known.rival} is set."


def parse(argv: Sequence[str]) -> list[str]:
    """Parses flags like `app.parse_flags_with_usage`, but prints --help in groups."""
    if any(argument in ("--help", "-help", "-?") for argument in argv[1:]):
        print(help_text())
        sys.exit(1)  # absl's exit status after --help
    return app.parse_flags_with_usage(argv)


def help_text(flag_values: flags.FlagValues = flags.FLAGS) -> str:
    """Returns the text of --help: the docstring of the program, then its flags in groups."""
    lines = [sys.modules["__main__"].__doc__ or ""]
    own = flag_values.get_key_flags_for_module(sys.argv[0])
    sweeps = ["sweep"] if "sweep" in flag_values else []
    names = [flag.name for flag in own if flag.name not in (*SETTINGS, "sweep")]
    grouped = {_OF_THE_COMMAND: names + sweeps}
    grouped |= {group: [] for group in GROUPS}
    for name, known in SETTINGS.items():
        grouped[known.group].append(name)
    for group, names in grouped.items():
        lines += [f"{group}:", *(_flag_help(flag_values[name]) for name in names), ""]
    recipes = "The recipe flags/defaults/<dataset>_<mechanism>.cfg comes before these defaults."
    return "\n".join([*lines, recipes, "--helpfull lists absl's own flags as well."])


def _flag_help(flag: flags.Flag) -> str:
    text = f"--{'[no]' if flag.boolean else ''}{flag.name}: {flag.help}"
    if flag.default_as_str:
        text += f" (default: {flag.default_as_str})"
    return flags.text_wrap(text, length=100, indent="      ", firstline_indent="  ")


def points(
    argv: Sequence[str], recipes: Path, flag_values: flags.FlagValues = flags.FLAGS
) -> list[Point]:
    """Returns the trainings that the parsed flags ask for, one for each point of the sweeps.

    If a swept setting is also set by a flag of its own, only the points with that value remain. If
    that leaves a single point, it is trained like a command without a sweep.

    Args:
        argv: the command line, with the program's name. It is searched for --flagfile, because absl
            keeps no record of that flag.
        recipes: the folder of the recipes.
        flag_values: the parsed flags.

    Raises:
        ValueError: a setting or a sweep is invalid, no point remains, or two points are equal.
    """
    given = {
        name: flag_values[name].value
        for name in SETTINGS
        if flag_values[name].present or not flag_values[name].using_default_value
    }
    if any(argument.lstrip("-").startswith("flagfile") for argument in argv[1:]):
        recipes = None
    sweeps = flag_values["sweep"].value if "sweep" in flag_values else None
    found = []
    for texts in sweep.product(sweeps or []):
        swept = {name: _value(name, text, flag_values) for name, text in texts.items()}
        for name in swept:  # else the points could differ in name only
            rival = SETTINGS[name].rival
            if rival in given or rival in swept:
                raise ValueError(
                    f"Expected one of --{name} and --{rival}. Found both, with {name} in --sweep."
                )
        if any(swept[name] != given[name] for name in swept.keys() & given.keys()):
            continue
        experiment = _experiment(swept | given, recipes, flag_values)
        varied = {name: text for name, text in texts.items() if name not in given}
        found.append(Point(experiment, varied))
    chosen = given.keys() & texts.keys()
    if not found:
        wanted = " and ".join(f"--{name}={given[name]}" for name in sorted(chosen))
        raise ValueError(f"Expected a point of --sweep with {wanted}. Found none.")
    _check_different(found)
    if chosen and len(found) == 1:  # nothing varies
        return [dataclasses.replace(found[0], values={})]
    return found


def common_name(found: Sequence[Point]) -> str:
    """Returns "<dataset>_<mechanism>", with "sweep" in place of a part that differs by point."""
    names = []
    for of in ("dataset", "mechanism"):
        values = {getattr(point.experiment, of) for point in found}
        names.append(values.pop() if len(values) == 1 else "sweep")
    return "_".join(names).replace("/", "-")


def _check_different(found: list[Point]) -> None:
    for index, point in enumerate(found):
        if any(point.experiment == other.experiment for other in found[:index]):
            raise ValueError(f"Expected the points of --sweep to differ. Found {point.name} twice.")


def _value(name: str, text: str, flag_values: flags.FlagValues):
    """Parses and checks the value of a swept setting."""
    known = SETTINGS.get(name)
    if known is None or not known.recorded:
        raise ValueError(
            f"Expected --sweep to name a setting that run.json holds. Found {name!r}; --help lists "
            "the settings."
        )
    value = _parsed(name, text, flag_values, f"--sweep with {name}={text}")
    try:
        known.check(value)
    except ValueError as error:
        raise ValueError(f"{error} It is in --sweep.") from None
    return value


def _parsed(name: str, text: str, flag_values: flags.FlagValues, where: str):
    try:
        return flag_values[name].parser.parse(text)
    except ValueError as error:
        raise ValueError(f"Expected a value that --{name} takes. Found {where}: {error}.") from None


def _experiment(given: dict, recipes: Path | None, flag_values: flags.FlagValues) -> Experiment:
    """Returns the experiment with the given settings, completed by the recipe and the defaults."""
    values = {name: known.default for name, known in SETTINGS.items()} | given
    if recipes is not None:
        path = recipes / f"{values['dataset']}_{values['mechanism']}.cfg"
        values |= _from_recipe(path, given, flag_values)
    if values["epsilon"] is not None and values["noise_multiplier"] is not None:
        raise ValueError("Expected one of --epsilon and --noise_multiplier. Found both.")
    for name, known in SETTINGS.items():
        if known.otherwise is not None and values[name] is None and values[known.rival] is None:
            private = values["mechanism"] != NONE
            values[name] = known.otherwise if private else None
    return Experiment(**values)


def _from_recipe(path: Path, given: dict, flag_values: flags.FlagValues) -> dict:
    """Returns the settings in a recipe, except those that are given or whose rival is given."""
    if not path.exists():
        return {}
    values = {}
    for flag in sweep.read_flag_file(path):
        name, text = sweep.flag_and_text(flag)
        if name not in SETTINGS:
            raise ValueError(f"Expected settings in {path}. Found {flag}.")
        if name not in given and SETTINGS[name].rival not in given:
            values[name] = _parsed(name, text, flag_values, f"{flag} in {path}")
    return values
