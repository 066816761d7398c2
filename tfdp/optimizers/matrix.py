"""Correlated noise (matrix factorization): the noise of a step cancels part of the earlier noise.

Formal guarantee: an update depends on the gradients of step t only through (G_t + C y_t) / L, with
G_t the sum of clipped gradients, C the clip norm, and z-scaled noise y = S^-1 xi with S the strategy
(`noise.correlated`), so that all updates together are a matrix mechanism
(`accounting.linear_steps`). The strategy is a public matrix that was fixed before training.
Everything else an optimizer does (learning rate, momentum, Adam's moments) is post-processing, and may
change at any time.

Past noise is as secret as the gradients: anyone who knows it can subtract it. No save path of Keras or
TensorFlow includes it, so a saved and reloaded model starts a new run with fresh noise, and the ledger
composes both runs. Only `BackupAndRestore` resumes a run in another process.
"""

import dataclasses
from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np

from tfdp.accounting import Strategy
from tfdp.accounting import strategy as make_strategy
from tfdp.accounting.mechanisms import Matrix
from tfdp.noise.correlated import CorrelatedNoise
from tfdp.noise.gaussian import NoiseSource
from tfdp.optimizers.arguments import Arguments, Rate
from tfdp.optimizers.dp_keras_optimizer import DPKerasOptimizer
from tfdp.optimizers.factory import make_class


class MatrixDPOptimizer(DPKerasOptimizer):
    """Base class of the optimizers with correlated noise; see `make_matrix_optimizer_class`.

    The noise of a step cancels part of the earlier noise, so that the sum of all updates has less noise
    than with DP-SGD (Denisov et al. 2022, "Improved Differential Privacy for SGD via Optimal Private
    Linear Operators on Adaptive Streams"; Choquette-Choo et al. 2023, "(Amplified) Banded Matrix
    Factorization"). Clipping and update rule are as in DP-SGD. Draw lots by
    `tfdp.data.make_lots("cyclic_poisson", ..., groups=bands)`; `tfdp.accounting.best_bands` chooses the
    number of bands for a budget.

    Args:
        strategy: "identity" (DP-SGD), "prefix_sum" (the noise of SI-DPSGD), "sqrt_toeplitz",
            "banded_toeplitz" (optimized numerically), or a `tfdp.accounting.Strategy`.
        bands: Number of nonzero coefficients of the strategy. The state has bands - 1 float32 numbers
            for each weight. Required for "banded_toeplitz": with cyclic Poisson lots, at most the
            number of groups, as the amplification needs; with a fixed order, at most the steps of an
            epoch. With "sqrt_toeplitz", None takes `steps` bands.
        objective: The noise on the weights that "banded_toeplitz" minimizes: "mean" (root mean
            square over the steps) or "max"; None takes "mean".
        steps: Planned number of steps, for which "banded_toeplitz" is optimized. Further steps use
            the same strategy and are accounted correctly, but the strategy is no longer optimal.
        *args, **kwargs: Arguments of the Keras optimizer and of `DPKerasOptimizer`.

    Raises:
        ValueError: If an argument is invalid, or missing although the strategy needs it.
    """

    mechanism = Matrix
    title = "Correlated noise (matrix mechanism)"

    accounted = (*DPKerasOptimizer.accounted, "strategy")

    def __init__(
        self,
        *args,
        strategy: str | Strategy | dict = "banded_toeplitz",
        bands: int | None = None,
        objective: str | None = None,
        steps: int | None = None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.strategy = _as_strategy(strategy, bands, objective, steps)
        self._correlated: CorrelatedNoise | None = None

    def mechanism_fields(self, variables) -> dict:
        return super().mechanism_fields(variables) | {"strategy": self.strategy}

    def begin(self, session) -> None:
        super().begin(session)
        shapes = [v.shape for v in session.variables]
        self._correlated = CorrelatedNoise(session.run.mechanism.strategy, shapes)

    def add_noise(self, bounded, session):
        # Noise is correlated in units of the clip norm, like the sensitivity of the accounting.
        shapes = [total.shape for total in bounded.sums]
        step = session.place
        fresh = self._noise.gaussians(step, session.value("noise_multiplier"), shapes)
        growth = self._correlated.growth(step)
        noise = [bounded.l2_norm_clip * y for y in self._correlated.correlate(fresh, step)]
        scale = growth * session.run.mechanism.noise_multiplier * bounded.l2_norm_clip
        return [total + draw for total, draw in zip(bounded.sums, noise, strict=True)], scale

    def get_config(self):
        # Saves the coefficients rather than the settings that produced them, so that a loaded
        # optimizer has exactly the same strategy.
        return super().get_config() | {"strategy": dataclasses.asdict(self.strategy)}

    @property
    def hidden_variables(self):
        return [] if self._correlated is None else self._correlated.past

    def secret_state(self):
        if self._correlated is None:
            return {}
        return {"key": self._noise.key, **self._correlated.state()}

    def resume(self, session, state, lost):
        super().resume(session, state, lost)
        self._correlated.take_up(state)
        # Later noise is correlated with the noise of the lost steps, which is recomputed from key and
        # step.
        source, shapes = NoiseSource.with_key(state["key"]), [v.shape for v in session.variables]
        table = np.ravel(session.run.mechanism.noise_multiplier)
        for step in range(session.entry.taken - lost, session.entry.taken):
            fresh = source.gaussians(step, float(table[step % len(table)]), shapes)
            self._correlated.correlate(fresh, step)


def _as_strategy(strategy, bands, objective, steps) -> Strategy:
    if isinstance(strategy, dict):
        strategy = Strategy(**strategy)
    optimized = isinstance(strategy, str) and strategy == "banded_toeplitz"
    if optimized and (bands is None or steps is None):
        raise ValueError(
            "The strategy 'banded_toeplitz' is optimized for a plan. Pass the number of steps of the "
            "whole training and the number of bands, such as steps=300, bands=8, or another strategy."
        )
    if not isinstance(strategy, Strategy):
        strategy = make_strategy(strategy, steps, bands, objective or "mean")
    elif (bands, objective, steps) != (None, None, None):
        raise ValueError(
            "`bands`, `objective` and `steps` can only be used with a strategy given by name. "
            "Remove them."
        )
    if strategy.coefficients is not None:
        # Training uses float32 coefficients, so the accounting has to use the same rounded values.
        exact = tuple(float(np.float32(c)) for c in strategy.coefficients)
        strategy = dataclasses.replace(strategy, coefficients=exact)
    if strategy.bands is None and strategy.name == "sqrt_toeplitz":
        if steps is None:
            raise ValueError(
                "The strategy 'sqrt_toeplitz' needs `bands` or `steps`, which bound its memory. "
                "Pass one of them."
            )
        strategy = dataclasses.replace(strategy, bands=steps)
    return strategy


def make_matrix_optimizer_class(base: type) -> type[DPKerasOptimizer]:
    """Creates an optimizer class with correlated noise and the update rule of a Keras optimizer.

    The class is called `MatrixDP<Base>Optimizer` and is registered for serialization under this name,
    as with `make_dp_optimizer_class`. `MatrixDPSGDOptimizer` lists its arguments.

    Args:
        base: A subclass of `keras.optimizers.Optimizer`.

    Returns:
        The class.

    Raises:
        TypeError: If `base` is not such a class, or is already private.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> MatrixAdam = tfdp.optimizers.make_matrix_optimizer_class(keras.optimizers.Adam)
        >>> optimizer = MatrixAdam(
        ...     l2_norm_clip=1.0, noise_multiplier=4.5, learning_rate=0.01, bands=4, steps=20)
        >>> optimizer.strategy.name, optimizer.strategy.bands
        ('banded_toeplitz', 4)
        >>> model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
        >>> model.compile(optimizer, "mse")
        >>> x = np.zeros((200, 2), "float32")
        >>> lots = tfdp.data.make_lots("cyclic_poisson", x, x[:, :1], lot_size=10, groups=4)
        >>> _ = model.fit(lots, epochs=1, verbose=0)
        >>> model.privacy.steps_taken
        20
    """
    return make_class(MatrixDPOptimizer, base, "MatrixDP{}Optimizer", ", bands=4, steps=100")


if TYPE_CHECKING:

    class MatrixDPSGDOptimizer(MatrixDPOptimizer, keras.optimizers.SGD):
        def __init__(
            self,
            learning_rate: Rate = 0.01,
            momentum: float = 0.0,
            nesterov: bool = False,
            *,
            strategy: str | Strategy | dict = "banded_toeplitz",
            bands: int | None = None,
            objective: str | None = None,
            steps: int | None = None,
            **kwargs: Unpack[Arguments],
        ): ...

else:
    MatrixDPSGDOptimizer = make_matrix_optimizer_class(keras.optimizers.SGD)
