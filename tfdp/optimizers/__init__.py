"""Private optimizers: one per mechanism, with the update rule of any Keras optimizer."""

from tfdp.optimizers.discrete_sgd import DiscreteSGDOptimizer, make_discrete_optimizer_class
from tfdp.optimizers.dp_dropout import DPDropoutOptimizer
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
from tfdp.optimizers.matrix import MatrixDPSGDOptimizer, make_matrix_optimizer_class
from tfdp.optimizers.sgld import SGLDOptimizer
from tfdp.optimizers.si_dpsgd import SIDPSGDOptimizer

__all__ = [
    "MECHANISMS",
    "DPDropoutOptimizer",
    "DPKerasAdagradOptimizer",
    "DPKerasAdamOptimizer",
    "DPKerasAdamWOptimizer",
    "DPKerasNadamOptimizer",
    "DPKerasOptimizer",
    "DPKerasRMSpropOptimizer",
    "DPKerasSGDOptimizer",
    "DiscreteSGDOptimizer",
    "MatrixDPSGDOptimizer",
    "SGLDOptimizer",
    "SIDPSGDOptimizer",
    "make_discrete_optimizer_class",
    "make_dp_optimizer_class",
    "make_matrix_optimizer_class",
]

# Private mechanisms by name: the class for an update rule, given as a Keras optimizer class. A class
# that has its own update rule takes no other.
MECHANISMS = {
    "dpsgd": make_dp_optimizer_class,
    "si_dpsgd": lambda base: SIDPSGDOptimizer,
    "matrix": make_matrix_optimizer_class,
    "dp_dropout": lambda base: DPDropoutOptimizer,
    "sgld": lambda base: SGLDOptimizer,
    "discrete_sgd": make_discrete_optimizer_class,
}
