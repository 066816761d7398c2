"""`model.privacy`: the privacy spent, the budget, the statement and the release of a private model."""

import dataclasses
import itertools
import math
import os
from collections.abc import Iterator

import numpy as np

from tfdp import accounting
from tfdp._validate import one_of, whole
from tfdp.account import Account, account_of, check_counted
from tfdp.accounting import Guarantee, Ledger, PrivacyBudget, Run
from tfdp.accounting.run import STARTS
from tfdp.gradients.diagnostics import Diagnostics
from tfdp.gradients.lot import ENGINES
from tfdp.optimizers import DPKerasOptimizer
from tfdp.training.export import export
from tfdp.training.loop import steps_of
from tfdp.training.unknown_steps import enter_unknown_steps

_INTERNAL = {"account", "clipping", "collected", "configure", "delta_and_adjacency", "next_seed"}


class ModelPrivacy:
    """The attribute `model.privacy` of a private model: privacy spent, budget, statement, release.

    Args:
        model: A private model, made by `make_private`.

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
        Ledger(runs=1, steps=10)
    """

    def __init__(self, model):
        self._model = model
        self.engine = "auto"
        self.physical_batch_size = None
        self._seed, self._draws = None, itertools.count()
        self.public_preprocessing = ()
        with model.distribute_strategy.scope():
            self.collected = Diagnostics()
        self.clipping: list[tuple[int, float]] = []  # steps and share clipped, of each epoch
        self._account = Account()  # becomes the account of the weights once the model has any

    def __dir__(self):
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def __repr__(self) -> str:
        return f"<privacy of model '{self._model.name}': {self.ledger!r}>"

    def _repr_html_(self) -> str:
        return self.ledger._repr_html_()

    # -- what was spent --------------------------------------------------------------------------

    def spent(
        self,
        delta: float | None = None,
        kind: str = "proven",
        adjacency: str | None = None,
        *,
        max_examples_per_user: int = 1,
    ) -> Guarantee:
        """Returns the guarantee, with its epsilon, for all training of these weights so far.

        During training, the steps taken so far count; afterwards, all planned steps.

        Args:
            delta: Probability in (0, 1), well below 1/N. None takes the delta of the budget.
            kind: "proven" for this run, or "claimed" by the formula of the mechanism's paper.
            adjacency: "zero_out", "replace_one" or "add_or_remove_one". None takes the budget's, or
                "zero_out" without a budget.
            max_examples_per_user: Largest number of examples of one user, which are protected together.

        Raises:
            ValueError: If the optimizer has taken steps that the ledger does not contain, or there
                is neither a delta nor a budget.
        """
        runs = self._checked_runs(self.account.runs_so_far, max_examples_per_user)
        return self._guarantee(kind, runs, delta, adjacency)

    def curve(
        self,
        delta: float | None = None,
        kind: str = "proven",
        adjacency: str | None = None,
        *,
        max_examples_per_user: int = 1,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the error rates of the best membership test that the guarantee allows, for a plot.

        Args:
            delta, kind, adjacency, max_examples_per_user: As in `spent`. The privacy losses are
                computed accurately at delta, which is not part of the result.

        Returns:
            Rising false positive rates, and the smallest false negative rate of a test at each.

        Raises:
            ValueError: As in `spent`.
        """
        spent = self.spent(delta, kind, adjacency, max_examples_per_user=max_examples_per_user)
        return spent.curve()

    def _guarantee(self, kind, runs, delta, adjacency) -> Guarantee:
        # A training without a budget needs no theorem.
        from tfdp.accounting.assumptions import START
        from tfdp.accounting.composition import guarantee_of_all

        found = guarantee_of_all(kind, runs, *self.delta_and_adjacency(delta, adjacency))
        if runs or kind == "claimed":
            return found
        return dataclasses.replace(found, assumptions=(START[self.account.start],))

    def statement(
        self,
        delta: float | None = None,
        adjacency: str | None = None,
        *,
        max_examples_per_user: int = 1,
        full: bool = False,
    ) -> str:
        """Returns the privacy statement: in five lines a verdict, both guarantees and what to confirm.

        A statement is for others, so all planned steps count, also while a training runs.

        Args:
            delta, adjacency, max_examples_per_user: As in `spent`.
            full: Whether to add all assumptions, explanations and limits.

        Raises:
            ValueError: As in `spent`.
        """
        runs = self._checked_runs(self.ledger.runs, max_examples_per_user)
        from tfdp.accounting.statements import StatementText

        both = [self._guarantee(kind, runs, delta, adjacency) for kind in ("claimed", "proven")]
        said = accounting.Statement.from_guarantees(runs, *both, planned=False)
        return StatementText.of(said, full)

    def plot(self, delta: float | None = None, adjacency: str | None = None, *, clipping=True):
        """Draws epsilon over the steps, and how well an attacker can do at best, in one figure.

        All planned steps count, as in `statement`. `figure.savefig("privacy.png")` writes the figure.

        Args:
            delta, adjacency: As in `spent`.
            clipping: Whether to draw the fraction of clipped gradients in each epoch, too, where
                `PrivacyTensorBoard` recorded it. It is not private: use False for a release.

        Returns:
            A matplotlib figure.

        Raises:
            ImportError: If matplotlib is not installed (`pip install 'tfdp[plot]'`).
            ValueError: As in `spent`.
        """
        from tfdp.accounting.pictures import picture

        runs = self._checked_runs(self.ledger.runs, 1)
        stated = [self._guarantee(kind, runs, delta, adjacency) for kind in ("proven", "claimed")]
        return picture(runs, stated, self.clipping if clipping else ())

    def diagnostics(self, reset: bool = False) -> dict[str, float]:
        """Returns figures that help to choose the clip norm, such as the fraction of clipped gradients.

        They are means over the steps since the last reset, from private gradients without noise. They
        are for the person who trains, not for release. `reset` begins new means after this call.
        """
        return self.collected.result(reset)

    def delta_and_adjacency(self, delta: float | None, adjacency: str | None) -> tuple[float, str]:
        """Returns both, with those of the budget for None; raises ValueError without any delta."""
        budget = self.budget
        if adjacency is None:
            adjacency = "zero_out" if budget is None else budget.adjacency
        if delta is not None:
            return delta, adjacency
        if budget is None:
            raise ValueError(
                "delta is missing, and the model has no budget. Pass delta, below 1/N."
            )
        return budget.delta, adjacency

    # -- the ledger and its budget ---------------------------------------------------------------

    @property
    def account(self) -> Account:
        """The account of the weights, or of the model itself as long as the model has no weights."""
        if self._model.weights:
            account, own = account_of(self._model), self._account
            if own is not account:
                if own.start != "assumed":
                    account.start = own.start
                account.absorb(own)
                self._account = account
        return self._account

    @property
    def ledger(self) -> Ledger:
        """The `Ledger` of these weights: all privacy known to have been spent, in any training."""
        return self.account.ledger

    def _checked_runs(self, runs: list[Run], max_examples_per_user: int) -> list[Run]:
        """Returns the runs in the ledger; raises ValueError if the optimizer has taken other steps."""
        optimizer, account = getattr(self._model, "optimizer", None), self.account
        if isinstance(optimizer, DPKerasOptimizer):
            check_counted(optimizer, account.ledger)
        if account.start == "public":  # declared later, perhaps
            runs = [dataclasses.replace(run, start="public") for run in runs]
        if max_examples_per_user == 1:
            return runs
        return [run.for_users(max_examples_per_user) for run in runs]

    @property
    def budget(self) -> PrivacyBudget | None:
        """The largest epsilon and delta that may be spent on these weights, or None for no limit.

        A step beyond it raises `BudgetExhausted`. Assigning a budget replaces all earlier ones, for
        every model with these weights; `make_private(model, budget=...)` adds one to them.
        """
        return self.ledger.budget

    @budget.setter
    def budget(self, budget: PrivacyBudget | None):
        self.ledger.budget = budget

    @property
    def current_run(self) -> Run | None:
        """The `Run` that the current or latest training is accounted as. None before a training.

        `run.steps` is the number of described steps. The ledger has the number that counts.
        """
        session = self.account.session
        return None if session is None else session.run

    @property
    def steps_taken(self) -> int:
        """Number of steps taken in the latest training, also for a loaded model."""
        session, ledger = self.account.session, self.ledger
        if session is not None:
            return session.entry.taken
        return ledger.taken([*ledger.entries][-1]) if ledger.entries else 0

    @property
    def steps_left(self) -> float:
        """Number of steps that budgets and tables of the run still allow. Infinite without limits."""
        session = self.account.session
        return math.inf if session is None else session.entry.left

    # -- training and release --------------------------------------------------------------------

    def steps(
        self,
        x,
        y=None,
        *,
        batch_size: int | None = None,
        epochs: int = 1,
        shuffle: bool | str = True,
        class_weight: dict | None = None,
        sample_weight=None,
        steps_per_epoch: int | None = None,
    ) -> Iterator[dict[str, float]]:
        """Trains step by step, for custom loops, with the guarantee of `fit`.

        Each iteration draws the next lot, counts the step and takes it. In between, the loop may do
        what callbacks of `fit` may: evaluate, change the learning rate of DP-SGD, train other models,
        or end the training by `break`. All planned steps are counted then, since the steps' results may
        have decided it. A budget ends the training at no cost.

        Args:
            x, y, batch_size, epochs, shuffle, class_weight, sample_weight, steps_per_epoch: As in
                `fit`. This call checks them. The first step is taken in the first iteration.

        Yields:
            The logs of the step, a dictionary of numbers. Metrics are means since the epoch began,
            computed from private data without noise.

        Raises:
            BudgetExhausted: If the next step would exceed a budget.
            ValueError: As in `fit`.
            RuntimeError: If another training of these weights is running.

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
        epochs = whole("epochs", epochs, 1)
        feed = self._model._feed(
            x,
            y,
            sample_weight,
            batch_size=batch_size,
            shuffle=shuffle,
            class_weight=class_weight,
            steps_per_epoch=steps_per_epoch,
        )
        return steps_of(self._model, x, feed, epochs)

    def plan(self, *, epochs: int | None = None, steps: int | None = None) -> None:
        """Declares how many steps the next trainings will take together, before the first of them.

        Call it before a loop of `fit`, `steps` or `train_on_batch` that ends when a result is good
        enough. An epsilon is proven for a number of steps that is fixed without looking at the
        weights. Each `fit` and `steps` counts its own plan, but only you know the plan of your loop.
        All steps of a declared plan count from the first one on. Trainings with the same settings in
        this process carry it out. A training that does not fit into the rest of it is counted in
        addition.

        Args:
            epochs, steps: Number of epochs, or of steps. Pass exactly one of them.

        Example:
            >>> import keras, numpy as np, tfdp
            >>> model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
            >>> model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.1), "mse")
            >>> x, held_out = np.zeros((100, 2), "float32"), np.zeros((20, 2), "float32")
            >>> model.privacy.plan(epochs=10)
            >>> for _ in range(5):
            ...     _ = model.fit(x, x[:, :1], batch_size=10, epochs=2, verbose=0)
            ...     if model.evaluate(held_out, held_out[:, :1], verbose=0) < 1:
            ...         break
            >>> model.privacy.steps_taken, model.privacy.ledger.runs[0].steps
            (20, 100)
        """
        epochs = whole("epochs", epochs, 1, optional=True)
        steps = whole("steps", steps, 1, optional=True)
        if (epochs is None) == (steps is None):
            raise ValueError("Pass either epochs or steps, and not both.")
        self.account.plan = (epochs or 0, steps or 0)

    def release(self, path: str | os.PathLike) -> None:
        """Writes the weights that may be published to a file that plain Keras loads: `tfdp.export`.

        Args:
            path: A file name that ends in `.keras`.

        Raises:
            ValueError: As in `tfdp.export`.
        """
        export(self._model, path)

    def next_seed(self) -> int | None:
        """Returns the seed of the next lots that are drawn from arrays, or None for secret ones."""
        if self._seed is None:
            return None
        # Neither another fit nor a resumed run may draw the same lots again: the accounting assumes
        # that lots are independent.
        words = [self._seed, next(self._draws), int(self._model.optimizer.iterations.numpy())]
        return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])

    def configure(
        self,
        *,
        engine: str = "auto",
        physical_batch_size: int | None = None,
        budget: PrivacyBudget | None = None,
        seed: int | None = None,
        start: str | None = None,
        public_preprocessing=(),
    ):
        """Applies the arguments of `make_private`, and returns the model."""
        physical_batch_size = whole("physical_batch_size", physical_batch_size, 1, optional=True)
        one_of("engine", engine, ENGINES)
        one_of("start", start, STARTS, optional=True)
        seed = whole("seed", seed, 0, optional=True)
        account = self.account
        self.engine = engine
        self.physical_batch_size = physical_batch_size
        self._seed, self._draws = seed, itertools.count()
        self.public_preprocessing = public_preprocessing
        if start == "public":
            account.declare_public()
        elif start is not None:
            account.start = start
        enter_unknown_steps(self._model, account, declared=start == "public")
        if budget is not None:
            account.ledger.add_budget(budget)
        self._model.train_function = None
        return self._model
