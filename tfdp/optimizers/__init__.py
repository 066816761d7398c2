"""Private optimizers: one per mechanism, with the update rule of any Keras optimizer."""

from tfdp.optimizers.dp_keras_optimizer import DPKerasOptimizer
from tfdp.optimizers.factory import (
    DPKerasAdagradOptimizer,
    DPKerasAdamOptimizer,
    DPKerasAdamWOptimizer,
    DPKerasNadamOptimizer,
    DPKerasRMSpropOptimizer,
    DPKerasSGDOptimizer,
    make_dp_optimizer_class,
)
from tfdp.optimizers.si_dpsgd import SIDPSGDOptimizer

__all__ = [
    "DPKerasAdagradOptimizer",
    "DPKerasAdamOptimizer",
    "DPKerasAdamWOptimizer",
    "DPKerasNadamOptimizer",
    "DPKerasOptimizer",
    "DPKerasRMSpropOptimizer",
    "DPKerasSGDOptimizer",
    "SIDPSGDOptimizer",
    "make_dp_optimizer_class",
]
