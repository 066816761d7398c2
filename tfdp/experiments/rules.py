"""What one setting of an experiment may be, and what several have to be together.

This module imports neither TensorFlow nor Keras.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tfdp._validate import did_you_mean
from tfdp.accounting.mechanisms.none import NoMechanism
from tfdp.accounting.mechanisms.registry import mechanism_class, mechanism_names
from tfdp.data.datasets import check_name, input_shape, kind_of
from tfdp.experiments.public_data import PUBLIC, sources_for
from tfdp.models import MODELS as ARCHITECTURES
from tfdp.models import PRIVATE_BATCH

if TYPE_CHECKING:
    from tfdp.experiments.settings import Experiment

NONE = NoMechanism.name
# The number of training examples, where it is known before the data are read.
EMBEDDED = {"digits": 1437}
# The embeddings that are drawn at random; any other value of --embeddings is the path of a file.
DRAWN_EMBEDDINGS = ("trained", "frozen")
# The networks for rows of text; for texts, with the length of the vectors of words where only one fits;
# and for images, with the least height and width.
TEXT_MODELS = ("tutorial_lstm",)
_TOKENS = [name for name, known in ARCHITECTURES.items() if known.takes_tokens]
WORD_MODELS = {n: {"transformer": 64}.get(n) for n in _TOKENS if n not in TEXT_MODELS}
MODELS = {n: known.smallest_image or 1 for n, known in ARCHITECTURES.items() if n not in _TOKENS}


@dataclasses.dataclass(frozen=True)
class Need:
    """A condition on another setting, without which a setting has no effect.

    Attributes:
        name: the other setting.
        values: the values with which the condition is met; None for every value but zero.
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
        listed = " or ".join(f"--{self.name}={v}" for v in self.values or () if v is not None)
        return self.said or listed or f"--{self.name} above 0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """The declaration of one field of `Experiment`.

    Attributes:
        help: the help text, one or more sentences.
        default: the default value.
        group: the heading of --help that begins with this setting; None continues the last one.
        choices: the allowed values, or a function that returns them; None allows any value.
        interval: the allowed numbers, such as "(0, 1)"; None allows all above 0.
        private: whether only private mechanisms use the setting.
        own: whether only mechanisms that name it in their `settings` use the setting.
        rule: whether only mechanisms without an update rule of their own use the setting.
        needs: other conditions, without which the setting has no effect.
        rival: the setting that this one replaces, as `steps` replaces `epochs`.
        recorded: whether the setting is written into run.json.
        name: the name of the field.
        kind: the type of the value: bool, int, float or str.
        optional: whether the value may be None.
    """

    help: str
    default: Any = None
    group: str | None = None
    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] | None = None
    interval: str | None = None
    private: bool = False
    own: bool = False
    rule: bool = False
    needs: tuple[Need, ...] = ()
    rival: str | None = None
    recorded: bool = True
    name: str = ""
    kind: type = str
    optional: bool = False

    @property
    def allowed(self) -> tuple[str, ...] | None:
        """The allowed values, as `choices` gives them at this moment; None allows any value."""
        return self.choices() if callable(self.choices) else self.choices

    def check(self, value) -> None:
        """Raises ValueError if the setting cannot have this value, whatever the others are."""
        expected = None
        if value is None:
            expected = None if self.optional else "a value"
        elif (allowed := self.allowed) is not None and value not in allowed:
            expected = f"one of {', '.join(allowed)}"
        elif self.interval is not None and not _is_within(value, self.interval):
            expected = f"a number in {self.interval}"
        if expected is not None:
            meant = did_you_mean(value, allowed) if expected.startswith("one of") else ""
            raise ValueError(f"Expected --{self.name} to be {expected}. Received {value}.{meant}")

    def unmet(self, values: Mapping[str, Any]) -> Need | None:
        """Returns why the setting has no effect beside other values; None if it has one."""
        mechanism = values["mechanism"]
        kind = mechanism_class(mechanism)
        if self.private and mechanism == NONE:
            return Need("mechanism", said="a private mechanism")
        if self.own and self.name not in kind.settings:
            having = (m for m in mechanism_names() if self.name in mechanism_class(m).settings)
            return Need("mechanism", tuple(having))
        if self.rule and kind.update_rules == "own":
            return Need("mechanism", said="a mechanism whose paper leaves the update rule open")
        return next((need for need in self.needs if not need.is_met(values)), None)


def _is_within(value: float, interval: str) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    return (low < value or (interval[0] == "[" and low == value)) and value < high


def check_together(experiment: "Experiment") -> None:
    """Raises ValueError if valid settings do not fit together."""
    check_name(experiment.dataset)
    for conflicts in (_with_mechanism, _with_data, _with_model, _without_proof):
        for conflict in conflicts(experiment):
            raise ValueError(conflict)
    if experiment.dataset in EMBEDDED:
        check_number(experiment, EMBEDDED[experiment.dataset])


def check_number(experiment: "Experiment", num_examples: int) -> None:
    """Raises ValueError if a lot is larger than the training data."""
    if not experiment.batch_size <= num_examples:
        raise ValueError(
            f"Expected --batch_size to be at most the number of training examples, {num_examples:,}. "
            f"Received {experiment.batch_size:,}."
        )


def check_files(experiment: "Experiment") -> None:
    """Raises ValueError if a file or folder that a setting names is not there."""
    folder = experiment.data_dir
    if folder is not None and not os.path.isdir(os.path.expanduser(folder)) and "://" not in folder:
        raise ValueError(
            f"--data_dir={folder} is not a folder. Name the one that holds the data, or make it: data "
            "are downloaded to it."
        )
    named = {name: getattr(experiment, name) for name in ("vocabulary", "initial_weights")}
    if experiment.embeddings not in DRAWN_EMBEDDINGS:
        named["embeddings"] = experiment.embeddings
    for name, path in named.items():
        if path is not None and not os.path.isfile(os.path.expanduser(path)):
            also = f" Or pass {' or '.join(DRAWN_EMBEDDINGS)}." if name == "embeddings" else ""
            raise ValueError(f"--{name}={path} is not a file. Name one, or leave it out.{also}")


def _with_mechanism(experiment: "Experiment") -> Iterator[str]:
    """Yields what does not fit the mechanism, or how lots are drawn and clipped."""
    mechanism, kind = experiment.mechanism, mechanism_class(experiment.mechanism)
    other = experiment.optimizer != "sgd" and experiment.guarantee != "claimed"
    if kind.update_rules == "linear" and other:
        yield (
            f"No finite epsilon can be proven for --mechanism={mechanism} with "
            f"--optimizer={experiment.optimizer}: the rule's state is un-noised and private. Use "
            "--optimizer=sgd (with or without --momentum), or --guarantee=claimed."
        )
    if experiment.clipping == "adaptive" and not kind.adaptive_clipping:
        yield (
            f"--mechanism={mechanism} cannot be combined with --clipping=adaptive: its noise is shared "
            "by several steps, which need one clip norm."
        )
    size, number = experiment.batch_size, experiment.microbatches
    if number is not None and size % number:
        yield f"Expected --microbatches to divide --batch_size ({size}). Received {number}."
    chosen = "strategy" in kind.settings
    if experiment.sampling == "cyclic_poisson" and experiment.groups is None and not chosen:
        yield (
            "--sampling=cyclic_poisson needs --groups, such as --groups=4: how many groups of the data "
            "take turns. Pass it, or use --sampling=poisson."
        )


def _with_data(experiment: "Experiment") -> Iterator[str]:
    """Yields what does not fit the data, or its public examples."""
    dataset, source = experiment.dataset, experiment.public_data
    for name in ("data_dir", "train_split", "test_split"):
        if dataset in EMBEDDED and getattr(experiment, name) is not None:
            yield (
                f"--{name} has no effect with --dataset={dataset}, which is embedded with one split. "
                "Leave it out."
            )
    if not experiment.takes_public_data:
        return
    if dataset not in PUBLIC:
        yield (
            f"--normalization=batch needs a dataset that has public examples: "
            f"{', '.join(sorted(PUBLIC))}. Use --normalization=layer with --dataset={dataset}."
        )
    elif experiment.private and (source or PUBLIC[dataset]) == dataset:
        yield (
            f"With a private mechanism, public examples have to be from other data than "
            f"--dataset={dataset}. Use --public_data=strokes, or --normalization=layer."
        )
    elif source is not None and source not in (fitting := sources_for(dataset)):
        height, width, _ = input_shape(dataset)
        yield (
            f"Expected --public_data={' or '.join(fitting)} with --dataset={dataset}, whose images "
            f"have {height}x{width} pixels. Received {source}."
        )


def _with_model(experiment: "Experiment") -> Iterator[str]:
    """Yields what does not fit the network."""
    model, dataset = experiment.model, experiment.dataset
    kind, shape = kind_of(dataset), input_shape(dataset)
    fitting, words = {
        "images": (MODELS, "images"),
        "rows": (TEXT_MODELS, "rows of text"),
        "texts": (WORD_MODELS, "texts"),
        None: ((*MODELS, *WORD_MODELS), "images or texts"),
    }[kind]
    if kind == "images":
        fitting = [name for name, least in MODELS.items() if least <= min(shape[:2])]
        words = f"images of {shape[0]}x{shape[1]} pixels"
    if model not in fitting:
        yield (
            f"--model={model} does not fit --dataset={dataset}, whose examples are {words}. Use "
            f"--model={' or '.join(fitting)}."
        )
    needed, width = WORD_MODELS.get(model), experiment.embedding_width
    if needed is not None and width not in (None, needed):
        yield f"Expected --embedding_width={needed} with --model={model}. Received {width}."
    rule = f"--optimizer={experiment.optimizer}"
    if experiment.momentum:
        rule = f"--momentum={experiment.momentum}"
    if experiment.normalization == PRIVATE_BATCH and rule != "--optimizer=sgd":
        yield (
            f"--normalization={PRIVATE_BATCH} cannot be combined with {rule}: its running statistics "
            "are moving averages under sgd without momentum only. Pass --optimizer=sgd --momentum=0, "
            "or --normalization=layer."
        )


def _without_proof(experiment: "Experiment") -> Iterator[str]:
    """Yields what has no proof, before minutes are spent on a calibration that finds none."""
    if not experiment.private:
        return
    if experiment.adjacency == "add_or_remove_one":
        yield (
            "--adjacency=add_or_remove_one needs a nominal number of examples that was fixed without "
            "looking at the data, for which train.py has no flag. Use zero_out or replace_one."
        )
    if experiment.noise_multiplier is not None or experiment.guarantee != "proven":
        return
    if experiment.release == "mu":
        yield (
            "No noise gives a finite proven epsilon with --release=mu: the un-noised means are "
            "released. Use --release=theta, --guarantee=claimed or --noise_multiplier."
        )
    mechanism, sampling = experiment.mechanism, experiment.sampling
    noise, needed = experiment.noise or "student_t", mechanism_class(mechanism).other_noise_needs
    if needed and noise != "gaussian" and sampling != needed:
        yield (
            f"No finite epsilon is proven for --mechanism={mechanism} with --noise={noise} and "
            f"--sampling={sampling}. Use --sampling={needed}, --noise=gaussian or --guarantee=claimed."
        )
