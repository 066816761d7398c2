"""SI-DPSGD: noise on the weights, around means that are updated without noise.

SI-DPSGD paper, Algorithm 1:

    mu_{t+1}    = mu_t - eta_t g_t                      (un-noised; a secret)
    theta_{t+1} = mu_{t+1} + eta_t C z / L * N(0, I)    (the weights of the model, which are released)

with g_t the clipped gradients at theta_t, averaged over the nominal lot size. The rates eta_t come from
the table in the session's run, even if a schedule has changed since. Means and velocities are
float64: they are rounded before the noise is added, and in float32 one example would move every
coordinate that crosses a rounding boundary by a whole unit in the last place.

Formal guarantee: an observer of every theta sees a matrix mechanism with noise on prefix sums
(`accounting.linear_steps`); there is no guarantee against an observer of any mu. The means are
stored where Keras and TensorFlow do not save them. Only `release_means`, which the accounting covers,
releases them.
"""

from typing import Unpack

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from tfdp._compat.keras import configured_rate, replaced
from tfdp._validate import flag, fraction, one_of, positive
from tfdp.accounting.guarantee import check_kind
from tfdp.accounting.mechanisms import RELEASES, SIDPSGD
from tfdp.optimizers.arguments import ClippingArguments, Rate
from tfdp.optimizers.dp_keras_optimizer import DPKerasOptimizer
from tfdp.optimizers.means import means_of

# Keras arguments that would change the means.
_REFUSED = ("use_ema", "weight_decay", "clipnorm", "clipvalue", "global_clipnorm")


class _Hidden:
    """The un-noised means and the state of their update rule.

    This is a plain object, which Keras neither tracks nor saves.

    Args:
        rule: A Keras optimizer that updates the means, or None for SGD.
        variables: The weights, the initial values of the means.
        first: Number of the first step, for the schedule of `rule`.
        momentum: Whether to create velocities.
    """

    def __init__(self, rule=None, variables=(), first=0, momentum=False):
        values = [tf.convert_to_tensor(v) for v in variables]
        self.means = [
            keras.Variable(tf.cast(v, tf.float64), dtype="float64", trainable=True, name="mean")
            for v in values
        ]
        # The weights that the model was last given, to detect changes from outside.
        self.shown = [tf.Variable(v, trainable=False) for v in values]
        self.velocities = [
            tf.Variable(tf.zeros(v.shape, tf.float64), trainable=False) for v in values * momentum
        ]
        self.rule = rule
        if rule is not None and values:
            self.rule = type(rule).from_config(rule.get_config())
            self.rule.build(self.means)
            self.rule.iterations.assign(first)

    def named(self) -> dict:
        """Returns all variables by name."""
        rule = [] if self.rule is None else self.rule.variables
        groups = {"mean": self.means, "velocity": self.velocities, "rule": rule}
        return {f"{name}_{i}": v for name, group in groups.items() for i, v in enumerate(group)}


@keras.saving.register_keras_serializable(package="tfdp")
class SIDPSGDOptimizer(DPKerasOptimizer):
    """SI-DPSGD: trains secret means without noise, and gives the model the means plus fresh noise.

    Use it to reproduce the paper (Davody, Adelani, Kleinbauer and Klakow 2020, "Robust Differentially
    Private Training of Deep Neural Networks", Algorithm 1). The proven epsilon is often far larger than
    the paper's; for other purposes, DP-SGD is the usual choice.

    With momentum, v <- beta v + g; mu <- mu - eta v (or eta (g + beta v) for Nesterov), as in the
    authors' PyTorch code: the learning rate is not part of the velocity. The noise is *not* inside the
    momentum, so momentum 0.9 multiplies the effect of one example on the weights by up to 10. The
    proven epsilon accounts for it.

    Assign weights only between two fits: the next step of a fit overwrites values from a callback.

    Args:
        learning_rate: A float, or a `keras.optimizers.schedules.LearningRateSchedule`. It also
            scales the noise and enters the accounting, so it cannot be assigned later.
        momentum: Beta in [0, 1); default 0.
        nesterov: Whether the momentum is Nesterov's; default False.
        update_rule: A Keras optimizer that updates the means instead of SGD; None takes SGD. Its
            learning rate also scales the noise. Its state is secret and without noise, like the means,
            so no finite epsilon can be proven, and it requires guarantee="claimed".
        guarantee: "proven" refuses an `update_rule`, for which nothing is proven; "claimed" allows it,
            to reproduce the paper's results.
        release: The weights that you release: "theta", the noisy draw in the model; or "mu", the means
            themselves, by `release_means`, as evaluated by the authors' code. No finite epsilon can be
            proven for "mu".
        name: Name of the optimizer.
        **kwargs: Arguments of `DPKerasOptimizer`.

    Raises:
        ValueError: If an argument is invalid, or the accounting does not cover it.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> optimizer = tfdp.SIDPSGDOptimizer(learning_rate=0.5, l2_norm_clip=1.0, noise_multiplier=8.0)
        >>> model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
        >>> model.compile(optimizer, "mse")
        >>> x = np.zeros((100, 2), "float32")
        >>> lots = tfdp.data.make_lots("cyclic", x, x[:, :1], lot_size=50)
        >>> _ = model.fit(lots, epochs=3, verbose=0)
        >>> claimed = model.privacy.spent(delta=1e-4, kind="claimed")
        >>> proven = model.privacy.spent(delta=1e-4)
        >>> print(f"claimed {claimed.epsilon:.2f}, proven {proven.epsilon:.2f}")
        claimed 0.71, proven 2.34
    """

    mechanism = SIDPSGD
    title = "SI-DPSGD (noise in the weights)"

    refused = (*DPKerasOptimizer.refused, *_REFUSED, "ema_momentum", "ema_overwrite_frequency")
    accounted = (*DPKerasOptimizer.accounted, "momentum", "nesterov", "guarantee", "release")

    def __init__(
        self,
        learning_rate: Rate = 0.1,
        momentum: float = 0.0,
        nesterov: bool = False,
        update_rule: keras.optimizers.Optimizer | None = None,
        guarantee: str = "proven",
        release: str = "theta",
        name: str = SIDPSGD.name,
        **kwargs: Unpack[ClippingArguments],
    ):
        momentum = fraction("momentum", momentum, zero=True)
        one_of("release", release, RELEASES)
        check_kind(guarantee, "guarantee")
        if isinstance(update_rule, dict):
            update_rule = keras.optimizers.deserialize(update_rule)
        if update_rule is not None:
            if guarantee != "claimed":
                raise ValueError(
                    "No finite epsilon can be proven for SI-DPSGD with "
                    f"{type(update_rule).__name__} on the means: its state is private and "
                    "un-noised. Use update_rule=None (SGD, momentum or Nesterov), or "
                    "guarantee='claimed'."
                )
            learning_rate = configured_rate(update_rule)
            if isinstance(learning_rate, keras.Variable):
                learning_rate = float(learning_rate.numpy())
        if not isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            remedy = "Pass such a number, or a LearningRateSchedule."
            learning_rate = positive("learning_rate", learning_rate, remedy=remedy)
        refused = [name for name in _REFUSED if kwargs.get(name)]
        if refused:
            raise ValueError(
                f"SIDPSGDOptimizer does not support {refused}: they would change the means in a way "
                "that the accounting does not cover. Remove them."
            )
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.momentum = momentum
        self.nesterov = flag("nesterov", nesterov)
        self.guarantee = guarantee
        self.release = release
        self._rate = learning_rate  # not Keras' variable, which loading a file may overwrite
        self._hidden = _Hidden(update_rule)

    @property
    def learning_rate(self):
        """The schedule's value at the current iteration; training uses the table of its run."""
        if isinstance(self._rate, float):
            return tf.constant(self._rate, tf.float32)
        return tf.cast(self._rate(self.iterations), tf.float32)

    @learning_rate.setter
    def learning_rate(self, value):
        raise ValueError(
            "The learning rate of SIDPSGDOptimizer scales the noise on the weights and enters the "
            f"accounting, so {value!r} cannot be assigned to it. Pass a LearningRateSchedule to the "
            "constructor."
        )

    def mechanism_fields(self, variables) -> dict:
        rule = self._hidden.rule
        return super().mechanism_fields(variables) | {
            # The suffix prevents the accounting from treating the rule as linear because of its name.
            "optimizer": "sgd" if rule is None else f"{type(rule).__name__} on the means",
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "release": self.release,
        }

    def tables(self, variables, first, steps, known=None):
        fields = super().tables(variables, first, steps, known)
        if isinstance(self._rate, float):
            return fields | {"learning_rates": float(np.float32(self._rate))}
        rates = evaluate_schedule(self._rate, steps, first)
        if known is not None:
            rates = (*known.mechanism.learning_rates, *rates[len(known.mechanism.learning_rates) :])
        return fields | {"learning_rates": rates}

    def begin(self, session) -> None:
        """Starts the means at the weights of the model, without velocity.

        So earlier training affects the new session only through released weights.

        Args:
            session: The session that was opened.

        Raises:
            ValueError: If a weight has a constraint, which would also have to apply to the secret
                means, or less precision than float32.
        """
        variables = session.variables
        constrained = [v.path for v in variables if getattr(v, "constraint", None) is not None]
        if constrained:
            raise ValueError(
                f"SI-DPSGD does not support the constraints of {constrained}, because its means are "
                "secret. Remove the constraints."
            )
        coarse = sorted({v.dtype for v in variables} - {"float32", "float64"})
        if coarse:
            raise ValueError(
                f"SI-DPSGD needs float32 or float64 weights. Received the dtypes {coarse}. With the "
                "policy mixed_bfloat16, weights are float32."
            )
        super().begin(session)
        first = int(self.iterations.numpy())
        self._hidden = _Hidden(
            self._hidden.rule, variables, first, session.run.mechanism.momentum > 0
        )

    @property
    def hidden_variables(self):
        return [*self._hidden.named().values(), *self._hidden.shown]

    def secret_state(self):
        named = self._hidden.named().items()
        return {name: keras.ops.convert_to_numpy(value) for name, value in named}

    def resume(self, session, state, lost):
        """Resumes with the means of the last saved step; see docs/decisions/crashes.md.

        After lost steps, velocities start at zero, so that no earlier record moves a later mean by
        more than it would have without the loss.
        """
        super().resume(session, state, lost)
        for name, variable in self._hidden.named().items():
            if not (lost and name.startswith("velocity")):
                variable.assign(state[name])

    def continues(self, session) -> bool:
        """Returns whether the weights are those that this optimizer last assigned."""
        variables, shown = session.variables, self._hidden.shown
        same = len(variables) == len(shown) and all(
            np.array_equal(v.numpy(), last.numpy(), equal_nan=True)
            for v, last in zip(variables, shown, strict=True)
        )
        if not same:
            logging.info(
                "SI-DPSGD: the weights were changed from outside; the means restart from them."
            )
        return same

    def update(self, bounded, session, variables, regularization):
        """Takes one step of Algorithm 1; arguments and result are as in `DPKerasOptimizer.update`."""
        hidden = self._hidden
        rate = tf.cast(session.value("learning_rates"), tf.float64)
        scale = self._stddev(session.value("noise_multiplier"), bounded, session)
        noise = self._noise.gaussians(session.place, scale, [v.shape for v in variables])
        sums = [tf.cast(total, tf.float64) for total in bounded.sums]
        gradients = means_of(sums, session.divisor, regularization)
        self._move_means(gradients, rate, session.run.mechanism)
        for i, variable in enumerate(variables):
            mean = tf.convert_to_tensor(hidden.means[i])
            drawn = mean + rate / float(session.divisor) * tf.cast(noise[i], tf.float64)
            shown = tf.cast(drawn, variable.dtype)
            variable.assign(shown)
            hidden.shown[i].assign(shown)
        self.iterations.assign_add(1)
        return scale

    def _move_means(self, gradients, rate, mechanism):
        hidden = self._hidden
        if hidden.rule is not None:
            # The gradients are sums over all replicas already.
            with replaced(hidden.rule, _all_reduce_sum_gradients=list):
                hidden.rule.apply(gradients, hidden.means)
            return
        for i, (gradient, mean) in enumerate(zip(gradients, hidden.means, strict=True)):
            direction = gradient
            if mechanism.momentum:
                velocity = (
                    mechanism.momentum * tf.convert_to_tensor(hidden.velocities[i]) + gradient
                )
                hidden.velocities[i].assign(velocity)
                direction = (
                    gradient + mechanism.momentum * velocity if mechanism.nesterov else velocity
                )
            mean.assign(tf.convert_to_tensor(mean) - rate * direction)

    def release_means(self, variables) -> None:
        """Writes the means into the model, without noise. Publishing them has no finite guarantee.

        Args:
            variables: The trainable variables of the model.

        Raises:
            RuntimeError: If the optimizer was not constructed with release="mu", so the accounting
                does not cover this release.
        """
        if self.release != "mu":
            raise RuntimeError(
                f"The means of SI-DPSGD are secret with release={self.release!r}. Construct the "
                "optimizer with release='mu', whose proven epsilon is infinite."
            )
        for mean, variable in zip(self._hidden.means, variables, strict=True):
            variable.assign(mean)

    def get_config(self):
        rule, rate = self._hidden.rule, self._rate
        if not isinstance(rate, float):
            rate = keras.optimizers.schedules.serialize(rate)
        return super().get_config() | {
            "learning_rate": rate,
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "update_rule": None if rule is None else keras.optimizers.serialize(rule),
            "guarantee": self.guarantee,
            "release": self.release,
        }


def evaluate_schedule(schedule, steps: int, first: int = 0) -> tuple[float, ...]:
    """Returns the learning rates of a schedule, as the float32 values used in training.

    Args:
        schedule: A `keras.optimizers.schedules.LearningRateSchedule`.
        steps: Number of steps.
        first: Number of the first step.
    """
    numbers = tf.range(first, first + steps, dtype=tf.int64)
    values = tf.function(
        lambda: tf.map_fn(
            lambda step: tf.cast(schedule(step), tf.float32),
            numbers,
            fn_output_signature=tf.float32,
        )
    )
    return tuple(values().numpy().astype(float).tolist())
