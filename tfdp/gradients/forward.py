"""One example's loss as a pure function of weights, random state and data.

Engines differentiate this function; nothing else in private training differentiates the user's model. A
layer that assigns to a variable is refused, because it would store private data without any bound.
Random state and counters (`first_pass`) are exceptions.

Random state is recognised by the object that owns it, never by its name, because a layer may call a
running statistic "seed_generator_state". `first_pass` checks that no new value of it depends on an
example.
"""

import contextlib

import keras
import tensorflow as tf

from tfdp._compat.keras import (
    all_metrics,
    compiled_loss,
    compute_loss_as_keras,
    forget_dropout_masks,
    layers_of,
    replaced,
    seed_generators,
    shared_seed_generator,
    without_penalties,
    without_recomputation,
)
from tfdp._compat.tensorflow import as_one_replica, inlined_functions
from tfdp.gradients.targets import apart, with_none
from tfdp.layers.noisy import noisy_layers


def without_metrics(model) -> list:
    """Returns (variable, zeros) for the state of all metrics of a model.

    Metrics see private data without noise. In a differentiated pass they are as after a reset, so
    nothing that they have seen reaches the gradients. Their updates there are dropped with the scope.
    `training.lot_metrics` updates them.
    """
    variables = {id(v): v for metric in all_metrics(model) for v in metric.variables}
    return [(v, tf.zeros(v.shape, v.dtype)) for v in variables.values() if v.dtype != "string"]


def own_metrics(model) -> list:
    """Returns the variables of all metrics except those of the compiled loss for single outputs."""
    compiled = compiled_loss(model)
    of_losses = {id(v) for v in ([] if compiled is None else compiled.variables)}
    variables = {id(v): v for metric in all_metrics(model) for v in metric.variables}
    return [v for key, v in variables.items() if key not in of_losses]


def losses_of_outputs(model, scope) -> tf.Tensor:
    """Returns the loss of each output, float32 [losses], as Keras last computed it in `scope`.

    Keras passes them to its own metrics, which are in `scope` as after a reset. Loss weights are left
    out, as in Keras' logs. The result is empty for a model with one loss.
    """
    compiled = compiled_loss(model)
    found = [] if compiled is None else [m.total for m in compiled.metrics]
    values = [scope.get_current_value(total) for total in found]
    # A custom loss need not use the compiled losses.
    values = [tf.zeros([]) if v is None else tf.cast(v, tf.float32) for v in values]
    return tf.stack(values) if values else tf.zeros([0])


def has_own_compute_loss(model) -> bool:
    """Whether a model does not compute its loss as `keras.Model` does."""
    return type(model).compute_loss is not keras.Model.compute_loss or "compute_loss" in vars(model)


def state_error(variable) -> str:
    """Returns the error message for a variable that a pass assigns."""
    return (
        f"Variable '{variable.path}' is assigned in training, which would store private data "
        "without noise. Remove the layer, freeze what it updates, or replace it "
        "(LayerNormalization or GroupNormalization for batch statistics). Layers may count in "
        "variables if the counts do not depend on the data."
    )


def seed_states(model) -> list:
    """Returns the states of the `keras.random.SeedGenerator`s that Keras tracks for a model's layers.

    Dropout and similar layers draw fresh numbers for every example from these states.

    Args:
        model: A Keras model; its own generators and those of nested layers are included.
    """
    layers = layers_of(model, itself=True)
    generators = [g for layer in layers for g in seed_generators(layer)]
    states = [g.state for g in generators if isinstance(g, keras.random.SeedGenerator)]
    shared = shared_seed_state()
    states += [] if shared is None else [shared]
    return [*{id(state): state for state in states}.values()]  # each once


def shared_seed_state():
    """Returns the state that `keras.random` uses without a seed, None before its first use."""
    generator = shared_seed_generator()
    return None if generator is None else generator.state


class Forward:
    """The forward pass and the loss of a model. Only `advance` assigns to the model's variables.

    Args:
        model: A built and compiled Keras model.

    Attributes:
        row_bytes: Approximate bytes of floats that a pass computes for one row, set by
            `first_pass.examine`. None if unknown.
        metrics_before: The result of `metric_values` before the last pass.
        penalized: Whether the loss includes the penalties of weight regularizers, set by `loss`. A
            custom `compute_loss` may leave them out.

    Raises:
        ValueError: If the model has no trainable variable.
    """

    def __init__(self, model):
        self.model = model
        self.variables = list(model.trainable_variables)
        self.state_variables = list(model.non_trainable_variables)
        if (shared := shared_seed_state()) is not None:
            self.state_variables.append(shared)
        self._seed_shift = None
        if not self.variables:
            remedy = "Give it an Input layer, or call it once on data."
            if model.built:
                remedy = "It is built, and all its weights are frozen: set layer.trainable = True."
            raise ValueError(f"Model '{model.name}' has no trainable variable. {remedy}")
        # A pass may advance two kinds of random state: seeds give fresh numbers to every example, and
        # tfdp's noisy layers have one draw for the whole lot.
        self._per_example = {id(v) for v in seed_states(model)}
        self._per_lot = {id(n.weight_noise_state) for n in noisy_layers(model) if n.built}
        self._permitted = frozenset()
        self.row_bytes: int | None = None
        self.penalized = True

    def state(self) -> list:
        """Returns the values of the non-trainable variables with which a lot starts."""
        values = []
        for index, variable in enumerate(self.state_variables):
            value = tf.convert_to_tensor(variable)
            if self.is_per_example(index) and self._seed_shift is not None:
                value += tf.cast(self._seed_shift, value.dtype)
            values.append(value)
        return values

    def shift_seeds(self, shift: tf.Tensor) -> None:
        """Adds a shift, an int64 tensor [2], to the seeds from which examples draw from now on."""
        self._seed_shift = shift

    def is_per_example(self, index: int) -> bool:
        """Whether state variable number `index` must differ from example to example."""
        return id(self.state_variables[index]) in self._per_example

    def is_random(self, variable) -> bool:
        """Whether `variable` is random state, which a pass may advance. Its owner decides this."""
        return id(variable) in self._per_example or id(variable) in self._per_lot

    def permit(self, counters) -> None:
        """Permits passes to assign to these state variables besides random state.

        Only `first_pass` knows which variables may be assigned in a pass that is executed.
        """
        self._permitted = frozenset(id(variable) for variable in counters)

    def scope(self, values, state) -> keras.StatelessScope:
        """Returns a scope in which the model computes with `values` and `state`."""
        mapping = [*zip(self.variables, values, strict=True)]
        mapping += zip(self.state_variables, state, strict=True)
        mapping += without_metrics(self.model)
        return keras.StatelessScope(mapping)

    def metric_values(self, scope) -> list:
        """Returns the state of the model's own metrics in `scope`, with None where it is not set."""
        return [scope.get_current_value(v) for v in own_metrics(self.model)]

    def outputs(self, values, state, x):
        """Runs the model in training mode on a batch `x`.

        Returns:
            (y_pred, scope, new_state), where new_state has None for variables that did not change.

        Raises:
            ValueError: If a layer assigned to a trainable weight, or to a variable that is neither
                random state nor permitted.
        """
        with self.scope(values, state) as scope:
            self.metrics_before = self.metric_values(scope)
            # Otherwise Keras silently drops activity penalties and losses from add_loss.
            scope.collect_losses = True
            try:
                with inlined_functions(), without_recomputation():
                    y_pred = self.model(with_none(x), training=True)
            except Exception:
                forget_dropout_masks(self.model)  # the next pass may succeed
                raise
        new_state = []
        for variable, before in zip(self.state_variables, state, strict=True):
            after = scope.get_current_value(variable)
            if after is before:
                new_state.append(None)
                continue
            if not (self.is_random(variable) or id(variable) in self._permitted):
                raise ValueError(state_error(variable))
            new_state.append(after)
        for variable, value in zip(self.variables, values, strict=True):
            if scope.get_current_value(variable) is not value:
                raise ValueError(state_error(variable))
        return y_pred, scope, new_state

    def loss(self, scope, x, y, y_pred):
        """Returns the loss of the examples in a batch, as `model.compute_loss` reduces it.

        The penalties of weight regularizers are left out: they do not depend on data, and their
        gradient (`regularization`) is added after the noise, if the loss includes them. The weights of
        `WeightedTargets` go to `compute_loss`; factors for whole rows are applied by the caller.
        """
        y, sample_weight = apart(y)
        with (
            scope,
            as_one_replica(),
            inlined_functions(),
            without_recomputation(),
            without_penalties(self.model) as asked,
            contextlib.ExitStack() as stack,
        ):
            for each in keras.tree.flatten(self.model.loss):
                if getattr(each, "reduction", "") in (None, "none"):
                    # Keras fails when it adds a penalty to a vector. The gradients are the same.
                    stack.enter_context(replaced(each, reduction="sum"))
            loss = compute_loss_as_keras(
                self.model, with_none(x), with_none(y), y_pred, sample_weight
            )
        self.penalized = bool(asked)
        return tf.cast(loss, tf.float32)

    def regularization(self):
        """Returns the gradients of the weight regularizers, with None where a variable has none."""
        if not self._penalties(self.variables):
            return [None] * len(self.variables)
        values = [tf.convert_to_tensor(v) for v in self.variables]
        tape = tf.GradientTape(watch_accessed_variables=False)
        with tape, self.scope(values, self.state()):
            tape.watch(values)
            penalty = tf.add_n([tf.cast(p, tf.float32) for p in self._penalties(values)])
        return tape.gradient(penalty, values)

    def penalty(self) -> tf.Tensor:
        """Returns the sum of the penalties of all weight regularizers."""
        penalties = self._penalties(self.variables)
        return tf.add_n([tf.zeros([])] + [tf.cast(p, tf.float32) for p in penalties])

    def _penalties(self, values):
        if not self.penalized:
            return []
        pairs = zip(self.variables, values, strict=True)
        return [v.regularizer(value) for v, value in pairs if v.regularizer is not None]

    def advance(self, before, after) -> None:
        """Advances random state and counters, once per lot.

        Args:
            before: The result of `state()` at the start of the lot.
            after: The new values, a list like `before`, with None for variables that did not change.
        """
        for variable, old, new in zip(self.state_variables, before, after, strict=True):
            if new is not None:
                variable.assign_add(new - old)
