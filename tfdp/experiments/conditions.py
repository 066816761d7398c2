"""What the settings of an experiment have to be together, as far as no data and no model are needed.

This module imports neither TensorFlow nor Keras.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfdp.accounting.mechanisms.none import NoMechanism
from tfdp.accounting.mechanisms.registry import mechanism_class, mechanism_names
from tfdp.data.datasets import DATASETS, check_name, input_shape, kind_of
from tfdp.experiments.public_data import PUBLIC, sources_for
from tfdp.experiments.setting import Setting

if TYPE_CHECKING:
    from tfdp.experiments.settings import Experiment

NONE = NoMechanism.name
# The normalization by running statistics that are learned as weights are.
PRIVATE_BATCH = "private_batch"
# The networks of `tfdp.models.MODELS` for images, which would import Keras, and the smallest height and
# width that they accept; None for images of any size.
MODELS: dict[str, int | None] = {
    "linear": None,
    "mlp": None,
    "hidden_500": None,
    "hidden_1000": None,
    "lenet_300_100": None,
    "lenet5": 12,
    "tutorial_cnn": 13,
    "tutorial_logistic": None,
    "cifar_tutorial": 4,
    "resnet18": 1,
    "resnet18_mod": 1,
    "fast_cifar": 8,
    "vgg_light": 8,
    "vgg16": 32,
    "vgg16_mod": 32,
    "vgg16_table": 32,
    "vgg16_table_mod": 32,
}
# The networks for rows of text.
TEXT_MODELS = ("tutorial_lstm",)
# The networks for texts, and the length of the vectors of words where only one length fits.
WORD_MODELS: dict[str, int | None] = {
    "bilstm": None,
    "bilstm_dl": None,
    "transformer": 64,
}
# The embeddings that are drawn at random; any other value of --embeddings is the path of a file.
DRAWN_EMBEDDINGS = ("trained", "frozen")
# The number of training examples, where it is known before the data are read.
EMBEDDED = {"digits": 1437}
# The networks with an architecture of their own, to which no normalization is added.
NORMALIZED = ("tutorial_logistic", "tutorial_lstm", "bilstm", "transformer")
# The networks whose channels or hidden units --width scales.
_SCALED = ("resnet", "fast_cifar", "cifar_tutorial", "vgg", "hidden", "mlp")
SCALED = tuple(name for name in MODELS if name.startswith(_SCALED))


@dataclasses.dataclass(frozen=True)
class Unused:
    """Why a setting has no effect.

    Attributes:
        because: the other setting whose value is the cause.
        sentence: the refusal, which says what to do.
    """

    because: str
    sentence: str


def why_unused(known: Setting, values: Mapping[str, Any]) -> Unused | None:
    """Returns why a setting has no effect beside the values of the others; None if it has one."""
    name, mechanism = known.name, values["mechanism"]
    if known.private and mechanism == NONE:
        return Unused(
            "mechanism",
            f"Expected --{name} with a private mechanism only. Found --mechanism={NONE}. Leave it out, "
            "or choose another mechanism.",
        )
    if known.own and name not in mechanism_class(mechanism).settings:
        having = [m for m in mechanism_names() if name in mechanism_class(m).settings]
        return Unused(
            "mechanism",
            f"--mechanism={mechanism} has no --{name}. Expected it with --mechanism="
            f"{' or '.join(having)} only. Leave it out.",
        )
    if known.rule and mechanism_class(mechanism).update_rules == "own":
        return Unused(
            "mechanism",
            f"--mechanism={mechanism} takes the steps of its paper, with learning rates only. Expected "
            f"--{name} to be left out. Found {values[name]}.",
        )
    for need in known.needs:
        if not need.is_met(values):
            return Unused(
                need.name,
                f"Expected --{name} with {need.words()} only. Found --{need.name}="
                f"{values[need.name]}. Leave --{name} out.",
            )
    return None


def check_together(experiment: "Experiment") -> None:
    """Raises ValueError if valid settings do not fit together."""
    check_name(experiment.dataset)
    _check_update_rule(experiment)
    _check_model(experiment)
    _check_words(experiment)
    _check_splits(experiment)
    if experiment.microbatches is not None and experiment.batch_size % experiment.microbatches:
        raise ValueError(
            f"Expected --microbatches to divide --batch_size ({experiment.batch_size}). Found "
            f"{experiment.microbatches}."
        )
    _check_sampling(experiment)
    _check_public_data(experiment)
    _check_running_statistics(experiment)
    if experiment.private:
        _check_provable(experiment)


def check_folder(experiment: "Experiment") -> None:
    """Raises ValueError if --data_dir is not used, or is not there."""
    folder, dataset = experiment.data_dir, experiment.dataset
    if folder is None:
        return
    if dataset in EMBEDDED:
        raise ValueError(
            f"Expected --data_dir with a dataset of tensorflow_datasets only. Found "
            f"--dataset={dataset}, which is embedded. Leave --data_dir out."
        )
    if not os.path.isdir(os.path.expanduser(folder)) and "://" not in folder:
        raise ValueError(
            f"Expected --data_dir to be a folder that is there. Found {folder!r}. Name the folder that "
            "holds the data, make an empty one to download them to, or use --dataset=digits."
        )


def check_files(experiment: "Experiment") -> None:
    """Raises ValueError if a file that a setting names is not there."""
    named = ["vocabulary", "initial_weights"]
    named += [] if experiment.embeddings in DRAWN_EMBEDDINGS else ["embeddings"]
    for name in named:
        path = getattr(experiment, name)
        if path is not None and not os.path.isfile(os.path.expanduser(path)):
            drawn = f"{' or '.join(DRAWN_EMBEDDINGS)}, or " if name == "embeddings" else ""
            raise ValueError(
                f"Expected --{name} to be {drawn}a file that is there. Found {path!r}. Name such a "
                "file, or leave the flag out."
            )


def split_note(experiment: "Experiment") -> str | None:
    """Returns a sentence about other examples than the usual ones; None for the usual ones."""
    spec = DATASETS.get(experiment.dataset)
    usual_train = spec.train_split if spec else "train"
    usual_test = (spec.test_split if spec else None) or "test"
    train, test = experiment.train_split or usual_train, experiment.test_split or usual_test
    if (train, test) == (usual_train, usual_test):
        return None
    used = f"trained on {train} and tested on {test} of {experiment.dataset}"
    usual = (
        f"not on {usual_train} and {usual_test}" if train != usual_train else f"not on {usual_test}"
    )
    other = "so N is not that of the papers" if train != usual_train else "with the usual N"
    return f"Not the usual split: {used}, {usual}, {other}."


def check_number(experiment: "Experiment", num_examples: int) -> None:
    """Raises ValueError if a lot is larger than the training data."""
    if not experiment.batch_size <= num_examples:
        raise ValueError(
            f"Expected --batch_size to be at most the number of training examples, {num_examples:,}. "
            f"Found {experiment.batch_size:,}."
        )


def _check_sampling(experiment: "Experiment") -> None:
    """Refuses lots that cannot be drawn."""
    if experiment.dataset in EMBEDDED:
        check_number(experiment, EMBEDDED[experiment.dataset])
    chosen = "strategy" in mechanism_class(experiment.mechanism).settings
    if experiment.sampling == "cyclic_poisson" and experiment.groups is None and not chosen:
        raise ValueError(
            "Expected --groups with --sampling=cyclic_poisson, such as --groups=4: how many groups of "
            "the data take turns. Found none. Pass it, or use --sampling=poisson."
        )


def _check_public_data(experiment: "Experiment") -> None:
    """Refuses public examples that do not resemble those of the data set."""
    dataset, source = experiment.dataset, experiment.public_data
    if not experiment.takes_public_data:
        return
    if dataset not in PUBLIC:
        raise ValueError(
            f"Expected --normalization=batch with a dataset that has public examples: "
            f"{', '.join(sorted(PUBLIC))}. Found --dataset={dataset}. Use --normalization=layer."
        )
    if experiment.private and (source or PUBLIC[dataset]) == dataset:
        raise ValueError(
            f"Expected public examples from other data than --dataset={dataset} with a private "
            f"mechanism. Found --public_data={dataset}. Use --public_data=strokes, or "
            "--normalization=layer."
        )
    shape = input_shape(dataset)
    fitting = sources_for(dataset)
    if source is not None and source not in fitting:
        raise ValueError(
            f"Expected --public_data={' or '.join(fitting)} with --dataset={dataset}, whose images "
            f"have {shape[0]}x{shape[1]} pixels. Found --public_data={source}."
        )


def _check_running_statistics(experiment: "Experiment") -> None:
    """Refuses update rules under which running statistics are no moving averages."""
    rule = f"--optimizer={experiment.optimizer}"
    if experiment.momentum:
        rule = f"--momentum={experiment.momentum}"
    if experiment.normalization == PRIVATE_BATCH and rule != "--optimizer=sgd":
        raise ValueError(
            f"Expected --optimizer=sgd without --momentum with --normalization={PRIVATE_BATCH}, whose "
            f"running statistics are moving averages under this rule only. Found {rule}. Pass "
            "--optimizer=sgd --momentum=0, or --normalization=layer."
        )


def _check_provable(experiment: "Experiment") -> None:
    """Refuses what has no proof, before minutes are spent on a calibration that finds none."""
    if experiment.adjacency == "add_or_remove_one":
        raise ValueError(
            "Expected --adjacency=zero_out or replace_one. Found add_or_remove_one, which needs a "
            "nominal number of examples that was fixed without looking at the data; train.py has no "
            "flag for it."
        )
    calibrates = experiment.noise_multiplier is None and experiment.guarantee == "proven"
    if not calibrates:
        return
    if experiment.release == "mu":
        raise ValueError(
            "No noise gives a finite proven epsilon with --release=mu: the un-noised means are "
            "released. Expected --release=theta, or --guarantee=claimed, or --noise_multiplier."
        )
    mechanism, sampling = experiment.mechanism, experiment.sampling
    noise = experiment.noise or "student_t"
    needed = mechanism_class(mechanism).other_noise_needs
    if needed and noise != "gaussian" and sampling != needed:
        raise ValueError(
            f"No finite epsilon is proven for --mechanism={mechanism} with --noise={noise} and "
            f"--sampling={sampling}. Expected --sampling={needed}, --noise=gaussian, or "
            "--guarantee=claimed."
        )


def _check_model(experiment: "Experiment") -> None:
    """Refuses data that the network cannot take."""
    model, kind = experiment.model, kind_of(experiment.dataset)
    fitting, words = {
        "images": (MODELS, "images"),
        "rows": (TEXT_MODELS, "rows of text"),
        "texts": (WORD_MODELS, "texts"),
        None: ((*MODELS, *WORD_MODELS), "images or texts"),
    }[kind]
    if model not in fitting:
        raise ValueError(
            f"Expected --model={' or '.join(fitting)} with --dataset={experiment.dataset}, whose "
            f"examples are {words}. Found --model={model}."
        )
    if kind != "images":
        return
    smallest, (height, width, _) = MODELS[model], input_shape(experiment.dataset)
    if smallest is not None and min(height, width) < smallest:
        fitting = [name for name, least in MODELS.items() if (least or 0) <= min(height, width)]
        raise ValueError(
            f"Expected images of at least {smallest}x{smallest} pixels with --model={model}. Found "
            f"--dataset={experiment.dataset} of {height}x{width}. Choose --model={fitting[0]}, or "
            f"another of {', '.join(fitting[1:])}."
        )


def _check_words(experiment: "Experiment") -> None:
    """Refuses vectors of words that the network cannot take."""
    needed, found = WORD_MODELS.get(experiment.model), experiment.embedding_width
    if needed is not None and found not in (None, needed):
        raise ValueError(
            f"Expected --embedding_width={needed} with --model={experiment.model}, whose blocks have "
            f"that width. Found {found}. Leave it out, or choose another --model."
        )


def _check_splits(experiment: "Experiment") -> None:
    """Refuses splits of the embedded data."""
    for name in ("train_split", "test_split"):
        if experiment.dataset in EMBEDDED and getattr(experiment, name) is not None:
            raise ValueError(
                f"Expected --{name} with a dataset of tensorflow_datasets only. Found "
                f"--dataset={experiment.dataset}, which has one split. Leave it out."
            )


def _check_update_rule(experiment: "Experiment") -> None:
    """Refuses an update rule or a clipping that the mechanism does not allow."""
    mechanism, kind = experiment.mechanism, mechanism_class(experiment.mechanism)
    other = experiment.optimizer != "sgd"
    if kind.update_rules == "linear" and other and experiment.guarantee != "claimed":
        raise ValueError(
            f"No finite epsilon can be proven for --mechanism={mechanism} with "
            f"--optimizer={experiment.optimizer}: the rule's state is un-noised and private. "
            "Expected --optimizer=sgd (with or without --momentum), or --guarantee=claimed."
        )
    if experiment.clipping == "adaptive" and not kind.adaptive_clipping:
        raise ValueError(
            f"The guarantee of --mechanism={mechanism} needs one clip norm for all steps, since its "
            "noise is shared by several. Expected another --clipping. Found adaptive."
        )
