"""Per-example gradients, and their bounded sum over a lot.

`per_example_gradients` and `per_example_gradient_norms` show the gradients of any Keras model. Private
training uses the other modules.

Read the ghost engine in this order: `contract` (the result of an engine), `factors` (the forms of a
per-example gradient), `forward` (the model as a function), `engines.ghost` and `engines.row_pass` (the
pass of each row), `uses` (how a weight is used there), `weight_ops` and `pullbacks` (the form of its
gradient), `sums` (weights that are used several times), `engines.clip_and_sum` (norms, clipping, sum)
and `lot` (chunks). The remaining modules contain special layers, the other engines, and checks before
training.

Example:
    >>> import keras, numpy as np, tfdp
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    >>> model.compile(loss="mse")
    >>> kernel, bias = tfdp.gradients.per_example_gradients(model, np.ones((5, 2)), np.ones((5, 3)))
    >>> kernel.shape, bias.shape
    (TensorShape([5, 2, 3]), TensorShape([5, 3]))
"""

from typing import TYPE_CHECKING

import tfdp._compat  # noqa: F401, refuses another backend before any of these modules is imported
from tfdp._lazy import importing

# Imported on first use, since the module imports the engines, which import from this package.
if TYPE_CHECKING:
    from tfdp.gradients.per_example import per_example_gradient_norms as per_example_gradient_norms
    from tfdp.gradients.per_example import per_example_gradients as per_example_gradients
else:
    __getattr__, __dir__, __all__ = importing(__name__)
