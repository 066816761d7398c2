"""Correlated noise (matrix factorization): the noise of one step takes back noise of earlier ones.

Formal guarantee: an update sees the gradients of step t only through (G_t + C y_t) / L with G_t the
sum of clipped gradients, C the clip norm, and z-scaled noise y = C^-1 xi of the strategy
(`mechanisms.correlated`), so that all updates together are a matrix mechanism (`accounting.matrix`).
The strategy is a public matrix that was fixed before training. All else an optimizer does (learning
rate, momentum, Adam's moments) is post-processing, and may change at any time.

The past noise is a secret, as gradients are: whoever knows it subtracts it. No save path of Keras or
TensorFlow sees it, so a model that was saved and loaded starts a new segment: the noise starts afresh,
and the ledger composes both. `save_noise_state` is the one way to take a run across processes.
"""

import dataclasses
import functools
import json
import os

import keras
import numpy as np

from tfdp.accounting import Run, Strategy
from tfdp.accounting import strategy as make_strategy
from tfdp.accounting.mechanisms.matrix import Matrix
from tfdp.noise.correlated import CorrelatedNoise
from tfdp.noise.secret_file import read_once, write_secret
from tfdp.optimizers.dp_keras_optimizer import Accounted, DPKerasOptimizer, SavedRun
from tfdp.optimizers.factory import check_base

_VERSION = 1
# States (run, steps) that were taken up in this process.
_USED: set[tuple[str, int]] = set()
# Fields of a run that are this optimizer's own attributes.
_OWN_FIELDS = ("strategy", "noise_multiplier", "l2_norm_clip")


@dataclasses.dataclass(frozen=True)
class _Loaded:
    """A noise state that was read and not taken up yet.

    Attributes:
        saved: the run in the ledger.
        run: its description.
        turn: whose turn comes next.
        fingerprint: of its examples; None where examples have no place.
        noise: as of `CorrelatedNoise.state`.
    """

    saved: SavedRun
    run: Run
    turn: int
    fingerprint: str | None
    noise: dict[str, np.ndarray]


class MatrixDPOptimizer(DPKerasOptimizer):
    """Base of the optimizers with correlated noise; `make_matrix_optimizer_class` makes them.

    Args:
        *args, **kwargs: those of the Keras optimizer and of `DPKerasOptimizer`.
        strategy: "identity" (DP-SGD), "prefix_sum" (SI-DPSGD's noise), "sqrt_toeplitz",
            "banded_toeplitz" (optimized numerically), or a `tfdp.accounting.Strategy`.
        bands: how many steps a draw of noise acts in; the state has bands - 1 float32 numbers for each
            weight. Needed by "banded_toeplitz": with cyclic Poisson lots their number of groups or
            less, which the amplification needs; with a fixed order at most the steps of an epoch.
            None takes all of "sqrt_toeplitz", hence `steps` bands.
        objective: "mean" or "max": the error that "banded_toeplitz" minimizes.
        steps: planned number of steps, which "banded_toeplitz" is optimized for. Further steps are
            accounted rightly, with the same strategy; it is only no longer the best.

    Raises:
        ValueError: a bad argument, or one that the strategy needs and that is missing.
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
        """False where the state was given away, or a step was counted and never finished."""
        noise = self._correlated
        return self._loaded is None and noise is not None and noise.steps == session.spent

    def add_noise(self, bounded, session):
        # Correlated in units of the clip norm, in which the accounting's sensitivity is.
        shapes = [total.shape for total in bounded.sums]
        fresh = self._secrets.noise.gaussians(session.value("noise_multiplier"), shapes)
        growth = self._correlated.growth()  # of the step that is about to be made
        noise = [bounded.l2_norm_clip * y for y in self._correlated.correlate(fresh)]
        scale = growth * session.run.noise_multiplier * bounded.l2_norm_clip
        return [total + draw for total, draw in zip(bounded.sums, noise, strict=True)], scale

    def get_config(self):
        # Coefficients, not how they were found: a loaded optimizer has the same strategy.
        return super().get_config() | {"strategy": dataclasses.asdict(self.strategy)}

    # -- across processes ------------------------------------------------------------------------

    def save_noise_state(self, path: str | os.PathLike) -> None:
        """Moves the run that is open into a SECRET file, for one other process to go on with.

        The file holds past noise (and a digest of the data). Whoever has it and the releases (the
        weights along the way) knows gradients without noise: it is not for release, and to be deleted
        when it is not needed. It is readable for its owner only.

        The state is moved, not copied: this optimizer forgets it, its ledger entry is closed, and
        training here starts a new segment. For two runs that go on from one state share their past
        noise and one entry of the ledger, and they cost more together than that entry says; with
        amplification nothing is proven about them. Do not copy the file, for the same reason.

        Save the model as well (`model.save`), before or after: the other process needs its weights,
        and its ledger.

        Args:
            path: a file that does not exist.

        Raises:
            RuntimeError: no run is open that could go on.
            FileExistsError: there is such a file.
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
        placed = _has_places(run)
        about = {
            "version": _VERSION,
            "run_id": entry.run_id,
            "run": run.to_dict(),
            "first_iteration": entry.first_iteration,
            "turn": entry.next_turn,
            "fingerprint": entry.plan.lots.fingerprint() if placed else None,
        }
        about = np.frombuffer(json.dumps(about).encode(), np.uint8)
        write_secret(path, {"about": about, **noise.state()})
        self._correlated = None
        account.close_session()

    def load_noise_state(self, path: str | os.PathLike) -> None:
        """Takes over a run from the file of `save_noise_state`, and DELETES the file.

        Load the model that was saved with it first. The next `fit` has to go on as the run did: the
        same lots (the same data in the same order), lot size and noise.

        Args:
            path: the file.

        Raises:
            FileNotFoundError: there is none, or it was used already.
            ValueError: it is not of the run that this optimizer is in. The file stays then.
        """
        with read_once(path) as arrays:
            loaded = _parse(arrays)
            self._check(loaded)
            mine = {name: getattr(self, name) for name in _OWN_FIELDS}
            if mine != _named(loaded.run, _OWN_FIELDS):
                raise ValueError(
                    f"{_OTHER_RUN} Expected {_named(loaded.run, _OWN_FIELDS)}. Found {mine}."
                )
        used = (loaded.saved.run_id, loaded.saved.steps)
        if used in _USED:
            raise ValueError(
                f"{_OTHER_RUN} Expected a state that was not taken up in this process: two runs from "
                "one state share their noise."
            )
        _USED.add(used)
        # Only now that the file is gone: one state, one future.
        self._account.close_session()
        self._loaded = loaded

    @property
    def next_turn(self) -> int:
        return super().next_turn if self._loaded is None else self._loaded.turn

    def resume(self, plan, fields, variables):
        loaded = self._loaded
        if loaded is None:
            return None
        self._check(loaded)
        run = loaded.run
        now = Run(steps=run.steps, **fields)
        expected, found = _flat(run), _flat(now)
        other = sorted(k for k in {*expected, *found} if expected.get(k) != found.get(k))
        if other:
            raise ValueError(
                f"{_OTHER_RUN} Expected { {k: expected.get(k) for k in other} }. Found "
                f"{ {k: found.get(k) for k in other} }."
            )
        if _has_places(run) and (
            plan.turn != loaded.turn % run.groups or plan.lots.fingerprint() != loaded.fingerprint
        ):
            raise ValueError(
                f"{_OTHER_RUN} Expected the lots of its run: the same examples in the same order. "
                "Found others."
            )
        noise = CorrelatedNoise(self.strategy, [v.shape for v in variables])
        noise.take_up(loaded.noise)
        # A seeded run must not draw again what it drew before.
        self._secrets.noise.advance_to(int(self.iterations.numpy()))
        self._correlated, self._loaded = noise, None
        return loaded.saved

    def _check(self, loaded: _Loaded) -> None:
        """Raises ValueError where weights or ledger are of another moment than the state."""
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


def _has_places(run: Run) -> bool:
    """Whether every example has its place, so that the run goes on with the same data only."""
    return run.sampling.whole_epochs or run.groups > 1


def _flat(run: Run) -> dict:
    """All fields of a run's parts, by name."""
    parts = [run.mechanism, run.sampling, run.contribution]
    own = {"sampling": run.sampling_name, "start": run.start, "insecure_seed": run.insecure_seed}
    return own | {f.name: getattr(part, f.name) for part in parts for f in dataclasses.fields(part)}


def _named(run: Run, names) -> dict:
    return {name: getattr(run, name) for name in names}


def _parse(arrays: dict[str, np.ndarray]) -> _Loaded:
    noise = dict(arrays)
    try:
        about = json.loads(bytes(noise.pop("about")))
        if about["version"] != _VERSION:
            raise ValueError(f"unknown version {about['version']!r}")
        run = Run.from_dict(about["run"])
        saved = SavedRun(about["run_id"], run.steps, about["first_iteration"])
        return _Loaded(saved, run, about["turn"], about["fingerprint"], noise)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"Expected a file of save_noise_state. Found {error!r}.") from error


def _as_strategy(strategy, bands, objective, steps) -> Strategy:
    if isinstance(strategy, dict):
        strategy = Strategy.from_dict(strategy)
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
        # As training uses them.
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


@functools.cache
def make_matrix_optimizer_class(base: type) -> type:
    """Returns a subclass of a Keras optimizer class that trains with correlated noise.

    It is called `MatrixDP<Base>Optimizer` and registered for serialization under this name, as with
    `make_dp_optimizer_class`.

    Args:
        base: a subclass of `keras.optimizers.Optimizer`.

    Raises:
        TypeError: `base` is not such a class, or is private already.

    Example:
        lots = tfdp.data.make_lots("cyclic_poisson", x, y, lot_size=256, groups=16)
        optimizer = tfdp.MatrixDPSGDOptimizer(
            l2_norm_clip=1.0, noise_multiplier=4.5, learning_rate=0.5, momentum=0.9,
            bands=16, steps=10 * lots.steps_per_epoch)
    """
    check_base(base)
    name = f"MatrixDP{base.__name__}Optimizer"
    doc = f"`keras.optimizers.{base.__name__}` with correlated noise. See `MatrixDPOptimizer`."
    made = type(name, (MatrixDPOptimizer, base), {"__doc__": doc, "__module__": __name__})
    return keras.saving.register_keras_serializable(package="tfdp", name=name)(made)


MatrixDPSGDOptimizer = make_matrix_optimizer_class(keras.optimizers.SGD)
