"""Base classes of the rules: a rule computes the per-example gradients of one kind of layer.

This is a rule of your own, for a layer `Scale` that multiplies features by a vector:

    @register(Scale)
    class ScaleRule(Rule):
        def call(self, record, inputs):
            return record(inputs * self.layer.factor, inputs=inputs)

        def gradients(self, calls):
            (call,) = calls
            return [(self.layer.factor, Instantiated(call.gradient * call["inputs"]))]

and this is its test: `gradients.testing.check_rule(Scale(), (7,))`.
"""

import abc
import contextlib
import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfdp._compat.keras import kernel_of
from tfdp.gradients.rules.per_example_gradient import PerExampleGradient


class UnsupportedModelError(ValueError):
    """The ghost engine cannot compute this model's gradients exactly; another engine has to.

    Example:
        >>> import keras, tensorflow as tf
        >>> from tfdp.gradients.rules import rule_for
        >>> layer = keras.layers.Conv1D(3, 1, data_format="channels_first")
        >>> layer.build((None, 2, 3))
        >>> rule_for(layer).check_bias(tf.zeros([1, 3, 3]))  # as many positions as channels
        Traceback (most recent call last):
        ...
        tfdp.gradients.rules.base.UnsupportedModelError: has a bias that Keras adds along another axis
        of the same length
    """


@dataclasses.dataclass
class Recorded:
    """One operation that uses variables of its layer, as the forward pass executed it.

    Attributes:
        output: the operation's output, at which the backward pass computes the gradient.
        saved: tensors that the rule gave to `record`, by name.
        gradient: gradient of the weighted loss at `output`; None until the backward pass is done.

    Example:
        >>> import tensorflow as tf
        >>> from tfdp.gradients.rules import Recorded
        >>> call = Recorded(output=tf.constant([[2.0]]), saved={"inputs": tf.constant([[1.0]])})
        >>> call["inputs"].numpy()
        array([[1.]], dtype=float32)
        >>> call.gradient is None  # the backward pass is yet to come
        True
    """

    output: tf.Tensor
    saved: dict
    gradient: tf.Tensor | None = None

    def __getitem__(self, name):
        return self.saved[name]


class Rule(abc.ABC):
    """Computes the per-example gradients of one layer.

    A rule receives the rows of a batch as its layer does, and must not mix them.

    Args:
        layer: a built layer.

    Example:
        >>> import keras, tensorflow as tf
        >>> from tfdp.gradients.rules import Recorded, rule_for
        >>> layer = keras.layers.Dense(1)
        >>> layer.build((None, 2))
        >>> rule, calls = rule_for(layer), []
        >>> def record(output, **saved):
        ...     calls.append(Recorded(output, saved))
        ...     return output
        >>> _ = rule.call(record, tf.constant([[3.0, 4.0]]))
        >>> calls[0].gradient = tf.constant([[2.0]])  # of the loss, at the layer's output
        >>> for variable, gradient in rule.gradients(calls):
        ...     print(variable.name, gradient.square_norms().numpy())
        kernel [100.]
        bias [4.]
    """

    def __init__(self, layer):
        self.layer = layer

    def refusal(self) -> str | None:
        """Returns why the rule does not cover this layer as it is configured, or None if it does.

        The text continues a sentence that begins with the layer's name.
        """
        return None

    @abc.abstractmethod
    def variables(self) -> list:
        """Returns the layer's variables that `gradients` covers, trainable or not."""

    @abc.abstractmethod
    def call(self, record: Callable, *args, **kwargs):
        """Runs the layer in place of its `call`, with the same result up to rounding.

        Args:
            record: `record(output, **saved)` registers the output of an operation that uses the
                layer's variables, and returns the tensor with which to continue. `saved` holds
                tensors that `gradients` needs, or functions that return them once `call` is over.
                All of them have the batch as leading axis. Gradients may flow into a variable only
                through recorded outputs.
            *args, **kwargs: as `layer.call` takes them.

        Raises:
            UnsupportedModelError: the rule does not cover these inputs; the message continues a
                sentence that begins with the layer's name.
        """

    @abc.abstractmethod
    def gradients(self, calls: list[Recorded]) -> list[tuple[object, PerExampleGradient]]:
        """Returns (variable, per-example gradients) for the variables that one call of the layer used.

        The engine asks for each call of the layer by itself, and adds the answers (`rules.sums`).

        Args:
            calls: one entry per use of `record` in that call of the layer, in order.
        """


class ActivationRule(Rule):
    """A rule for layers that apply `self.activation` last; it records what goes into the activation.

    The layer's own `call` runs; only its activation is replaced. `saved` holds "inputs".
    """

    def variables(self):
        kernel = kernel_of(self.layer)
        return [kernel] if self.layer.bias is None else [kernel, self.layer.bias]

    def refusal(self):
        if getattr(self.layer, "lora_enabled", False):
            return "uses LoRA"
        return None

    def call(self, record, inputs, **kwargs):
        activation = self.layer.activation

        def recorded(outputs):
            self.check_bias(outputs)
            outputs = record(outputs, inputs=inputs)
            return outputs if activation is None else activation(outputs)

        with replaced(self.layer, activation=recorded):
            return type(self.layer).call(self.layer, inputs, **kwargs)

    def check_bias(self, outputs):
        """Raises UnsupportedModelError where Keras adds the bias along another axis than its own.

        Keras 3.15 on TensorFlow treats an added tensor with exactly one axis longer than one as a
        bias. It adds this bias along the last axis if the lengths agree, and otherwise along the first
        axis after the batch if the lengths agree there.
        """
        layer = self.layer
        if layer.bias is None:
            return
        shape = list(layer.bias.shape)
        if getattr(layer, "data_format", None) == "channels_first":
            shape += [1] * (outputs.shape.rank - 2)
        places = [i - len(shape) for i, length in enumerate(shape) if length != 1]
        if len(places) != 1:
            return
        for taken in (-1, 1 - outputs.shape.rank):
            if outputs.shape[taken] == shape[places[0]]:
                if taken != places[0]:
                    raise UnsupportedModelError(
                        "has a bias that Keras adds along another axis of the same length"
                    )
                return


@contextlib.contextmanager
def replaced(instance, **attributes):
    """Context in which an instance has other attributes, set past any attribute tracking of Keras."""
    own = vars(instance)
    missing = object()
    before = {name: own.get(name, missing) for name in attributes}
    own.update(attributes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is missing:
                del own[name]
            else:
                own[name] = value
