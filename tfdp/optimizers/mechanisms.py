"""The private optimizers of all mechanisms, by the mechanism's name."""

from collections.abc import Callable

from tfdp.optimizers.discrete_sgd import DiscreteOptimizer, make_discrete_optimizer_class
from tfdp.optimizers.dp_dropout import DPDropoutOptimizer
from tfdp.optimizers.dp_keras_optimizer import DPKerasOptimizer
from tfdp.optimizers.factory import make_dp_optimizer_class
from tfdp.optimizers.matrix import MatrixDPOptimizer, make_matrix_optimizer_class
from tfdp.optimizers.sgld import SGLDOptimizer
from tfdp.optimizers.si_dpsgd import SIDPSGDOptimizer

# Each entry maps a Keras optimizer class (the update rule) to the private optimizer class. Mechanisms
# with their own update rule ignore the argument.
MECHANISMS: dict[str, Callable[[type], type[DPKerasOptimizer]]] = {
    DPKerasOptimizer.mechanism.name: make_dp_optimizer_class,
    SIDPSGDOptimizer.mechanism.name: lambda base: SIDPSGDOptimizer,
    MatrixDPOptimizer.mechanism.name: make_matrix_optimizer_class,
    DPDropoutOptimizer.mechanism.name: lambda base: DPDropoutOptimizer,
    SGLDOptimizer.mechanism.name: lambda base: SGLDOptimizer,
    DiscreteOptimizer.mechanism.name: make_discrete_optimizer_class,
}
