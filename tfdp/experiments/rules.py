"""What one setting of an experiment may be, and what several have to be together.

This module imports neither TensorFlow nor Keras.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tfdp._validate import did_you_mean
from tfdp.accounting.mechanisms import NoMechanism
from tfdp.data.datasets import check_name, kind_of
from tfdp.experiments.public_data import PUBLIC
from tfdp.models import MODELS as ARCHITECTURES
from tfdp.models import PRIVATE_BATCH

if TYPE_CHECKING:
    from tfdp.experiments.settings import Experiment

NONE = NoMechanism.name
# The networks for images, for rows of text, and for texts.
MODELS = tuple(name for name, known in ARCHITECTURES.items() if not known.takes_tokens)
TEXT_MODELS = ("tutorial_lstm",)
WORD_MODELS = ("bilstm", "bilstm_dl", "transformer")


class Need(NamedTuple):
    """A condition on another setting, without which a setting has no effect.

    Attributes:
        name: the other setting.
        accepts: the values with which the condition is met, or a function that tells them.
    """

    name: str
    accepts: tuple[Any, ...] | Callable[[Any], bool]

    def is_met(self, values: Mapping[str, Any]) -> bool:
        """Whether the other setting has a value with which the setting is used."""
        found = values[self.name]
        return self.accepts(found) if callable(self.accepts) else found in self.accepts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """The declaration of one field of `Experiment`.

    Attributes:
        help: the help text, one or more sentences.
        default: the default value; with None, the value may be None.
        group: the heading of --help that begins with this setting; None continues the last one.
        choices: the allowed values, or a function that returns them; None allows any value.
        interval: the allowed numbers, such as "(0, 1)"; None allows all above 0.
        needs: conditions on other settings, without which the setting has no effect.
        rival: the setting that this one replaces, as `steps` replaces `epochs`.
        recorded: whether the setting is written into run.json.
        name: the name of the field.
        kind: the type of the value: bool, int, float or str.
    """

    help: str
    default: Any = None
    group: str | None = None
    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] | None = None
    interval: str | None = None
    needs: tuple[Need, ...] = ()
    rival: str | None = None
    recorded: bool = True
    name: str = ""
    kind: type = str

    @property
    def allowed(self) -> tuple[str, ...] | None:
        """The allowed values, as `choices` gives them at this moment; None allows any value."""
        return self.choices() if callable(self.choices) else self.choices

    def check(self, value) -> None:
        """Raises ValueError if the setting cannot have this value, whatever the others are."""
        if value is None and self.default is None:
            return
        allowed = self.allowed
        if allowed is not None and value not in allowed:
            raise ValueError(
                f"Expected --{self.name} to be one of {', '.join(allowed)}. Received {value}."
                f"{did_you_mean(str(value), allowed)}"
            )
        if self.interval is not None and not _is_within(value, self.interval):
            raise ValueError(
                f"Expected --{self.name} to be a number in {self.interval}. Received {value}."
            )

    def unmet(self, values: Mapping[str, Any]) -> Need | None:
        """Returns why the setting has no effect beside other values; None if it has one."""
        return next((need for need in self.needs if not need.is_met(values)), None)


def _is_within(value: float | None, interval: str) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    includes_low = interval.startswith("[") and value == low
    return value is not None and (low < value < high or includes_low)


def check_together(experiment: "Experiment") -> None:
    """Raises ValueError if valid settings do not fit together.

    Here is what would cost a download, or what the rest of tfdp does not refuse by itself.
    """
    check_name(experiment.dataset)
    check_model(experiment, kind_of(experiment.dataset))
    public = experiment.public_data or PUBLIC.get(experiment.dataset)
    if experiment.private and experiment.takes_public_data and experiment.dataset == public:
        raise ValueError(
            f"--dataset={public} cannot be private and public at once. Use --public_data=strokes, or "
            "--normalization=layer."
        )
    averages = experiment.optimizer == "sgd" and not experiment.momentum
    if experiment.normalization == PRIVATE_BATCH and not averages:
        raise ValueError(
            f"--normalization={PRIVATE_BATCH} needs --optimizer=sgd --momentum=0: only then are its "
            "running statistics moving averages. Pass them, or use --normalization=layer."
        )


def check_model(experiment: "Experiment", kind: str | None) -> None:
    """Raises ValueError if the network does not take examples of a kind; None accepts any."""
    fitting = {"images": MODELS, "rows": TEXT_MODELS, "texts": WORD_MODELS}.get(kind)
    if fitting is not None and experiment.model not in fitting:
        raise ValueError(
            f"--model={experiment.model} does not fit --dataset={experiment.dataset}, whose examples "
            f"are {kind}. Use --model={' or '.join(fitting)}."
        )
