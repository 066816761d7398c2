"""DP-SGD with the update rule of any Keras optimizer.

Formal guarantee: an update depends on the lot's gradients only through
`(sum of bounded gradients + N(0, (z C)^2 I)) / L`, one fresh draw per lot (Abadi et al. 2016, Algorithm
1), where the engine enforces the clip norm C, and L is the public, nominal lot size (with
microbatches, their number in a nominal lot). Everything else an optimizer does (momentum, Adam's
moments, weight decay) is post-processing.
"""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tfdp._compat.keras import unpickled
from tfdp._validate import positive, refuse, schedule, whole
from tfdp.accounting.mechanisms import DPSGD, Mechanism
from tfdp.data.words import derived
from tfdp.gradients.bounds import L2Clip, make_bound
from tfdp.gradients.contract import BoundedSum
from tfdp.noise.gaussian import NoiseSource
from tfdp.optimizers.adaptive_clipping import AdaptiveClipping, adaptive_clipping_for
from tfdp.optimizers.arguments import (
    INTERNAL,
    NOISE_MAKING,
    REFUSED,
    check_arguments,
    describe_arguments,
)
from tfdp.optimizers.means import means_of
from tfdp.session import Session


class DPKerasOptimizer(keras.optimizers.Optimizer):
    """Base class of the private optimizers; `make_dp_optimizer_class` adds a Keras update rule.

    Each example's gradient is clipped, Gaussian noise is added to the sum over the lot, and Keras'
    update rule gets the mean (Abadi et al. 2016, "Deep Learning with Differential Privacy", Algorithm
    1). Compile a private model (`make_private`) with it; `fit` raises an error for any other model.
    `tfdp.accounting.noise_for` finds the noise multiplier for a privacy budget.

    Args:
        l2_norm_clip: C > 0, the L2 norm to which each example's (microbatch's) gradient is clipped.
        noise_multiplier: z >= 0, the standard deviation of the noise on the sum, in units of C; or a
            sequence with one number for each step of a run, which limits the number of steps.
        num_microbatches: Number of microbatches of a lot; it must divide the lot size. The mean
            gradient of each is clipped. None clips every example separately. A microbatch of several
            examples doubles the sensitivity, which the accounting includes.
        clipping: "global", the default: the whole gradient at C. "per_layer": each layer at C /
            sqrt(layers). "each_layer": each layer at C, so that the whole gradient is within C
            sqrt(layers), which the accounting includes. "automatic": every gradient is scaled to a
            norm just below C. "adaptive": C starts at `l2_norm_clip` and follows a quantile of the
            gradient norms, by a noisy count.
        target_quantile: With "adaptive": fraction of gradients that should stay unclipped; default
            0.5.
        quantile_learning_rate: With "adaptive": learning rate of the clip norm; default 0.2.
        quantile_noise_multiplier: With "adaptive": standard deviation of the noise on the count of
            unclipped gradients; default 5 z. The noise on the sum is increased so that both
            together have the noise multiplier z.
        seed: Seed of the noise, only for tests and debugging: no finite epsilon is proven with it.
            It is not saved. None draws the noise from the operating system's entropy.
        *args, **kwargs: Arguments of the Keras optimizer.

    Raises:
        TypeError: If an argument is unknown.
        ValueError: If an argument is invalid, or is `loss_scale_factor` or
            `gradient_accumulation_steps`, which keeps sums without noise in slots that checkpoints
            save. Set `physical_batch_size` instead.

    Attributes:
        mechanism: Class of the accounting's mechanism for runs of this optimizer.
        title: Name of the mechanism in messages.
        accounted: Names of attributes that the accounting depends on, fixed by the constructor.
        mean_factor: Factor on the noisy mean before the update rule.
        refused: Names of Keras arguments that are not supported.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> optimizer = tfdp.DPKerasSGDOptimizer(
        ...     l2_norm_clip=1.0, noise_multiplier=1.1, learning_rate=0.15, momentum=0.9)
        >>> isinstance(optimizer, tfdp.DPKerasOptimizer)
        True
        >>> plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> plain.compile(optimizer, "mse")  # without make_private
        >>> plain.fit(np.zeros((10, 2)), np.zeros(10), verbose=0)
        Traceback (most recent call last):
        ...
        RuntimeError: ...make_private...
    """

    mechanism: type[Mechanism] = DPSGD
    title = "DP-SGD"
    mean_factor = 1.0
    refused: tuple[str, ...] = REFUSED
    accounted: tuple[str, ...] = (
        "l2_norm_clip",
        "noise_multiplier",
        "num_microbatches",
        "clipping",
        "adaptive_clipping",
    )

    def __init__(
        self,
        *args,
        l2_norm_clip: float,
        noise_multiplier: float | Sequence[float],
        num_microbatches: int | None = None,
        clipping: str = "global",
        target_quantile: float | None = None,
        quantile_learning_rate: float | None = None,
        quantile_noise_multiplier: float | None = None,
        seed: int | str | None = None,
        **kwargs,
    ):
        num_microbatches = whole("num_microbatches", num_microbatches, 1, optional=True)
        super().__init__(*args, **kwargs)
        l2_norm_clip = positive("l2_norm_clip", l2_norm_clip)
        # Raises for invalid values at construction, not at the first step.
        make_bound(clipping, l2_norm_clip, ["layer/variable"])
        self.clipping = clipping
        self.l2_norm_clip = l2_norm_clip
        self.noise_multiplier = schedule("noise_multiplier", noise_multiplier)
        self.num_microbatches = num_microbatches
        self._quantile_settings = {
            "target_quantile": target_quantile,
            "quantile_learning_rate": quantile_learning_rate,
            "quantile_noise_multiplier": quantile_noise_multiplier,
        }
        self.adaptive_clipping: AdaptiveClipping | None = adaptive_clipping_for(
            clipping, self.noise_multiplier, **self._quantile_settings
        )
        self._clip_norm: keras.Variable | None = None
        self._seed, self._sessions = seed, 0
        # Plain objects, which no save path of Keras or TensorFlow reaches.
        self._noise = NoiseSource(seed)  # each session creates its own

    def __new__(cls, *args, **kwargs):
        del args
        check_arguments(cls, kwargs, cls.refused)  # before Python asks for one that was misspelt
        return super().__new__(cls)

    def __init_subclass__(cls, **arguments):
        super().__init_subclass__(**arguments)
        describe_arguments(cls, cls.refused)

    def __dir__(self):
        return [name for name in super().__dir__() if name not in INTERNAL]

    def __repr__(self) -> str:
        noise = self.noise_multiplier
        shown = f"({noise[0]:g}, ...)" if isinstance(noise, tuple) else f"{noise:g}"
        return (
            f"{type(self).__name__}(l2_norm_clip={self.l2_norm_clip:g}, noise_multiplier={shown})"
        )

    def __setattr__(self, name, value):
        if name not in self.accounted:
            super().__setattr__(name, value)
        elif name in vars(self):
            raise AttributeError(
                f"{name} of {type(self).__name__} enters the accounting, so it cannot be assigned. "
                "Compile the model with a new optimizer, which starts a new run."
            )
        else:
            vars(self)[name] = value

    def build(self, variables):
        """Creates the slots and, with adaptive clipping, the public variable C, which is saved."""
        super().build(variables)
        if self.adaptive_clipping is not None:
            self._clip_norm = self.add_variable(
                (), keras.initializers.Constant(self.l2_norm_clip), "float32", name="l2_norm_clip"
            )

    def check_class(self) -> None:
        """Raises ValueError for a custom class that changes the noise but declares no mechanism."""
        cls = type(self)
        accounted = next(kind for kind in cls.__mro__ if "mechanism" in vars(kind))
        own = [n for n in NOISE_MAKING if getattr(cls, n) is not getattr(accounted, n)]
        if own:
            raise ValueError(
                f"{cls.__name__} overrides {own}, but is accounted as '{self.mechanism.name}', "
                "which may not describe it. Give it its own mechanism "
                "(tfdp.accounting.register_mechanism), or remove these methods."
            )

    @property
    def described_steps(self) -> int | None:
        """Largest number of steps in a run of this optimizer; None if unlimited."""
        table = self.noise_multiplier
        return len(table) if isinstance(table, tuple) else None

    @property
    def seeded(self) -> bool:
        """Whether the noise comes from a user's seed."""
        return self._seed is not None

    def bound(self, variables, l2_norm_clip: float | None = None) -> L2Clip:
        """Returns the bound on the influence of an example on the sum of gradients.

        Args:
            variables: The trainable variables.
            l2_norm_clip: Clip norm C of the session's run; None takes the constructor's argument.
                With adaptive clipping, the current clip norm replaces both.
        """
        clip = self.l2_norm_clip if l2_norm_clip is None else l2_norm_clip
        if self._clip_norm is not None:
            clip = tf.identity(self._clip_norm.value)
        return make_bound(self.clipping, clip, [v.path for v in variables])

    def microbatch_size(self, lot_size: int) -> int:
        """Returns the number of examples in a microbatch of a nominal lot.

        Args:
            lot_size: Nominal lot size.

        Raises:
            ValueError: If it is not divisible by the number of microbatches.
        """
        if self.num_microbatches is None:
            return 1
        if lot_size % self.num_microbatches:
            expected, remedy = (
                f"a divisor of the lot size {lot_size}",
                "Choose another lot size, or None.",
            )
            refuse("num_microbatches", expected, self.num_microbatches, remedy)
        return lot_size // self.num_microbatches

    def mechanism_fields(self, variables) -> dict:
        """Returns the fields of this optimizer's `mechanism`, except those of `tables`.

        Args:
            variables: The trainable variables that the optimizer will update.
        """
        return {"noise_multiplier": self.noise_multiplier}

    def contribution_fields(self, variables) -> dict:
        """Returns the fields of `accounting.Contribution` that this optimizer determines.

        Args:
            variables: The trainable variables that the optimizer will update.
        """
        return {
            "l2_norm_clip": self.l2_norm_clip,
            "clip_groups": self.bound(variables).clip_groups,
            "adaptive_clipping": self.adaptive_clipping is not None,
        }

    def scalars(self, variables) -> dict:
        """Returns numbers about the mechanism for logs such as TensorBoard's, by name.

        They may only depend on released weights and other public values, since logs may be published.

        Args:
            variables: The trainable variables.
        """
        return {} if self._clip_norm is None else {"l2_norm_clip": float(self._clip_norm.numpy())}

    def tables(self, variables, first: int, steps: int, known=None) -> dict:
        """Returns fields of the mechanism that are tables over steps, or depend on initial weights.

        Args:
            variables: The trainable variables, with their current values.
            first: The optimizer's iteration at the first step.
            steps: Number of steps.
            known: The run that is continued, whose tables keep their entries; None for a new run.
        """
        return {}

    def begin(self, session: Session) -> None:
        """Prepares the optimizer for a session before its first step."""
        self._sessions += 1
        if session.key is None or self.seeded:
            # Only a seeded source uses the salt: each session of this optimizer draws other numbers.
            self._noise = NoiseSource(self._seed, (self._sessions, session.first_iteration))
        else:
            key = derived(session.key, "noise")  # equal on all machines
            self._noise = NoiseSource.with_key(np.frombuffer(key, np.int64))

    def continues(self, session: Session) -> bool:
        """Returns whether training may continue within the open session."""
        return True

    @property
    def hidden_variables(self) -> list:
        """Variables of the session that Keras does not track; each replica has a copy of them."""
        return []

    def secret_state(self) -> dict[str, np.ndarray]:
        """Returns the secret state that a resumed run needs besides weights and slots."""
        return {}

    def resume(self, session: Session, state: dict, lost: int) -> None:
        """Prepares the optimizer for a session that resumes the run of another process.

        Args:
            session: The session; its variables have the values of the state.
            state: The result of `secret_state` after `session.entry.taken - lost` steps.
            lost: Number of steps that were counted after that state, whose results are lost.
        """
        self.begin(session)

    def update(self, bounded: BoundedSum, session: Session, variables, regularization):
        """Adds the noise, once per lot, and applies the update rule.

        Args:
            bounded: The lot's bounded sum.
            session: The session that accounts for the step, with the public divisor.
            variables: The trainable variables, in the order of `bounded.sums`.
            regularization: For each variable, the gradient of its weight regularizers, or None.

        Returns:
            The scale of the noise on every entry of the sum, as from `add_noise`.
        """
        sums, scale = self.add_noise(bounded, session)
        gradients = means_of(sums, session.divisor, regularization)
        if self.mean_factor != 1.0:
            gradients = [self.mean_factor * mean for mean in gradients]
        gradients = [tf.cast(g, v.dtype) for g, v in zip(gradients, variables, strict=True)]
        super().apply(gradients, variables)  # not `self.apply`, which raises for all gradients
        return scale

    def add_noise(self, bounded: BoundedSum, session: Session) -> tuple[list, tf.Tensor | float]:
        """Draws the noise, once per lot, and adds it to the bounded sums.

        With adaptive clipping, it also updates the clip norm for the next step.

        Args:
            bounded: The lot's bounded sum.
            session: The session that accounts for the step.

        Returns:
            (sums, scale): the noisy sums, and the standard deviation of the noise on every entry
            (for a family without one, its scale), a float or a float32 scalar.
        """
        source, shapes = self._noise, [total.shape for total in bounded.sums]
        noise_multiplier = session.value("noise_multiplier")
        adaptive, clip_norm = self.adaptive_clipping, self._clip_norm
        first = session.run.contribution.l2_norm_clip
        if adaptive is None or clip_norm is None or first is None:
            scale = self._stddev(noise_multiplier, bounded, session)
            noise = source.gaussians(session.place, scale, shapes)
        else:
            scale = self._stddev(adaptive.sum_noise, bounded, session)
            # One more scalar, drawn with the others, is the noise on the count.
            *noise, extra = source.gaussians(session.place, 1.0, [*shapes, ()])
            count = adaptive.count(bounded) + adaptive.count_noise * extra
            clip_norm.assign(
                adaptive.next_clip_norm(bounded.l2_norm_clip, count, session.divisor, first)
            )
            noise = [scale * draw for draw in noise]
        return [total + draw for total, draw in zip(bounded.sums, noise, strict=True)], scale

    def _stddev(self, noise_multiplier, bounded: BoundedSum, session: Session):
        """The standard deviation of the noise on the sum: a float or a float32 scalar."""
        if tf.is_tensor(noise_multiplier):
            noise_multiplier = tf.cast(noise_multiplier, tf.float32)
        return noise_multiplier * bounded.l2_norm_clip

    def _all_reduce_sum_gradients(self, grads_and_vars):
        """Returns the gradients unchanged: the step has added the sums of all replicas.

        Keras' sum registers a gradient function for every graph, which keeps the graph in memory.
        """
        return list(grads_and_vars)

    def _overwrite_model_variables_with_average_value(self, trainable_variables):
        """Assigns the averages to the weights, each replica to its own; Keras' method raises there."""
        averages = self._model_variables_moving_average
        for variable, average in zip(trainable_variables, averages, strict=True):
            variable.assign(average)

    def apply(self, grads, trainable_variables=None):
        """Raises RuntimeError, because gradients that did not come from an engine are not private."""
        raise RuntimeError(
            f"{type(self).__name__} received gradients without a bound, because the model is not "
            "private. Call tfdp.make_private(model) before compile, and for each model that is made of "
            "another one: keras.models.clone_model and scikit-learn's wrappers make plain copies. In a "
            "custom loop, use model.privacy.steps(...) instead of apply_gradients."
        )

    def get_config(self):
        """Returns the configuration without the seed, with which a reader could redraw the noise."""
        return super().get_config() | {
            "l2_norm_clip": self.l2_norm_clip,
            "noise_multiplier": self.noise_multiplier,
            "num_microbatches": self.num_microbatches,
            "clipping": self.clipping,
            **self._quantile_settings,
        }

    def __reduce__(self):
        """Makes copies and pickles contain the same as files: neither seed, noise nor means."""
        _, arguments = super().__reduce__()
        return unpickled, arguments
