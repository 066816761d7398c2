"""Checks of settings of an experiment that have to fit together.

This module imports neither TensorFlow nor Keras.
"""

from typing import TYPE_CHECKING

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
    fitting = {"images": MODELS, "rows": TEXT_MODELS, "texts": WORD_MODELS}.get(kind or "")
    if fitting is not None and experiment.model not in fitting:
        raise ValueError(
            f"--model={experiment.model} does not fit --dataset={experiment.dataset}, whose examples "
            f"are {kind}. Use --model={' or '.join(fitting)}."
        )
