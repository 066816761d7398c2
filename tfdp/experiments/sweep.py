"""Sweeps: parses --sweep flags and flag files into points, each with values of some settings.

    --sweep=epsilon=0.5,1,2                              three points
    --sweep="epsilon=0.5,1,2 learning_rate=1,2,3"        three points; the settings move together
    --sweep=epsilon=0.5,1,2 --sweep=seed=1,2             six points: the product; epsilon varies slowest

This module imports neither TensorFlow nor Keras.
"""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

from tfdp.experiments.settings import SETTINGS


def parse(sweep: str) -> list[dict[str, str]]:
    """Returns the points of one sweep.

    Args:
        sweep: "name=value,value,...", or several of these, separated by spaces, with equally many
            values each.

    Returns:
        For each point the texts of the values, by the names of the settings.

    Raises:
        ValueError: the text does not have this form, or names a setting twice.
    """
    columns = {}
    for part in sweep.split():
        name, equals, values = part.partition("=")
        texts = values.split(",")
        if not (name and equals and all(texts)):
            raise ValueError(
                f"Expected --sweep to be name=value,value,... Found {part!r} in --sweep={sweep!r}."
            )
        if name in columns:
            raise ValueError(f"Expected --sweep to name {name} once. Found --sweep={sweep!r}.")
        columns[name] = texts
    if not columns:
        raise ValueError("Expected --sweep to be name=value,value,... Found an empty one.")
    lengths = {name: len(texts) for name, texts in columns.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{length} of {name}" for name, length in lengths.items())
        raise ValueError(
            f"Expected equally many values of settings that move together. Found {found} in "
            f"--sweep={sweep!r}; a --sweep for each makes the product."
        )
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def product(sweeps: Iterable[str]) -> list[dict[str, str]]:
    """Returns the product of several sweeps; the values of the first sweep vary slowest.

    Without sweeps, the product has one point, which sets nothing.

    Raises:
        ValueError: as for `parse`, or two sweeps name the same setting.
    """
    points = [{}]
    for sweep in sweeps:
        more = parse(sweep)
        if twice := sorted(points[0].keys() & more[0].keys()):
            raise ValueError(f"Expected --sweep to name {', '.join(twice)} once. Found it twice.")
        points = [one | other for one, other in itertools.product(points, more)]
    return points


def folder_name(values: dict[str, str]) -> str:
    """Returns the name of a point's folder, such as "epsilon=0.5,seed=1"."""
    return ",".join(f"{name}={text}" for name, text in values.items()).replace("/", "-")


def read_flag_file(path: Path) -> list[str]:
    """Returns the flags in a flag file, which has one flag in a line; other lines are comments."""
    lines = (line.strip() for line in Path(path).read_text().splitlines())
    return [line for line in lines if line.startswith("--")]


def flag_and_text(flag: str) -> tuple[str, str]:
    """Splits a flag, written --name=value, --name or --noname, into its name and its value's text.

    A flag without a value is boolean, and a "no" before the name of a setting negates it; the "no" of
    --normalize_output is a part of its name.
    """
    name, equals, text = flag.removeprefix("--").partition("=")
    if equals:
        return name, text
    negated = name.startswith("no") and name not in SETTINGS
    return (name.removeprefix("no"), "false") if negated else (name, "true")


def points_of(flags: Sequence[str]) -> list[tuple[dict[str, str], list[str]]]:
    """Returns the points that a flag file describes.

    Args:
        flags: the flags in the file, from `read_flag_file`.

    Returns:
        For each point its values by name, and the flags that train this point alone, without a
        sweep.
    """
    pairs = [(flag, *flag_and_text(flag)) for flag in flags]
    fixed = [(flag, name) for flag, name, _ in pairs if name != "sweep"]
    found = []
    for values in product(text for _, name, text in pairs if name == "sweep"):
        alone = [flag for flag, name in fixed if name not in values]
        found.append((values, alone + [f"--{name}={text}" for name, text in values.items()]))
    return found
