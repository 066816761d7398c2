"""The flags of a command that trains, made from the fields of `Experiment`.

    command_line.define()
    parse = functools.partial(command_line.parse, recipes=recipes)
    app.run(main, flags_parser=parse)       # and in main:
    points = command_line.points(sys.argv, recipes)

A setting has the value on the command line, if there is one, or else that in a --flagfile. Otherwise
it has the value in the recipe <recipes>/<dataset>_<mechanism>.cfg, if that file exists and no
--flagfile is given. Otherwise it has the field's default. `layers.py` says what becomes of rivals.

This module imports neither TensorFlow nor Keras.
"""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from tfdp._validate import did_you_mean
from tfdp.experiments import flag_files, sweep
from tfdp.experiments.conditions import NONE, check_files, check_folder
from tfdp.experiments.correlation import check_open
from tfdp.experiments.layers import Layer, combine, kept_sweeps
from tfdp.experiments.parsing import KINDS, ChoiceParser, sentence
from tfdp.experiments.settings import SETTINGS, Experiment, Setting

_DEFINE = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}


@dataclasses.dataclass(frozen=True)
class Point:
    """One training of a command.

    Attributes:
        experiment: the settings of the training.
        values: the swept values as texts, by the names of the settings; empty if the command trains
            only once.
        read: the flag files, or the recipe, that settings were read from.
        command: the command that makes this training alone, without the folder of its result.
    """

    experiment: Experiment
    values: dict[str, str]
    read: tuple[str, ...] = ()
    command: str | None = None

    @property
    def name(self) -> str:
        """The swept values in one text, unique among the points; also the name of the folder."""
        return sweep.folder_name(self.values)


def define(flag_values: flags.FlagValues = flags.FLAGS, sweeps: bool = True) -> None:
    """Defines a flag for every setting and, if `sweeps`, the flag --sweep."""
    here = {"flag_values": flag_values, "module_name": __name__}
    for name, known in SETTINGS.items():
        text = describe(known)
        if known.allowed is not None:
            parser, serializer = ChoiceParser(name, known.allowed), flags.ArgumentSerializer()
            flags.DEFINE(parser, name, known.default, text, serializer=serializer, **here)
        else:
            _DEFINE[known.kind](name, known.default, text, **here)
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
    """Returns the help text of a flag, without its default value."""
    listed = "" if known.allowed is None else f" One of: {', '.join(known.allowed)}."
    if known.otherwise is None:
        return known.help + listed
    return f"{known.help} It is {known.otherwise:g} where neither it nor --{known.rival} is set."


def parse(argv: Sequence[str], flag_values: flags.FlagValues = flags.FLAGS) -> list[str]:
    """Parses flags; what is typed wins over flag files, wherever it is typed.

    Returns:
        The words that are no flags, after the program's name.

    Raises:
        ValueError: a flag is unknown or has a value that it does not take.
    """
    words = flag_files.split(argv, flag_values)
    try:
        return flag_values([argv[0], *words.filed, *words.typed])
    except flags.Error as error:
        raise ValueError(sentence(error, flag_values)) from error


def points(
    argv: Sequence[str], recipes: Path | None, flag_values: flags.FlagValues = flags.FLAGS
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
    words = flag_files.split(argv, flag_values)
    typed, filed, sweeps = _layers(words, flag_values)
    if words.files:
        recipes = None
    given = typed.fixed | {n: v for n, v in filed.fixed.items() if n not in typed.fixed}
    given = {n: v for n, v in given.items() if n in typed.fixed or n not in typed.swept}
    found = []
    for texts in sweep.product(sweeps):
        swept = {name: _value(name, text, flag_values) for name, text in texts.items()}
        if any(swept[name] != given[name] for name in swept.keys() & given.keys()):
            continue
        varied = {name: text for name, text in texts.items() if name not in given}
        found.append(_point([typed, filed], swept, varied, words.files, recipes, flag_values))
    chosen = given.keys() & texts.keys()
    if not found:
        wanted = " and ".join(f"--{name}={given[name]}" for name in sorted(chosen))
        raise ValueError(f"Expected a point of --sweep with {wanted}. Found none.")
    _check_different(found)
    if chosen and len(found) == 1:  # nothing varies
        return [dataclasses.replace(found[0], values={})]
    return found


def _layers(words, flag_values) -> tuple[Layer, Layer, list[str]]:
    """Returns the layer that is typed, that of the flag files, and the sweeps of both."""
    values = {
        name: flag_values[name].value
        for name in SETTINGS
        if flag_values[name].present or not flag_values[name].using_default_value
    }
    texts = flag_files.pairs(words.filed, flag_values)
    named = {name for name, _ in flag_files.pairs(words.typed, flag_values)}
    filed = {name: text for name, text in texts if name in SETTINGS}
    fixed = {n: v for n, v in values.items() if n in named or n not in filed}
    filed_sweeps = [text for name, text in texts if name == "sweep"]
    sweeps = list(flag_values["sweep"].value or []) if "sweep" in flag_values else []
    typed_sweeps = sweeps[len(filed_sweeps) :]
    typed = Layer("on the command line", fixed, _swept(typed_sweeps))
    typed.check()
    below = Layer(
        "in the flag files",
        {name: _parsed(name, t, flag_values, "a flag file") for name, t in filed.items()},
        _swept(filed_sweeps),
    )
    below.check()
    return typed, below, kept_sweeps(filed_sweeps, typed) + typed_sweeps


def _swept(sweeps: Sequence[str]) -> frozenset[str]:
    names = {part.partition("=")[0] for text in sweeps for part in text.split()}
    return frozenset(names & SETTINGS.keys())


def _point(layers, swept, varied, files, recipes, flag_values) -> Point:
    values = combine(layers, swept)
    read = files
    if recipes is not None:
        named = {n: values.get(n, SETTINGS[n].default) for n in ("dataset", "mechanism")}
        path = recipes / f"{named['dataset']}_{named['mechanism']}.cfg".replace("/", "-")
        if path.exists():
            recipe = Layer(f"in {path}", _from_recipe(path, flag_values))
            recipe.check()
            values = combine([*layers, recipe], swept)
            read = (str(path),)
    typed = {n: v for n, v in layers[0].fixed.items() if n in values and SETTINGS[n].recorded}
    typed |= {n: swept[n] for n in varied}
    words = [*(f"--flagfile={path}" for path in files), *map(flag_of, typed, typed.values())]
    command = shlex.join(["python", "train.py", *words])
    return Point(_experiment(values), varied, read, command)


def flag_of(name: str, value) -> str:
    """Returns the flag that sets a setting to a value."""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    return f"--{name}={value:g}" if float_is_short(value) else f"--{name}={value}"


def float_is_short(value) -> bool:
    """Whether the number is a float that its six leading digits describe."""
    return isinstance(value, float) and float(f"{value:g}") == value


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
        meant = did_you_mean(name, [n for n, each in SETTINGS.items() if each.recorded])
        raise ValueError(
            f"Expected --sweep to name a setting that run.json holds. Found {name!r}; --help lists "
            f"the settings.{meant}"
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
        known, reason = SETTINGS[name], str(error)
        if known.allowed is None:  # the reason is Python's or absl's, not a sentence
            reason = f"Expected {KINDS[known.kind]} in place of {text!r}."
        raise ValueError(f"Expected a value that --{name} takes. Found {where}. {reason}") from None


def _experiment(values: dict) -> Experiment:
    """Returns the experiment with these settings, completed by the defaults."""
    values = {name: known.default for name, known in SETTINGS.items()} | values
    for name, known in SETTINGS.items():
        if known.otherwise is not None and values[name] is None and values[known.rival] is None:
            private = values["mechanism"] != NONE
            values[name] = known.otherwise if private else None
    experiment = Experiment(**values)
    check_open(experiment)
    check_folder(experiment)
    check_files(experiment)
    return experiment


def _from_recipe(path: Path, flag_values: flags.FlagValues) -> dict:
    """Returns the values in a recipe, which has settings only."""
    values = {}
    for flag in sweep.read_flag_file(path):
        name, text = sweep.flag_and_text(flag)
        if name not in SETTINGS:
            raise ValueError(f"Expected settings in {path}. Found {flag}.")
        values[name] = _parsed(name, text, flag_values, f"{flag} in {path}")
    return values
