"""Puts together the settings that the command line, flag files and a recipe ask for.

What is typed is stronger than what a flag file says, and a flag file is stronger than the recipe of
the data set and the mechanism. A stronger layer silences in a weaker one the same settings, their
rivals (`epochs` for `steps`), and the settings that have no effect any more: with --optimizer=adam
on the command line, a recipe's --momentum is left out. Within one layer, such things are refused.

This module imports neither TensorFlow nor Keras.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfdp.experiments.conditions import why_unused
from tfdp.experiments.settings import SETTINGS


@dataclasses.dataclass(frozen=True)
class Layer:
    """The settings that come from one place.

    Attributes:
        where: the place in words, for messages.
        fixed: values by name.
        swept: names that the layer's sweeps give values to.
    """

    where: str
    fixed: dict[str, Any]
    swept: frozenset[str] = frozenset()

    def check(self) -> None:
        """Raises ValueError if the layer sets a setting and its rival."""
        named = self.fixed.keys() | self.swept
        for name in SETTINGS:
            rival = SETTINGS[name].rival
            if name in named and rival in named:
                swept = sorted({name, rival} & self.swept)
                also = f", with {' and '.join(swept)} in --sweep" if swept else ""
                raise ValueError(
                    f"Expected one of --{name} and --{rival} {self.where}. Found both{also}."
                )


def combine(layers: list[Layer], point: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of all settings that are set, by name.

    Args:
        layers: the layers, the strongest first.
        point: the values of the swept settings.
    """
    values, strong = {}, set()
    for layer in layers:
        swept = {name: point[name] for name in layer.swept if name in point}
        new = {n: v for n, v in (layer.fixed | swept).items() if not _is_silenced(n, values)}
        values |= new
        weak = new.keys() - swept.keys()
        strong |= swept.keys()
        _leave_out_unused(values, weak, strong)
        strong |= weak
    return values


def _is_silenced(name: str, stronger) -> bool:
    """Whether a setting, or its rival, is among stronger ones."""
    return name in stronger or SETTINGS[name].rival in stronger


def kept_sweeps(weaker: Sequence[str], typed: Layer) -> list[str]:
    """Returns the sweeps of a flag file without the settings that what is typed silences.

    A typed value of a swept setting does not silence it: it keeps the points with that value.
    """
    rivals = {SETTINGS[name].rival for name in typed.fixed.keys() | typed.swept}
    silenced = rivals | typed.swept
    kept = []
    for text in weaker:
        parts = [part for part in text.split() if part.partition("=")[0] not in silenced]
        if parts or not text.split():  # an empty sweep is refused when it is parsed
            kept.append(" ".join(parts))
    return kept


def _leave_out_unused(values: dict, weak: set[str], strong: set[str]) -> None:
    """Removes weak values that have no effect because of a strong one, until none is left."""
    strong = set(strong)
    found = True
    while found:
        complete = {name: known.default for name, known in SETTINGS.items()} | values
        found = [
            name
            for name in weak & values.keys()
            if (unused := why_unused(SETTINGS[name], complete)) and unused.because in strong
        ]
        for name in found:
            del values[name]
        strong |= set(found)
