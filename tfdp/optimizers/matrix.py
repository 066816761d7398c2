"""Correlated noise (matrix factorization): the noise of a step cancels part of the earlier noise.

Formal guarantee: an update sees the gradients of step t only through (G_t + C y_t) / L with G_t the
sum of clipped gradients, C the clip norm, and z-scaled noise y = S^-1 xi with S the strategy
(`noise.correlated`), so that all updates together are a matrix mechanism
(`accounting.mechanisms.matrix`). The strategy is a public matrix that was fixed before training.
Everything else an optimizer does (learning rate, momentum, Adam's moments) is post-processing, and may
change at any time.

The past noise is as secret as the gradients: anyone who knows it can subtract it. No save path of Keras
or TensorFlow includes it, so a model that was saved and loaded starts a new run with fresh noise, and
the ledger composes both runs. Only `save_noise_state` continues a run in another process.
"""

import dataclasses
import json
import os

import keras
import numpy as np

from tfdp._validate import one_of
from tfdp.accounting import Run, Strategy
from tfdp.accounting import strategy as make_strategy
from tfdp.accounting.mechanisms.matrix import Matrix
from tfdp.accounting.strategies import OBJECTIVES, STRATEGIES
from tfdp.noise.correlated import CorrelatedNoise
from tfdp.noise.gaussian import NoiseSource
from tfdp.noise.secret_file import read_once, write_secret
from tfdp.optimizers.accounted import Accounted, SavedRun, check_same_run
from tfdp.optimizers.dp_keras_optimizer import DPKerasOptimizer
from tfdp.optimizers.factory import check_base, described
from tfdp.optimizers.made import made

_VERSION = 1
# The noise states (run id, steps) that this process has taken up.
_USED: set[tuple[str, int]] = set()
# Fields of a run that are this optimizer's own attributes.
_OWN_FIELDS = ("strategy", "noise_multiplier", "l2_norm_clip")


@dataclasses.dataclass(frozen=True)
class _Loaded:
    """A noise state that was read from its file and that no session has taken up yet.

    Attributes:
        saved: the run and its place in the ledger.
        fingerprint: fingerprint of the examples; None if examples have no fixed place.
        noise: the result of `CorrelatedNoise.state`.
    """

    saved: SavedRun
    fingerprint: str | None
    noise: dict[str, np.ndarray]


class MatrixDPOptimizer(DPKerasOptimizer):
    """Base of the optimizers with correlated noise; `make_matrix_optimizer_class` makes them.

    Args:
        *args, **kwargs: those of the Keras optimizer and of `DPKerasOptimizer`.
        strategy: "identity" (DP-SGD), "prefix_sum" (SI-DPSGD's noise), "sqrt_toeplitz",
            "banded_toeplitz" (optimized numerically), or a `tfdp.accounting.Strategy`.
        bands: number of nonzero coefficients of the strategy; the state has bands - 1 float32 numbers
            for each weight. "banded_toeplitz" needs it: with cyclic Poisson lots, at most their number
            of groups, which the amplification needs; with a fixed order, at most the steps of an
            epoch. With "sqrt_toeplitz", None takes `steps` bands.
        objective: "mean" or "max": the error that "banded_toeplitz" minimizes; None takes "mean".
        steps: planned number of steps, for which "banded_toeplitz" is optimized. Further steps use
            the same strategy and are accounted correctly, but the strategy is no longer optimal.

    Raises:
        ValueError: an argument is invalid, or one that the strategy needs is missing.
    """

    mechanism = Matrix
    title = "Correlated noise (matrix mechanism)"

    strategy = Accounted()

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
        self._loaded: _Loaded | None = None

    def run_fields(self, variables) -> dict:
        return super().run_fields(variables) | {"strategy": self.strategy}

    def begin(self, session) -> None:
        super().begin(session)
        shapes = [v.shape for v in session.variables]
        self._correlated = CorrelatedNoise(session.run.strategy, shapes)

    def continues(self, session) -> bool:
        """False if the noise state was moved to a file, or a step was counted and never finished.

        It is also False while a loaded noise state waits to be taken up.
        """
        noise = self._correlated
        return self._loaded is None and noise is not None and noise.steps == session.spent

    def add_noise(self, bounded, session):
        # Noise is correlated in units of the clip norm, like the sensitivity of the accounting.
        shapes = [total.shape for total in bounded.sums]
        fresh = self._secrets.noise.gaussians(session.value("noise_multiplier"), shapes)
        growth = self._correlated.growth()  # before `correlate` moves on to the next step
        noise = [bounded.l2_norm_clip * y for y in self._correlated.correlate(fresh)]
        scale = growth * session.run.noise_multiplier * bounded.l2_norm_clip
        return [total + draw for total, draw in zip(bounded.sums, noise, strict=True)], scale

    def get_config(self):
        # The coefficients are saved, not the settings that produced them, so that a loaded optimizer
        # has exactly the same strategy.
        return super().get_config() | {"strategy": dataclasses.asdict(self.strategy)}

    def secret_state(self):
        if self._correlated is None:
            return {}
        key, draws = self._secrets.noise.state()
        return {"key": key, "draws": np.int64(draws), **self._correlated.state()}

    def take_up_secrets(self, state, saved, lost, variables):
        shapes = [v.shape for v in variables]
        noise = CorrelatedNoise(self.strategy, shapes)
        own = dict(state)
        source = NoiseSource.at(own.pop("key"), int(own.pop("draws")))
        noise.take_up(own)
        # The noise of the lost steps, which is a function of the key and the step: the noise of later
        # steps is correlated with it.
        table = np.ravel(saved.run.noise_multiplier)
        for step in range(saved.steps - lost, saved.steps):
            noise.correlate(source.gaussians(float(table[step % len(table)]), shapes))
        # No draw is used again, where this process has the old key itself, or a user's seed.
        self._secrets.noise.advance_to(int(source.draws.numpy()))
        self._correlated = noise

    # -- across processes ------------------------------------------------------------------------

    def save_noise_state(self, path: str | os.PathLike) -> None:
        """Moves the noise state of the open run into a SECRET file, for one process to continue it.

        The file holds past noise (and a digest of the data). Together with the releases (the weights
        along the way) it reveals gradients without noise: do not release it, and delete it when it is
        no longer needed. Only its owner can read it.

        The state is moved, not copied: this optimizer forgets it, its ledger entry is closed, and
        further training here starts a new run. The reason: two runs that continue from one state share
        their past noise and one entry of the ledger, and together they cost more than that entry
        states; with amplification nothing is proven about them. For the same reason, do not copy the
        file.

        Save the model as well (`model.save`), before or after: the other process needs its weights
        and its ledger.

        Args:
            path: name of a file that does not exist.

        Raises:
            RuntimeError: there is no open run that could be continued.
            FileExistsError: the file exists.
        """
        account, noise = self._account, self._correlated
        entry = account.session
        if entry is None or noise is None or self._loaded is not None:
            raise RuntimeError("There is no noise state to save. Expected a run that has begun.")
        run = self.ledger.entries[entry.run_id]
        if noise.steps != run.steps or run.steps == 0:
            raise RuntimeError(
                f"The run has counted {run.steps} steps, and its noise {noise.steps}: it broke off in "
                "the middle of a step, or has not begun, and cannot go on."
            )
        whole = not run.sampling.whole_epochs or run.steps % run.steps_per_epoch == 0
        if not whole:
            raise RuntimeError(
                "The run is in the middle of an epoch, and lots begin with an epoch. Expected a "
                f"multiple of {run.steps_per_epoch} steps. Found {run.steps}."
            )
        about = {
            "version": _VERSION,
            "run_id": entry.run_id,
            "run": run.to_dict(),
            "first_iteration": entry.first_iteration,
            "turn": entry.next_turn,
            "fingerprint": entry.plan.lots.fingerprint() if run.has_places else None,
        }
        about = np.frombuffer(json.dumps(about).encode(), np.uint8)
        write_secret(path, {"about": about, **noise.state()})
        self._correlated = None
        account.close_session()

    def load_noise_state(self, path: str | os.PathLike) -> None:
        """Takes over a run from a file of `save_noise_state`, and DELETES the file.

        First load the model that was saved with the state. The next `fit` has to continue the run with
        the same lots (the same data in the same order), lot size and noise.

        Args:
            path: the file.

        Raises:
            FileNotFoundError: the file does not exist, or was used already.
            ValueError: the file holds no noise state, or one that belongs to another run than this
                optimizer's; the file stays then. Or this process has taken up the same state before.
        """
        with read_once(path) as arrays:
            loaded = _parse(arrays)
            self._check(loaded)
            mine = {name: getattr(self, name) for name in _OWN_FIELDS}
            if mine != _named(loaded.saved.run, _OWN_FIELDS):
                raise ValueError(
                    f"{_OTHER_RUN} Expected {_named(loaded.saved.run, _OWN_FIELDS)}. Found {mine}."
                )
        used = (loaded.saved.run_id, loaded.saved.steps)
        if used in _USED:
            raise ValueError(
                f"{_OTHER_RUN} Expected a state that was not taken up in this process: two runs from "
                "one state share their noise."
            )
        _USED.add(used)
        # The state is used only after its file is gone, so that no second run can continue from it.
        self._account.close_session()
        self._loaded = loaded

    @property
    def next_turn(self) -> int:
        return super().next_turn if self._loaded is None else self._loaded.saved.turn

    def resume(self, plan, fields, variables):
        loaded = self._loaded
        if loaded is None:
            return super().resume(plan, fields, variables)
        self._check(loaded)
        run = loaded.saved.run
        check_same_run(run, fields, _OTHER_RUN)
        if run.has_places and (
            plan.turn != loaded.saved.turn % run.groups
            or plan.lots.fingerprint() != loaded.fingerprint
        ):
            raise ValueError(
                f"{_OTHER_RUN} Expected the lots of its run: the same examples in the same order. "
                "Found others."
            )
        noise = CorrelatedNoise(self.strategy, [v.shape for v in variables])
        noise.take_up(loaded.noise)
        # A seeded run must not repeat the draws of its earlier steps.
        self._secrets.noise.advance_to(int(self.iterations.numpy()))
        self._correlated, self._loaded = noise, None
        return loaded.saved

    def _check(self, loaded: _Loaded) -> None:
        """Raises ValueError if the ledger or the iteration does not match the state's step."""
        saved = loaded.saved
        entry = self.ledger.entries.get(saved.run_id)
        if entry is None or entry.steps != saved.steps:
            found = "no such run" if entry is None else f"{entry.steps} steps"
            raise ValueError(
                f"{_OTHER_RUN} Expected a ledger in which run {saved.run_id} has {saved.steps} steps. "
                f"Found {found}. Load the model that was saved with the state."
            )
        iteration = int(self.iterations.numpy())
        if iteration != saved.first_iteration + saved.steps:
            raise ValueError(
                f"{_OTHER_RUN} Expected an optimizer at iteration "
                f"{saved.first_iteration + saved.steps}. Found {iteration}. Load the model that was "
                "saved with the state."
            )


_OTHER_RUN = "The noise state belongs to another run, or was used already."


def _named(run: Run, names) -> dict:
    return {name: getattr(run, name) for name in names}


def _parse(arrays: dict[str, np.ndarray]) -> _Loaded:
    noise = dict(arrays)
    try:
        about = json.loads(bytes(noise.pop("about")))
        if about["version"] != _VERSION:
            raise ValueError(f"unknown version {about['version']!r}")
        run = Run.from_dict(about["run"])
        saved = SavedRun(about["run_id"], run.steps, about["first_iteration"], run, about["turn"])
        return _Loaded(saved, about["fingerprint"], noise)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"Expected a file of save_noise_state. Found {error!r}.") from error


def _as_strategy(strategy, bands, objective, steps) -> Strategy:
    if isinstance(strategy, dict) and strategy.keys() >= {"name"}:
        strategy = Strategy.from_dict(strategy)
    if not isinstance(strategy, Strategy):
        one_of("strategy", strategy, STRATEGIES)
        one_of("objective", objective, OBJECTIVES, optional=True)
    if isinstance(strategy, Strategy):
        if (bands, objective, steps) != (None, None, None):
            raise ValueError(
                "Expected bands, objective and steps for a strategy given by name only. Received "
                f"bands={bands}, objective={objective!r}, steps={steps} with a Strategy."
            )
    else:
        if strategy == "banded_toeplitz" and (bands is None or steps is None):
            raise ValueError(
                "Expected bands and steps with strategy 'banded_toeplitz'. Received "
                f"bands={bands}, steps={steps}. For cyclic Poisson lots take as many bands as groups, "
                "for a fixed order as many as an epoch has steps, or fewer."
            )
        if objective is not None and strategy != "banded_toeplitz":
            raise ValueError(
                "Expected objective with strategy 'banded_toeplitz' only. Received "
                f"{objective!r} with {strategy!r}."
            )
        strategy = make_strategy(strategy, steps, bands, objective or "mean")
    if strategy.coefficients is not None:
        # Training uses float32 coefficients, so the accounting has to use the same rounded values.
        exact = tuple(float(np.float32(c)) for c in strategy.coefficients)
        strategy = dataclasses.replace(strategy, coefficients=exact)
    if strategy.bands is None and strategy.name == "sqrt_toeplitz":
        if steps is None:
            raise ValueError(
                "Expected bands or steps with strategy 'sqrt_toeplitz': they bound the memory. "
                "Received neither."
            )
        strategy = dataclasses.replace(strategy, bands=steps)
    return strategy


def make_matrix_optimizer_class(base: type) -> type:
    """Returns a subclass of a Keras optimizer class that trains with correlated noise.

    The class is called `MatrixDP<Base>Optimizer` and is registered for serialization under this name,
    as with `make_dp_optimizer_class`.

    Args:
        base: a subclass of `keras.optimizers.Optimizer`.

    Raises:
        TypeError: `base` is not such a class, or is private already.

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
    check_base(base)
    name = f"MatrixDP{base.__name__}Optimizer"
    what = "with correlated noise. See `MatrixDPOptimizer`."
    doc = described(name, base, what, options=", bands=4, steps=100")
    return made(make_matrix_optimizer_class, (MatrixDPOptimizer, base), name, doc)


MatrixDPSGDOptimizer = make_matrix_optimizer_class(keras.optimizers.SGD)
