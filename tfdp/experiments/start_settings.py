"""The settings of pre-training and fine-tuning: where training starts, and what it may change.

This module imports neither TensorFlow nor Keras.
"""

import dataclasses

from tfdp.experiments.setting import START, Need, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartSettings:
    """The fields of `Experiment` about the initial weights and about what stays frozen."""

    initial_weights: str | None = setting(
        None,
        "A model.keras or .weights.h5 of the same network, trained on PUBLIC data, to start from; the "
        "output layer starts afresh where its classes are others. To name a file declares that its "
        "weights owe nothing to the private data.",
        group=START,
    )
    trainable_layers: str | None = setting(
        None,
        "The layers that are trained, by names or patterns (logits,dense_*), or how many of the last "
        "ones (2). All others are frozen.",
        group=START,
    )
    cache_features: bool = setting(
        True,
        "Whether the outputs of the frozen beginning of a network are computed once for all epochs.",
        group=START,
        needs=(Need("trainable_layers", said="--trainable_layers"),),
    )
