"""`model.privacy`: everything about the privacy of a private model under one name."""

import os
from collections.abc import Iterator

from tfdp._other_libraries import refuse_other
from tfdp._validate import whole
from tfdp.accounting import Guarantee, Ledger, PrivacyBudget, Run, Statement
from tfdp.accounting.composition import guarantee_of_all
from tfdp.training.export import export
from tfdp.training.loop import training_steps


class ModelPrivacy:
    """What was spent on the weights of a private model, and what may still be spent.

    `model.privacy` is such an object for every model that `make_private` was called on.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
        >>> model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.1), "mse")
        >>> x = np.zeros((100, 2), "float32")
        >>> _ = model.fit(x, x[:, :1], batch_size=10, epochs=1, verbose=0)
        >>> model.privacy.steps_taken
        10
        >>> model.privacy.spent(delta=1e-5).epsilon < 4
        True
        >>> model.privacy.ledger
        Ledger(1 runs, 10 steps)
    """

    def __init__(self, model):
        self._model = model

    def __repr__(self) -> str:
        return f"<privacy of model '{self._model.name}': {self.ledger!r}>"

    def __getattr__(self, name):
        refuse_other("model.privacy", [name], AttributeError)
        return object.__getattribute__(self, name)

    # -- what was spent --------------------------------------------------------------------------

    def spent(
        self, delta: float | None = None, kind: str = "proven", adjacency: str = "zero_out"
    ) -> Guarantee:
        """Returns the guarantee for everything that was trained so far.

        Args:
            delta: in (0, 1); None takes the delta of the budget.
            kind: "proven" or "claimed".
            adjacency: "zero_out", "replace_one" or "add_or_remove_one".

        Raises:
            ValueError: the optimizer has taken steps that the ledger does not contain, or there is
                neither a delta nor a budget.
        """
        return guarantee_of_all(
            kind, self._model._checked_runs(), self.delta_or_that_of_the_budget(delta), adjacency
        )

    def statement(self, delta: float | None = None, adjacency: str = "zero_out") -> str:
        """Returns both guarantees, what they rest on and what they do not cover, in words.

        Args:
            delta, adjacency: as in `spent`.

        Raises:
            ValueError: as in `spent`.
        """
        return Statement.of(
            self._model._checked_runs(), self.delta_or_that_of_the_budget(delta), adjacency
        ).text()

    def diagnostics(self, reset: bool = False) -> dict[str, float]:
        """Returns means since the last reset: fraction clipped, median gradient norm, noise to signal.

        These figures are computed from private gradients without noise: they are for the person who
        trains, not for release.

        Args:
            reset: whether new means begin after this call.
        """
        return self._model._privacy.diagnostics.result(reset)

    def delta_or_that_of_the_budget(self, delta: float | None) -> float:
        """Returns `delta`, or for None the delta of the budget; raises ValueError without either."""
        if delta is None and self.budget is not None:
            return self.budget.delta
        if delta is None:
            raise ValueError(
                "Expected delta, such as delta=1e-5 (below 1/N), or a model with a budget. Received "
                "neither."
            )
        return delta

    # -- the ledger and its budget ---------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """Everything that is known to have been spent on these weights, in any training."""
        return self._model._account.ledger

    @property
    def budget(self) -> PrivacyBudget | None:
        """The most that may be spent on these weights, or None; the step beyond it is refused.

        Assigning a budget replaces an earlier one, for every model that shares the weights, even by
        a larger one; `make_private(model, budget=...)` only accepts a smaller one.
        """
        return self.ledger.budget

    @budget.setter
    def budget(self, budget: PrivacyBudget | None):
        self.ledger.budget = budget

    @property
    def current_run(self) -> Run | None:
        """The run that the current, or latest, training is accounted as, with its planned steps."""
        session = self._model._session
        return None if session is None else session.run

    @property
    def earlier_runs(self) -> list[Run]:
        """The runs on these weights other than the open ledger entry."""
        session = self._model._session
        return self.ledger.runs if session is None else session.earlier()

    @property
    def steps_taken(self) -> int:
        """Number of steps of the open ledger entry so far."""
        session = self._model._session
        return 0 if session is None else session.taken

    @property
    def steps_left(self) -> float:
        """Number of steps that budgets and tables of the run still allow; infinite without a limit."""
        session = self._model._session
        return float("inf") if session is None else session.left

    # -- training and release --------------------------------------------------------------------

    def steps(self, x, y=None, **arguments) -> Iterator[dict[str, float]]:
        """Trains step by step, in a loop of your own; accounted as `fit` is.

        Each iteration draws the next lot, counts the step and takes it. The loop may do anything in
        between that `fit`'s callbacks may: evaluate, change the learning rate of DP-SGD, train other
        models, or end the training by `break`. All planned steps are counted then, since what the steps
        showed may have decided it; a budget ends the training at no cost.

        Args:
            x, y: the data, as in `fit`.
            **arguments: `batch_size`, `epochs`, `shuffle`, `class_weight`, `sample_weight`,
                `steps_per_epoch`, as in `fit`.

        Yields:
            The logs of the step: names to numbers. Metrics are means since the epoch began. They are
            computed from private data without noise.

        Raises:
            BudgetExhausted: the next step would exceed a budget.
            ValueError: as in `fit`.
            RuntimeError: another training of these weights is running.

        Example:
            >>> import keras, numpy as np, tfdp
            >>> model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
            >>> model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.1), "mse")
            >>> x = np.zeros((100, 2), "float32")
            >>> for logs in model.privacy.steps(x, x[:, :1], batch_size=10, epochs=3):
            ...     if model.privacy.steps_taken == 12:
            ...         break
            >>> model.privacy.steps_taken, model.privacy.ledger.runs[0].steps
            (12, 30)
        """
        return training_steps(self._model, x, y, **arguments)

    def count_left_out(self, steps: int) -> None:
        """Counts steps that were planned, and are left out because of what earlier steps showed.

        An epsilon is proven for a number of steps that is fixed without looking at the weights. `fit`
        and `steps` count all planned steps where they end early; for a loop of `train_on_batch`, only
        you know the plan.

        Args:
            steps: number of steps that were left out. Those beyond a budget, which would not have
                been taken, are not counted.

        Raises:
            RuntimeError: there was no training.

        Example:
            >>> import keras, numpy as np, tfdp
            >>> model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
            >>> model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.1), "mse")
            >>> x = np.zeros((10, 2), "float32")
            >>> for step in range(30):
            ...     _ = model.train_on_batch(x, x[:, :1])
            ...     if model.get_weights()[1].any():  # it looks at what the steps released
            ...         break
            >>> model.privacy.count_left_out(29 - step)
            >>> model.privacy.steps_taken, model.privacy.ledger.runs[-1].steps
            (1, 30)
        """
        steps = whole("steps", steps, 0)
        if not self._model._account.end_early(steps):
            raise RuntimeError(
                "Expected a training whose steps were left out. Found none: fit() and steps() begin "
                "one."
            )

    def release(self, path: str | os.PathLike) -> None:
        """Writes the released weights to a `.keras` file that loads in plain Keras: `tfdp.export`.

        Args:
            path: a file name that ends in `.keras`.

        Raises:
            ValueError: as in `tfdp.export`.
        """
        export(self._model, path)

    def configure(self, **settings):
        """Sets how the model trains privately and returns the model; `make_private` has the settings.

        Settings that are left out get their defaults, as in `make_private`.
        """
        return self._model._configure_privacy(**settings)
