"""The declaration of one setting of an experiment: its help, its bounds and what it goes with.

This module imports neither TensorFlow nor Keras.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from tfdp._validate import did_you_mean

# Headings of `train.py --help`, in the order in which they are printed.
PRIVACY = "Privacy"
DATA = "Data and model"
WORDS = "Words, for texts"
START = "Pre-training and fine-tuning"
TRAINING = "Training"
CLIPPING = "Clipping"
OWN = "Settings of some mechanisms"
EXECUTION = "Execution"
GROUPS = (PRIVACY, DATA, WORDS, START, TRAINING, CLIPPING, OWN, EXECUTION)


@dataclasses.dataclass(frozen=True)
class Need:
    """A condition that one setting sets on another one.

    Attributes:
        name: the other setting.
        values: the values of the other setting with which the setting is used; None for every value
            but zero.
        said: the condition in words, if `values` would be too long a list.
    """

    name: str
    values: tuple[Any, ...] | None = None
    said: str | None = None

    def is_met(self, values: Mapping[str, Any]) -> bool:
        """Whether the other setting has a value with which the setting is used."""
        found = values[self.name]
        return bool(found) if self.values is None else found in self.values

    def words(self) -> str:
        """The condition in words, such as "--optimizer=sgd"."""
        if self.said is not None:
            return self.said
        if self.values is None:
            return f"--{self.name} above 0"
        return " or ".join(f"--{self.name}={value}" for value in self.values if value is not None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """The description of one field of `Experiment`.

    Attributes:
        help: the help text, one or more sentences.
        group: the heading of --help under which the setting is printed, one of `settings.GROUPS`.
        choices: the allowed values, or a function that returns them; None allows any value.
        explain: a function that returns a few words about one of the choices, for --help.
        above: an exclusive lower bound on the value, which must also be finite; None sets no bound.
        at_least: an inclusive lower bound on the value, which must also be finite; None sets no
            bound.
        below: an exclusive upper bound on the value.
        own: whether only some mechanisms have the setting: those that name it in their `settings`.
            The value None means the mechanism's default.
        private: whether only private mechanisms use the setting.
        rule: whether the setting belongs to the update rule, which some mechanisms have of their own.
        needs: conditions on other settings, without which the setting has no effect. Any value but
            the default is then refused.
        recorded: whether the setting is written into run.json.
        rival: the name of the setting that this one can replace, as `epochs` and `steps` replace each
            other. A value of one of the two silences a weaker value of the other, such as a recipe's.
        otherwise: the value on a command line with a private mechanism that sets neither this setting
            nor its rival; None leaves the setting at its default.
        argument: the name that the rest of tfdp has for the setting, if it is another one.
        name: the name of the field.
        kind: the type of the value: bool, int, float or str.
        optional: whether the value may be None.
        default: the default value.
    """

    help: str
    group: str
    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] | None = None
    explain: Callable[[str], str] | None = None
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    own: bool = False
    private: bool = False
    rule: bool = False
    needs: tuple[Need, ...] = ()
    recorded: bool = True
    rival: str | None = None
    otherwise: float | None = None
    argument: str | None = None
    name: str = ""
    kind: type = str
    optional: bool = False
    default: Any = None

    @property
    def allowed(self) -> tuple[str, ...] | None:
        """The allowed values, as `choices` gives them at this moment; None allows any value."""
        return self.choices() if callable(self.choices) else self.choices

    def check(self, value) -> None:
        """Raises ValueError if the setting cannot have this value, whatever the others are."""
        if value is None:
            if not self.optional:
                raise ValueError(f"Expected --{self.name} to be set. Found None.")
        elif self.allowed is not None:
            if value not in self.allowed:
                raise ValueError(not_a_choice(self.name, value, self.allowed))
        elif not self._is_within(value):
            raise ValueError(f"Expected --{self.name} to be {self._range()}. Found {value}.")

    def _is_within(self, value) -> bool:
        above = self.above is None or self.above < value < math.inf
        at_least = self.at_least is None or self.at_least <= value < math.inf
        return above and at_least and (self.below is None or value < self.below)

    def _range(self) -> str:
        bounds = [] if self.above is None else [f"above {self.above:g}"]
        bounds += [] if self.at_least is None else [f"at least {self.at_least:g}"]
        bounds += [] if self.below is None else [f"below {self.below:.10g}"]
        words = " and ".join(bounds)
        if self.kind is not float:
            return words
        return f"a finite number {'of ' if words.startswith('at') else ''}{words}"


def setting(default, help: str, *, group: str, **known) -> Any:
    """Declares a field of `Experiment`; the arguments are the attributes of `Setting`."""
    described = Setting(help=help, group=group, default=default, **known)
    return dataclasses.field(default=default, metadata={"setting": described})


def not_a_choice(name: str, value, allowed: tuple[str, ...]) -> str:
    """Returns the sentence that refuses a value, with the choice that was probably meant."""
    return (
        f"Expected --{name} to be one of {', '.join(allowed)}. Found {value!r}."
        f"{did_you_mean(str(value), allowed)}"
    )
