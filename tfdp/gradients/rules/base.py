"""What a rule is: how the per-example gradients of one kind of layer follow from one pass.

The contract for rules of your own, with a layer `Scale` that multiplies features with a vector:

    @register(Scale)
    class ScaleRule(Rule):
        def call(self, record, inputs):
            return record(inputs * self.layer.factor, inputs=inputs)

        def gradients(self, calls):
            (call,) = calls
            return [(self.layer.factor, Instantiated(call.gradient * call["inputs"]))]

and a test: `testing.check_rule(Scale(), (7,))`.
"""

import abc
import contextlib
import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfdp._compat.keras import kernel_of
from tfdp.gradients.rules.per_example_gradient import PerExampleGradient


class UnsupportedModelError(ValueError):
    """The ghost engine cannot compute this model's gradients exactly; the exact engine can."""


@dataclasses.dataclass
class Recorded:
    """One parameter-carrying operation as it ran.

    Attributes:
        output: the operation's output; the pass back starts from its gradient.
        saved: tensors that the rule asked to keep, by name.
        gradient: gradient of the weighted loss at `output`; None until the pass back is done.
    """

    output: tf.Tensor
    saved: dict
    gradient: tf.Tensor | None = None

    def __getitem__(self, name):
        return self.saved[name]


class Rule(abc.ABC):
    """Computes the per-example gradients of one layer.

    A rule sees the rows of a batch as its layer sees them; it must not mix them.

    Args:
        layer: a built layer.
    """

    # Whether the rule's `call` also works under `tf.vectorized_map`.
    row_by_row = True

    def __init__(self, layer):
        self.layer = layer

    def refusal(self) -> str | None:
        """Returns why this layer, as it is configured, is beyond the rule, or None."""
        return None

    @abc.abstractmethod
    def variables(self) -> list:
        """Returns the layer's variables that `gradients` covers, trainable or not."""

    @abc.abstractmethod
    def call(self, record: Callable, *args, **kwargs):
        """Runs the layer in place of its `call`, with the same result to rounding.

        Args:
            record: `record(output, **saved)` registers the output of a parameter-carrying operation
                and returns the tensor to go on with; `saved` holds tensors that `gradients` needs,
                or functions that return them once `call` is over. All of them have the batch as
                leading axis. A gradient flows into a variable only
                through recorded outputs.
            *args, **kwargs: as `layer.call` takes them.

        Raises:
            UnsupportedModelError: the rule does not cover these inputs; the message goes on from the
                layer's name.
        """

    @abc.abstractmethod
    def gradients(self, calls: list[Recorded]) -> list[tuple[object, PerExampleGradient]]:
        """Returns (variable, per-example gradients) for every variable of `variables`.

        Args:
            calls: one entry per use of `record`, in order.
        """


class ActivationRule(Rule):
    """A rule for layers that apply `self.activation` last: their pre-activation is recorded.

    The layer's own `call` runs; only its activation is taken over. `saved` holds "inputs".
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

        Keras 3.15 on TensorFlow takes whatever is added and has one axis longer than one for a bias of
        the last axis, or else of the first after the batch, if the lengths agree.
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
    """Gives an instance other attributes for a while, past any attribute tracking of Keras."""
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
