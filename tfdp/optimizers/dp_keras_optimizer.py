"""DP-SGD with the update rule of any Keras optimizer.

Formal guarantee: an update sees the lot's gradients only through
`(sum of bounded gradients + N(0, (z C)^2 I)) / L`, one fresh draw per lot (Abadi et al. 2016, Algorithm
1), with C the clip norm that the engine enforced and L the public, nominal lot size (with microbatches,
their number in a nominal lot). Everything else an optimizer does (momentum, Adam's moments, weight
decay) is post-processing.

`run_fields` describes everything that the accounting depends on once, when a session opens, and every
step takes it from the session's run. The described arguments cannot be assigned later.
"""

import dataclasses
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tfdp._compat.keras import trained_variables
from tfdp._other_libraries import refuse_other
from tfdp._validate import finite, positive, schedule, whole
from tfdp.account import DECLARED, Account, account_of
from tfdp.accounting import Ledger
from tfdp.accounting.mechanisms.dpsgd import DPSGD
from tfdp.gradients.bounds import L2Clip, make_bound
from tfdp.gradients.contract import BoundedSum
from tfdp.noise.gaussian import NoiseSource
from tfdp.optimizers.accounted import Accounted, SavedRun, check_same_place, check_same_run
from tfdp.optimizers.adaptive_clipping import AdaptiveClipping
from tfdp.optimizers.made import origin_of, unpickled_as
from tfdp.session import Session

# Methods that decide which noise is added to which sums, and how the noise is accounted.
_NOISE_MAKING = {
    "update", "add_noise", "bound", "run_fields", "tables", "microbatch_size", "_stddev",
}  # fmt: skip


class _Secrets:
    """State that no Keras or TensorFlow save path may reach; a plain object is not tracked."""

    def __init__(self, seed):
        self.seed, self.sessions = seed, 0
        self.noise = NoiseSource(seed)  # each session makes one of its own
        self.waiting: SavedRun | None = None  # the run of another process that is to go on


def mean_of(total, divisor: int, penalty):
    """The mean over a nominal lot, and the gradient of the weight regularizers (or None) added."""
    mean = total / tf.constant(float(divisor), total.dtype)
    return mean if penalty is None else mean + tf.cast(penalty, total.dtype)


class DPKerasOptimizer(keras.optimizers.Optimizer):
    """Base of the private optimizers; `make_dp_optimizer_class` puts it before a Keras optimizer.

    It accepts gradients from the private training step only: `apply_gradients` raises, so a model
    that was not made private cannot train with it.

    Args:
        *args, **kwargs: those of the Keras optimizer.
        l2_norm_clip: C > 0: L2 norm to which each example's (microbatch's) gradient is clipped.
        noise_multiplier: z >= 0: standard deviation of the noise on the sum, in units of C; or a
            sequence with one number for each step of a run, which then allows no more steps.
        num_microbatches: number of microbatches that a lot is cut into; divides the lot size. The mean
            gradient of each microbatch is clipped. None clips every example by itself. A microbatch
            of several examples doubles the sensitivity, which the accounting includes.
        clipping: "global"; "per_layer", which clips each layer at its share C / sqrt(layers);
            "each_layer", which clips each layer at C, so that the whole gradient is within
            C sqrt(layers), which the accounting includes; "automatic", which normalizes every
            gradient to just below C; or "adaptive", with which C follows a quantile of the norms
            (`adaptive_clipping`) and starts at `l2_norm_clip`.
        target_quantile: with "adaptive": fraction of gradients that should stay unclipped;
            default 0.5.
        quantile_learning_rate: with "adaptive": learning rate of the clip norm; default 0.2.
        quantile_noise_multiplier: with "adaptive": standard deviation of the noise on the count of
            unclipped gradients; default 5 z. The noise on the sum is raised so that both together
            have the noise multiplier z.
        seed: seed of the noise, for tests and debugging only; the privacy statement names it. It is
            not saved.

    Raises:
        ValueError: an argument is invalid, or is `gradient_accumulation_steps` (it keeps un-noised
            sums in slots that checkpoints save; set `physical_batch_size` instead) or
            `loss_scale_factor`.

    Attributes:
        mechanism: class of the accounting's mechanism that a run of this optimizer is accounted as.
        title: name of the mechanism in messages.
        mean_factor: factor on the noisy mean in the gradient that the update rule is given.

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

    mechanism = DPSGD
    title = "DP-SGD"
    mean_factor = 1.0

    l2_norm_clip = Accounted()
    noise_multiplier = Accounted()
    num_microbatches = Accounted()
    clipping = Accounted()

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
        refuse_other(type(self).__name__, kwargs)
        if kwargs.get("gradient_accumulation_steps") not in (None, 1):
            raise ValueError(
                "Invalid value received for argument `gradient_accumulation_steps`. Expected None: "
                "accumulated gradients have no noise and are saved in checkpoints. Received: "
                f"{kwargs['gradient_accumulation_steps']!r}. A lot larger than memory is cut by "
                "`physical_batch_size` instead."
            )
        if kwargs.get("loss_scale_factor") is not None:
            raise ValueError(
                "Invalid value received for argument `loss_scale_factor`. Expected None: a scaled "
                f"loss would be clipped at the wrong norm. Received: {kwargs['loss_scale_factor']}"
            )
        num_microbatches = whole("num_microbatches", num_microbatches, 1, optional=True)
        super().__init__(*args, **kwargs)
        l2_norm_clip = positive("l2_norm_clip", l2_norm_clip)
        # Refuses invalid values at construction, not at the first step.
        make_bound(clipping, l2_norm_clip, ["layer/variable"])
        self.clipping = clipping
        self.l2_norm_clip = l2_norm_clip
        self.noise_multiplier = _noise(noise_multiplier)
        self.num_microbatches = num_microbatches
        self._quantile_settings = {
            "target_quantile": target_quantile,
            "quantile_learning_rate": quantile_learning_rate,
            "quantile_noise_multiplier": quantile_noise_multiplier,
        }
        self._adaptive = self._adaptive_clipping()
        self._clip_norm = None
        self._secrets = _Secrets(seed)

    def __getattr__(self, name):
        refuse_other(type(self).__name__, [name], AttributeError)
        return object.__getattribute__(self, name)

    def _adaptive_clipping(self) -> AdaptiveClipping | None:
        given = {name: v for name, v in self._quantile_settings.items() if v is not None}
        if self.clipping != "adaptive":
            if given:
                raise ValueError(
                    f"Expected {sorted(given)} with clipping='adaptive' only. Received them with "
                    f"clipping={self.clipping!r}. Leave them out."
                )
            return None
        if not self.mechanism.adaptive_clipping:
            raise ValueError(
                f"The guarantee of {self.title} needs one clip norm for all steps: its noise is "
                "shared by several steps. Expected clipping='global', 'per_layer', 'each_layer' or "
                "'automatic'. Received: 'adaptive'"
            )
        if isinstance(self.noise_multiplier, tuple):
            raise ValueError(
                "Expected one noise multiplier with clipping='adaptive': count and sum share it. "
                f"Received a table of {len(self.noise_multiplier)}."
            )
        names = {
            "quantile_learning_rate": "learning_rate",
            "quantile_noise_multiplier": "count_noise",
        }
        settings = {names.get(name, name): finite(name, value) for name, value in given.items()}
        return AdaptiveClipping(self.noise_multiplier, **settings)

    def build(self, variables):
        """Makes the slots and, with adaptive clipping, the variable C, which is public and saved."""
        super().build(variables)
        if self._adaptive is not None:
            self._clip_norm = self.add_variable(
                (), keras.initializers.Constant(self.l2_norm_clip), "float32", name="l2_norm_clip"
            )

    @property
    def _account(self) -> Account:
        """The account of the weights that this optimizer trains; an empty one before it has any."""
        return account_of(trained_variables(self) if self.built else [])

    @property
    def ledger(self) -> Ledger:
        """The ledger of the weights that this optimizer was built for."""
        return self._account.ledger

    def known_steps(self, ledger: Ledger) -> int:
        """Number of private steps in a ledger, the most steps of this optimizer that it accounts for.

        Args:
            ledger: any ledger.
        """
        return sum(run.steps for run in ledger.runs if hasattr(run, "noise_multiplier"))

    def check_ledger(self, ledger: Ledger) -> None:
        """Raises ValueError if this optimizer has taken more steps than a ledger contains.

        Args:
            ledger: the ledger of the weights that this optimizer trains.
        """
        taken = int(self.iterations.numpy())  # also of one that is not built, from a checkpoint
        known = self.known_steps(ledger) + vars(self).get(DECLARED, 0)
        if taken > known:
            raise ValueError(
                f"The optimizer has taken {taken} steps, and its ledger knows of {known}: it was "
                "restored from something that holds no ledger, such as a tf.train.Checkpoint or the "
                "file of a plain model, or it is another model's. Save with model.save or "
                "model.save_weights, or keep model.privacy.ledger.to_json() beside the checkpoint and "
                "merge it: model.privacy.ledger.merge(Ledger.from_json(text)). Declare steps on public "
                "data by make_private(model, start='public')."
            )

    def check_class(self) -> None:
        """Raises ValueError for a user's class that changes the noise but declares no mechanism."""
        for kind in type(self).__mro__:
            if kind.__module__.partition(".")[0] == "tfdp":
                continue
            own = sorted(set(vars(kind)) & _NOISE_MAKING)
            if own and issubclass(kind, DPKerasOptimizer) and "mechanism" not in vars(kind):
                raise ValueError(
                    f"{kind.__name__} has {own} of its own, and is accounted as "
                    f"'{self.mechanism.name}', which may not be what it does. Expected a mechanism of "
                    "its own, too (tfdp.accounting.register_mechanism), or those methods left alone."
                )

    def check_replicas(self) -> None:
        """Raises NotImplementedError if this optimizer cannot train on several replicas."""
        if self.mechanism is not DPSGD or self._adaptive is not None:
            raise NotImplementedError(
                "On several replicas, only DP-SGD with a constant clip norm is implemented. Expected a "
                f"strategy with one replica for {type(self).__name__}."
            )

    @property
    def described_steps(self) -> int | None:
        """Number of steps that a run of this optimizer can have; None if it is not limited."""
        table = self.noise_multiplier
        return len(table) if isinstance(table, tuple) else None

    @property
    def seeded(self) -> bool:
        """Whether the noise comes from a user's seed."""
        return self._secrets.seed is not None

    def bound(self, variables, l2_norm_clip: float | None = None) -> L2Clip:
        """The bound on the influence of an example on the sum of gradients.

        Args:
            variables: the trainable variables.
            l2_norm_clip: C of the session's run; None takes the argument of the constructor. With
                adaptive clipping, the current clip norm replaces both.
        """
        clip = self.l2_norm_clip if l2_norm_clip is None else l2_norm_clip
        if self._clip_norm is not None:
            clip = tf.identity(self._clip_norm.value)
        return make_bound(self.clipping, clip, [v.path for v in variables])

    def microbatch_size(self, lot_size: int) -> int:
        """Number of examples in a microbatch.

        Args:
            lot_size: nominal lot size.

        Raises:
            ValueError: `num_microbatches` does not divide the lot size.
        """
        if self.num_microbatches is None:
            return 1
        if lot_size % self.num_microbatches:
            raise ValueError(
                "Invalid value received for argument `num_microbatches`. Expected a divisor of the "
                f"lot size {lot_size}. Received: {self.num_microbatches}"
            )
        return lot_size // self.num_microbatches

    def run_fields(self, variables) -> dict:
        """The fields of `accounting.Run` that this optimizer decides, except those of `tables`.

        Args:
            variables: the trainable variables that the optimizer will update.
        """
        return {
            "mechanism": self.mechanism.name,
            "noise_multiplier": self.noise_multiplier,
            "l2_norm_clip": self.l2_norm_clip,
            "clip_groups": self.bound(variables).clip_groups,
            "adaptive_clipping": self._adaptive is not None,
            "insecure_seed": self.seeded,
        }

    def scalars(self, variables) -> dict:
        """Figures of the mechanism for a log, besides gradients and epsilon: names to numbers.

        They may depend on released weights and other public values only, since a log may be shown.

        Args:
            variables: the trainable variables.
        """
        del variables
        if self._clip_norm is None:
            return {}
        return {"l2_norm_clip": float(self._clip_norm.numpy())}

    def tables(self, variables, first: int, steps: int, known=None) -> dict:
        """Fields of the run with one entry for each step, or that depend on the weights at its start.

        Args:
            variables: the trainable variables, with their present values.
            first: iteration of the first step.
            steps: number of steps.
            known: the run that is continued, or None; the entries of its tables are not changed.
        """
        del variables, first, steps, known
        return {}

    def begin(self, session: Session, resumed: bool = False) -> None:
        """Prepares the optimizer for a session that was opened, before its first step.

        Args:
            session: the session.
            resumed: whether its run was begun by another session, whose secrets were taken up.
        """
        # Only a seeded source has a salt. A resumed run draws on where it was, since draws are numbered
        # by its steps; another session of this optimizer draws other numbers.
        secrets = self._secrets
        secrets.sessions += not resumed
        salt = (max(secrets.sessions, 1), session.first_iteration)
        secrets.noise = NoiseSource(secrets.seed, salt)

    def continues(self, session: Session) -> bool:
        """Whether training may go on within the open session.

        Args:
            session: the open session.
        """
        del session
        return True

    @property
    def adaptive_clipping(self) -> AdaptiveClipping | None:
        """How the clip norm follows the gradients; None where it does not."""
        return self._adaptive

    def _secret_means(self) -> list:
        """Un-noised values around which weights are drawn; only the recorder of audits reads them."""
        return []

    @property
    def next_turn(self) -> int:
        """Number of the next lot; modulo the number of groups, the group whose turn it is."""
        session, waiting = self._account.session, self._secrets.waiting
        if waiting is not None:
            return waiting.turn
        return 0 if session is None else session.next_turn

    def resume(self, plan, fields: dict, variables) -> SavedRun | None:
        """The saved run of the ledger that the next steps continue; None starts a new run.

        A run that waits is taken up once.

        Args:
            plan: how the next steps draw their examples (`tfdp.session.Plan`).
            fields: the fields of `accounting.Run` that the steps are accounted with.
            variables: the trainable variables.

        Raises:
            ValueError: a saved run waits to be continued, and these steps do not belong to it.
        """
        del variables
        waiting, self._secrets.waiting = self._secrets.waiting, None
        if waiting is not None:
            check_same_run(waiting.run, fields)
            check_same_place(waiting, plan)
        return waiting

    def secret_state(self) -> dict[str, np.ndarray]:
        """What only a continued run needs besides weights and slots; a secret, never released."""
        return {}

    def take_up_secrets(self, state: dict, saved: SavedRun, lost: int, variables) -> None:
        """Takes over the `secret_state` of another process, so that its run goes on here.

        Args:
            state: from `secret_state`, after `saved.steps - lost` steps.
            saved: the run, with the steps that were counted.
            lost: number of steps that were counted after the state was made, and whose results are
                lost.
            variables: the trainable variables, with the values of the state.
        """

    def go_on_with(self, saved: SavedRun | None) -> None:
        """Sets the run that the next steps continue; their settings are compared with it then.

        Args:
            saved: the run; None if no run waits any more.
        """
        self._secrets.waiting = saved

    def update(self, bounded: BoundedSum, session: Session, variables, regularization):
        """Adds the noise, once for the lot, and applies the update rule.

        Args:
            bounded: the lot's bounded sum.
            session: the session that the step is accounted under; its divisor is the public number of
                microbatches in a nominal lot, never the number that was drawn.
            variables: the trainable variables, in the order of `bounded.sums`.
            regularization: for each variable, the gradient of its weight regularizers, or None.

        Returns:
            The scale of the noise that was added to every entry of the sum, as from `add_noise`.
        """
        sums, scale = self.add_noise(bounded, session)
        gradients = [
            self.mean_factor * mean_of(total, session.divisor, penalty)
            for total, penalty in zip(sums, regularization, strict=True)
        ]
        gradients = [tf.cast(g, v.dtype) for g, v in zip(gradients, variables, strict=True)]
        super().apply(gradients, variables)  # not `self.apply`, which refuses all gradients
        return scale

    def add_noise(self, bounded: BoundedSum, session: Session) -> tuple[list, tf.Tensor | float]:
        """Draws the noise, once for the lot, and adds it to the bounded sums.

        With adaptive clipping, it also updates the clip norm for the next step.

        Args:
            bounded: the lot's bounded sum.
            session: the session that the step is accounted under.

        Returns:
            (sums, scale): the noisy sums, and the standard deviation of the noise on every entry (for
            a family without one, its scale), a float or a float32 scalar.
        """
        source, shapes = self._secrets.noise, [total.shape for total in bounded.sums]
        noise_multiplier = session.value("noise_multiplier")
        if self._adaptive is None:
            scale = self._stddev(noise_multiplier, bounded, session)
            noise = source.gaussians(session.place, scale, shapes)
        else:
            adaptive = dataclasses.replace(self._adaptive, noise_multiplier=noise_multiplier)
            scale = self._stddev(adaptive.sum_noise, bounded, session)
            # One more scalar, drawn beside the others, is the noise on the count.
            *noise, extra = source.gaussians(session.place, 1.0, [*shapes, ()])
            count = adaptive.count(bounded) + adaptive.count_noise * extra
            self._clip_norm.assign(
                adaptive.next_clip_norm(
                    bounded.l2_norm_clip, count, session.divisor, session.run.l2_norm_clip
                )
            )
            noise = [scale * draw for draw in noise]
        return [total + draw for total, draw in zip(bounded.sums, noise, strict=True)], scale

    def _stddev(self, noise_multiplier, bounded: BoundedSum, session: Session):
        """The standard deviation of the noise on the sum: a float or a float32 scalar."""
        del session
        if tf.is_tensor(noise_multiplier):
            noise_multiplier = tf.cast(noise_multiplier, tf.float32)
        return noise_multiplier * bounded.l2_norm_clip

    def _all_reduce_sum_gradients(self, grads_and_vars):
        """Returns the gradients as they are: the step has added the sums of all replicas.

        Keras' sum over replicas registers a gradient function with TensorFlow for every graph that is
        traced. The registration is never removed, and it keeps the whole graph in memory.
        """
        return list(grads_and_vars)

    def apply(self, grads, trainable_variables=None):
        """Refuses: gradients that were not bounded and summed by an engine are not private."""
        raise RuntimeError(
            f"{type(self).__name__} received gradients that did not come from tfdp's private training "
            "step, so nothing bounds what one example contributes. Make the model private: "
            "model = tfdp.make_private(model), then compile and fit it; or use a plain Keras optimizer "
            "for training without privacy."
        )

    def get_config(self):
        """The configuration without the seed: a reader of the file could redraw the noise with it."""
        return super().get_config() | {
            "l2_norm_clip": self.l2_norm_clip,
            "noise_multiplier": self.noise_multiplier,
            "num_microbatches": self.num_microbatches,
            "clipping": self.clipping,
            **self._quantile_settings,
        }

    def __reduce__(self):
        """Copies and pickles hold what a file holds: neither seed, noise nor means."""
        _, arguments = super().__reduce__()
        return unpickled_as, (origin_of(type(self)), arguments)


def _noise(value) -> float | tuple[float, ...]:
    table = schedule("noise_multiplier", value)
    if table == ():
        raise ValueError(
            "Expected noise_multiplier to hold a number for each step. Received an empty sequence. "
            "Pass one number for all steps, or one for each."
        )
    return table
