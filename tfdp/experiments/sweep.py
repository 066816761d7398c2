"""The points of --sweep, each with values of some settings as texts.

    --sweep=epsilon=0.5,1,2                              three points
    --sweep="epsilon=0.5,1,2 learning_rate=1,2,3"        three points; the settings move together
    --sweep=epsilon=0.5,1,2 --sweep=seed=1,2             six points: the product; epsilon varies slowest

This module imports neither TensorFlow nor Keras.
"""

import itertools
from collections.abc import Iterable

from tfdp._validate import did_you_mean
from tfdp.experiments.settings import SETTINGS


def product(sweeps: Iterable[str]) -> list[dict[str, str]]:
    """Returns the product of several sweeps; the values of the first sweep vary slowest.

    Without sweeps, the product has one point, which sets nothing.

    Args:
        sweeps: texts "name=value,value,...", or several of these, separated by spaces, with equally
            many values each.

    Raises:
        ValueError: a text does not have this form, or a setting is unknown or named twice.
    """
    points = [{}]
    for sweep in sweeps:
        more = _points(sweep)
        if twice := sorted(points[0].keys() & more[0].keys()):
            raise ValueError(f"Expected --sweep to name {', '.join(twice)} once. It does twice.")
        points = [one | other for one, other in itertools.product(points, more)]
    return points


def _points(sweep: str) -> list[dict[str, str]]:
    columns = {}
    for part in sweep.split():
        name, _, values = part.partition("=")
        texts = values.split(",")
        if not (name and all(texts)):
            raise ValueError(f"Expected --sweep to be name=value,value,... Received {part!r}.")
        if name not in SETTINGS or not SETTINGS[name].recorded:
            meant = did_you_mean(name, [n for n, known in SETTINGS.items() if known.recorded])
            raise ValueError(f"--sweep={part} does not name a setting that run.json holds.{meant}")
        if name in columns:
            raise ValueError(f"Expected --sweep to name {name} once. It does twice.")
        columns[name] = texts
    if len({len(texts) for texts in columns.values()}) != 1:
        raise ValueError(
            "Settings that move together need equally many values, at least one. Received "
            f"--sweep={sweep!r}. A --sweep for each makes the product."
        )
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def folder_name(point: dict[str, str]) -> str:
    """Returns the name of a point's folder, such as "epsilon=0.5,seed=1"."""
    return ",".join(f"{name}={text}" for name, text in point.items()).replace("/", "-")
