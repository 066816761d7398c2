"""Records a forward pass for the rules, and checks that only its own layer reads a weight.

A weight that is read outside its layer (a tied kernel, a penalty written by hand) would have a second
gradient that no rule sees. So the pass runs in a scope that returns a trainable variable's value only
to the layers that own it, while such a layer runs. Any other read raises. Exceptions are weight
regularizers, whose gradient comes without data, and the pass of the public examples.
"""

import contextlib

import keras
import tensorflow as tf

from tfdp._compat.keras import (
    SHORTCUTS,
    children,
    is_rematerialized,
    layers_of,
    normalizes_by_batch,
)
from tfdp.gradients.forward import Forward, has_own_compute_loss, without_metrics
from tfdp.gradients.rules import rule_for
from tfdp.gradients.rules.base import Recorded, Rule, UnsupportedModelError, replaced
from tfdp.gradients.rules.embedding import frozen_call
from tfdp.gradients.rules.moments import WatchedMoments, watched
from tfdp.layers.public import in_public_pass, public_layers


def owners(model) -> dict:
    """Returns {layer: rule} for the layers that own trainable variables and have a rule.

    Raises:
        UnsupportedModelError: a rule does not cover its layer, or a layer needs batch statistics.
    """
    found: dict = {}
    _collect(model, found, set())
    return found


def without_rule(model, rules: dict) -> list:
    """Returns the trainable variables of a model that no rule covers."""
    # Several layers may share a variable: the engine adds what their rules find.
    covered = {id(variable) for rule in rules.values() for variable in rule.variables()}
    return [variable for variable in model.trainable_variables if id(variable) not in covered]


def _trained(layer) -> list:
    """The variables of a layer that are trained, also inside a layer that is frozen itself.

    KerasHub freezes every layer and then unfreezes those that get adapters, deep inside the frozen
    ones. Keras trains what a model lists, which is any variable with `trainable=True`.
    """
    return [variable for variable in layer.variables if variable.trainable]


def _collect(layer, found, seen):
    if id(layer) in seen or not _trained(layer):
        return
    seen.add(id(layer))
    rule = rule_for(layer)
    where = f"Layer '{layer.name}' ({type(layer).__name__})"
    if rule is None:
        if normalizes_by_batch(layer):
            raise UnsupportedModelError(f"{where} normalizes by statistics of the batch.")
        for child in children(layer):
            _collect(child, found, seen)
        return
    refusal = rule.refusal()
    if getattr(layer, "quantization_mode", None) is not None:
        refusal = "is quantized"
    if is_rematerialized(layer):
        refusal = "is rematerialized"
    if refusal:
        raise UnsupportedModelError(f"{where} {refusal}, which its rule does not cover.")
    covered = {id(v) for v in rule.variables()}
    for variable in _trained(layer):
        if id(variable) not in covered:
            raise UnsupportedModelError(
                f"{where} owns the trainable variable '{variable.path}', which its rule does not "
                "cover."
            )
    found[layer] = rule


def _never(*args, **kwargs):
    return False


def _place():
    """What distinguishes the body of a loop from the code around it.

    `tf.while_loop` and the like trace their bodies in graphs of their own, `tf.vectorized_map` in the
    same graph, in a name scope "loop_body" (`parallel_for.control_flow_ops`). Operations there are
    only a pattern for others: a gradient at them would be silently zero.
    """
    scopes = tf.get_current_name_scope().split("/")
    depth = sum(scope.startswith("loop_body") for scope in scopes)
    return tf.compat.v1.get_default_graph(), depth


class _Scope(keras.StatelessScope):
    """A stateless scope that calls `recorder.on_read` before it returns a variable's value."""

    def __init__(self, mapping, recorder):
        super().__init__(mapping)
        self._recorder = recorder

    def get_current_value(self, variable):
        self._recorder.on_read(variable)
        return super().get_current_value(variable)


class Recorder(Forward):
    """A forward pass that records what the rules need, and refuses reads that no rule would see.

    Args:
        forward: the forward pass to record.
        rules: as `owners` returns them.
        tape: the tape that watches the recorded outputs.

    Attributes:
        uses: what each rule recorded: one list of operations for each call of its layer, in order.
    """

    def __init__(self, forward: Forward, rules: dict, tape: tf.GradientTape):
        vars(self).update(vars(forward))
        self.uses: dict[Rule, list[list[Recorded]]] = {}
        self.moments: list[WatchedMoments] = []
        self._public_calls: list = []
        self._rules = rules
        self._tape = tape
        self._trainable = {id(v) for v in forward.variables}
        self._open: set = set()
        self._allowed: dict = {}
        self._refusal: UnsupportedModelError | None = None
        self._place = _place()

    def scope(self, values, state):
        mapping = [*zip(self.variables, values, strict=True)]
        mapping += zip(self.state_variables, state, strict=True)
        mapping += without_metrics(self.model)
        self._values = _Scope(mapping, self)
        return self._values

    def outputs(self, values, state, x):
        with contextlib.ExitStack() as stack:
            for layer, rule in self._rules.items():
                stack.enter_context(replaced(layer, call=self._instrumented(layer, rule)))
            for layer in public_layers(self.model):
                moments = self._differentiable(layer)
                stack.enter_context(replaced(layer, public_moments=moments))
            for layer in layers_of(self.model, itself=True):
                for name in SHORTCUTS.get(type(layer), ()):
                    stack.enter_context(replaced(layer, **{name: _never}))
                if type(layer) is keras.layers.Embedding and layer not in self._rules:
                    stack.enter_context(replaced(layer, call=frozen_call(layer)))
            with self._refusing():
                found = super().outputs(values, state, x)
        return found

    def loss(self, scope, x, y, y_pred):
        # The penalty of a regularized weight reads it twice: in the loss, and where the penalty is
        # subtracted again. The gradient of the penalty comes later, without the data.
        regularized = [v for v in self.variables if v.regularizer is not None]
        if regularized and has_own_compute_loss(self.model):
            raise UnsupportedModelError(
                f"Variable '{regularized[0].path}' has a regularizer, and model '{self.model.name}' a "
                "`compute_loss` of its own, which may read the variable for something else."
            )
        self._allowed = {id(v): 2 for v in regularized}
        with self._refusing():
            loss = super().loss(scope, x, y, y_pred)
        self._allowed = {}
        return loss

    def on_read(self, variable) -> None:
        """Refuses a read of a trainable variable outside of the layer that owns it."""
        if id(variable) not in self._trainable or id(variable) in self._open:
            return
        if in_public_pass():
            # `watched` computes the gradient through the moments that this pass leaves behind.
            return
        left = self._allowed.get(id(variable), 0)
        if left == 0:
            self._refuse(
                f"Variable '{variable.path}' is used outside the layer that owns it, so that no rule "
                "sees its whole gradient."
            )
        self._allowed[id(variable)] = left - 1

    @contextlib.contextmanager
    def _refusing(self):
        """Context that raises the refusal itself, even if Keras wraps it or a layer catches it."""
        try:
            yield
        except Exception:
            if self._refusal is not None:
                raise self._refusal from None
            raise
        if self._refusal is not None:
            raise self._refusal

    def _refuse(self, reason):
        self._refusal = UnsupportedModelError(reason)
        raise self._refusal

    def _differentiable(self, layer):
        """Returns a `public_moments` for `layer` that makes `WatchedMoments`."""

        def public_moments(rows):
            self._public_calls = []
            # The tape must watch the very tensors that layers get; the scope may have made new ones.
            values = [
                keras.StatelessScope.get_current_value(self._values, v) for v in self.variables
            ]
            with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
                tape.watch(values)
                moments = type(layer).public_moments(layer, rows)
            try:
                moments = watched(
                    moments,
                    self._public_calls,
                    self._rules,
                    self.variables,
                    values,
                    tape,
                    self._tape,
                )
            except UnsupportedModelError as error:
                self._refuse(str(error))
            self.moments += moments
            return moments

        return public_moments

    def _instrumented(self, layer, rule):
        """Returns a `call` for `layer` that runs its rule and records the rule's operations."""
        where = f"Layer '{layer.name}' ({type(layer).__name__})"

        def call(*args, **kwargs):
            if in_public_pass():
                outputs = type(layer).call(layer, *args, **kwargs)
                self._public_calls.append((layer, outputs))
                return outputs
            own = {id(v) for v in rule.variables()}
            if own & self._open:
                self._refuse(
                    f"{where} is called inside a layer whose rule covers its weights as well, so that "
                    "their gradient would be counted twice."
                )
            use: list[Recorded] = []
            record = self._recording(where, use)
            before, self._open = self._open, own
            try:
                outputs = rule.call(record, *args, **kwargs)
            except UnsupportedModelError as error:
                self._refuse(str(error) if self._refusal else f"{where} {error}.")
            finally:
                self._open = before
            for recorded in use:
                recorded.saved = {k: v() if callable(v) else v for k, v in recorded.saved.items()}
            self.uses.setdefault(rule, []).append(use)
            return outputs

        return call

    def _recording(self, where, use):
        """Returns the function `record` for one use of a layer, which fills the list `use`."""

        def record(output, **saved):
            if _place() != self._place:
                self._refuse(
                    f"{where} is called inside a loop, a condition, a vectorized map or a tf.function "
                    "of its own, where its inputs cannot be recorded."
                )
            self._tape.watch(output)
            use.append(Recorded(output, saved))
            return output

        return record
