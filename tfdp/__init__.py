"""tfdp: differentially private deep learning for Keras 3 on TensorFlow.

`make_private` turns a Keras model into one that is trained privately, `tfdp.DPKeras...Optimizer` adds
the noise, and `model.privacy` reports what the training has cost. Each report has two values of
epsilon: the one that the mechanism's paper *claims*, and the one that is *proven* for the sampling,
computation and releases of this run. README.md gives a tour.

Each public name is imported on first use, so that `tfdp.accounting` works without TensorFlow.

Example:
    >>> import keras, numpy as np, tfdp
    >>> model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    >>> model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.1), "mse")
    >>> x = np.zeros((100, 2), "float32")
    >>> _ = model.fit(x, x[:, :1], batch_size=10, verbose=0)
    >>> print(model.privacy.spent(delta=1e-4))
    proven epsilon: 1.82... at delta = 0.0001, for one record replaced by a record that contributes
    nothing (zero_out).
"""

from typing import TYPE_CHECKING

from tfdp import _lazy, _registration

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tfdp import accounting as accounting
    from tfdp import auditing as auditing
    from tfdp import callbacks as callbacks
    from tfdp import data as data
    from tfdp import gradients as gradients
    from tfdp import layers as layers
    from tfdp import models as models
    from tfdp import noise as noise
    from tfdp import optimizers as optimizers
    from tfdp.accounting.ledger import PrivacyBudget as PrivacyBudget
    from tfdp.accounting.tensorflow_privacy import compute_dp_sgd_privacy as compute_dp_sgd_privacy
    from tfdp.accounting.tensorflow_privacy import (
        compute_dp_sgd_privacy_statement as compute_dp_sgd_privacy_statement,
    )
    from tfdp.gradients.per_example import per_example_gradients as per_example_gradients
    from tfdp.optimizers.discrete_sgd import DiscreteSGDOptimizer as DiscreteSGDOptimizer
    from tfdp.optimizers.dp_dropout import DPDropoutOptimizer as DPDropoutOptimizer
    from tfdp.optimizers.dp_keras_optimizer import DPKerasOptimizer as DPKerasOptimizer
    from tfdp.optimizers.factory import DPKerasAdagradOptimizer as DPKerasAdagradOptimizer
    from tfdp.optimizers.factory import DPKerasAdamOptimizer as DPKerasAdamOptimizer
    from tfdp.optimizers.factory import DPKerasAdamWOptimizer as DPKerasAdamWOptimizer
    from tfdp.optimizers.factory import DPKerasNadamOptimizer as DPKerasNadamOptimizer
    from tfdp.optimizers.factory import DPKerasRMSpropOptimizer as DPKerasRMSpropOptimizer
    from tfdp.optimizers.factory import DPKerasSGDOptimizer as DPKerasSGDOptimizer
    from tfdp.optimizers.factory import make_dp_optimizer_class as make_dp_optimizer_class
    from tfdp.optimizers.matrix import MatrixDPSGDOptimizer as MatrixDPSGDOptimizer
    from tfdp.optimizers.sgld import SGLDOptimizer as SGLDOptimizer
    from tfdp.optimizers.si_dpsgd import SIDPSGDOptimizer as SIDPSGDOptimizer
    from tfdp.training.calibrated import make_private_with_epsilon as make_private_with_epsilon
    from tfdp.training.dp_model import from_preset as from_preset
    from tfdp.training.dp_model import make_private as make_private
    from tfdp.training.export import export as export
    from tfdp.training.repair import fix as fix

    # TensorFlow Privacy's names.
    VectorizedDPKerasAdagradOptimizer = DPKerasAdagradOptimizer
    VectorizedDPKerasAdamOptimizer = DPKerasAdamOptimizer
    VectorizedDPKerasSGDOptimizer = DPKerasSGDOptimizer
    make_keras_generic_optimizer_class = make_dp_optimizer_class
    make_keras_optimizer_class = make_dp_optimizer_class
    make_vectorized_keras_optimizer_class = make_dp_optimizer_class
else:
    _imported, __dir__, __all__ = _lazy.importing(__name__)

    def __getattr__(name):
        if name in ("DPModel", "DPSequential", "PrivacyEngine"):
            raise AttributeError(
                f"module 'tfdp' has no attribute {name!r}: use model = tfdp.make_private(model) "
                "with any keras.Model, including subclassed models, and compile it with an optimizer "
                "such as tfdp.DPKerasSGDOptimizer."
            )
        if name not in __all__ and name.endswith("Optimizer") and not name.startswith("_"):
            return getattr(_imported("optimizers"), name)
        if name not in __all__ and not name.startswith("_"):
            for place in ("callbacks", "layers", "data", "accounting"):
                if name in dir(_imported(place)):
                    raise AttributeError(
                        f"module 'tfdp' has no attribute {name!r}: use tfdp.{place}.{name}."
                    )
        return _imported(name)


_registration.register_with_keras()
