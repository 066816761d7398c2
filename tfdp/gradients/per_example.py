"""Per-example gradients for research and debugging. They are not private."""

import keras
import tensorflow as tf

from tfdp._compat.tensorflow import concrete_function
from tfdp._validate import one_of
from tfdp.gradients.engines import exact, loop
from tfdp.gradients.factors import in_layout_of_variable
from tfdp.gradients.forward import Forward
from tfdp.gradients.targets import weighted, without_none

METHODS = ("vectorized", "loop")


# In a user's tf.function, AutoGraph would rewrite all of tfdp and Keras, which takes seconds.
@tf.autograph.experimental.do_not_convert
def per_example_gradients(
    model: keras.Model, x, y=None, sample_weight=None, *, method: str = "vectorized"
) -> list[tf.Tensor]:
    """Computes the gradient of the loss for each example of a batch, without clipping and noise.

    Use it for research and to debug a model. Training needs no call of it. The gradients reveal the
    private data without any protection, so they are only for the person who trains. Choosing a clip
    norm by them costs privacy that no ledger counts.

    Each example passes through the model alone, in training mode. Penalties of weight regularizers are
    left out.

    Args:
        model: A built and compiled Keras model, private or not.
        x: Inputs, an array or a structure of arrays or tensors [batch, ...].
        y: Targets, in the same forms. None if the loss needs none.
        sample_weight: Weights, float32 of shape [batch], which multiply the gradients of the
            examples. Weights of tokens, [batch, tokens], or of several targets are passed to the
            loss; see `gradients.targets`. None means 1.
        method: "vectorized" computes all examples at once (`tf.vectorized_map`). "loop" takes one
            example at a time, for models with operations that TensorFlow cannot vectorize.

    Returns:
        A list with one float32 tensor [batch, *variable shape] for each variable of
        `model.trainable_variables`.

    Raises:
        ValueError: If the model is not built or not compiled, or a layer writes to its variables in
            training, as batch normalization does.
        NotImplementedError: If TensorFlow cannot vectorize an operation of the model.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
        >>> model.compile(loss="mse")
        >>> model.set_weights([np.zeros((2, 1), "float32")])
        >>> x, y = np.array([[1.0, 2.0], [2.0, 3.0]], "float32"), np.array([[1.0], [1.0]], "float32")
        >>> (kernel,) = tfdp.per_example_gradients(model, x, y)
        >>> kernel.numpy()[..., 0]
        array([[-2., -4.],
               [-4., -6.]], dtype=float32)
    """
    one_of("method", method, METHODS)
    if not (model.built and model.compiled):
        raise ValueError(
            f"Model '{model.name}' is not {'compiled' if model.built else 'built'}. Build it (add an "
            "Input layer, or call it once on data) and compile it with a loss."
        )
    forward = Forward(model)
    x = tf.nest.map_structure(tf.convert_to_tensor, without_none(x))
    y, weight = weighted(y, sample_weight, tf.shape(tf.nest.flatten(x)[0])[0])
    y = tf.nest.map_structure(tf.convert_to_tensor, y)
    engine = exact if method == "vectorized" else loop

    def compute():
        found, *_ = engine.per_example_gradients(forward, x, y, weight, tf.constant(0))
        return [
            tf.zeros([tf.shape(weight)[0], *variable.shape])
            if gradient is None  # the variable is not used
            else in_layout_of_variable(gradient)
            for gradient, variable in zip(found, forward.variables, strict=True)
        ]

    return concrete_function(tf.function(compute, autograph=False))()


def per_example_gradient_norms(
    model: keras.Model, x, y=None, sample_weight=None, *, method: str = "vectorized"
) -> tf.Tensor:
    """Computes the L2 norm of the gradient for each example of a batch.

    Compare the norms with a clip norm: a longer gradient is scaled down to it. They are as private as
    the examples; see `per_example_gradients`. `model.privacy.diagnostics()` has their median in a
    training.

    Args:
        model, x, y, sample_weight, method: As in `per_example_gradients`.

    Returns:
        A float32 tensor of shape [batch].

    Raises:
        ValueError: As in `per_example_gradients`.
        NotImplementedError: As in `per_example_gradients`.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
        >>> model.compile(loss="mse")
        >>> model.set_weights([np.zeros((2, 1), "float32")])
        >>> x, y = np.array([[1.0, 0.0], [0.0, 3.0]], "float32"), np.array([[1.0], [1.0]], "float32")
        >>> tfdp.gradients.per_example_gradient_norms(model, x, y).numpy()
        array([2., 6.], dtype=float32)
    """
    gradients = per_example_gradients(model, x, y, sample_weight, method=method)
    squares = [tf.reduce_sum(tf.square(tf.reshape(g, [g.shape[0], -1])), 1) for g in gradients]
    return tf.sqrt(tf.add_n(squares))
