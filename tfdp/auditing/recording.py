"""Reads a recording: the steps as arrays, each with the run that it was accounted as."""

import dataclasses
import functools
import json
import os

import numpy as np

from tfdp.accounting import Run
from tfdp.auditing.recorder import ABOUT, FINAL, MODEL, row_keys


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One recorded step.

    Attributes:
        number: its number in the recording, from 0.
        run: what it was accounted as, with the steps that were counted in the end.
        x, y, weight: the lot, as `fit` fed it.
        state: values of the non-trainable variables before the step.
        sums: bounded sums, a float array for each trainable variable.
        before, after: the trainable variables before and after the step.
        given: what the Keras update rule was given; empty where the mechanism has its own rule.
        means: un-noised means after the step; empty for most mechanisms.
        clip: the clip norm of the step.
        scale: the scale of the noise that the optimizer reports.
        counted: number of steps of the run that were counted when the weights changed.
        mean_factor: factor on the noisy mean in `given`.
        penalty: gradients of the weight regularizers, which the update rule is given as well.
        rate: the learning rate.
        iteration: number of steps that the optimizer had taken before.
        fit: number of the call of `fit` (or of `train_on_batch`) that took it.
    """

    number: int
    run: Run
    x: object
    y: object
    weight: object
    state: list
    sums: list
    before: list
    after: list
    given: list
    means: list
    clip: float
    scale: float
    counted: int
    mean_factor: float
    penalty: list
    rate: float
    iteration: int
    fit: int

    @property
    def rows(self) -> int:
        """Number of rows that are fed, with padding."""
        return len(next(iter(_leaves(self.x))))

    @functools.cached_property
    def present(self) -> np.ndarray:
        """bool [rows]: which rows are examples."""
        if self.weight is None:
            return np.ones(self.rows, bool)
        weight = np.asarray(next(iter(_leaves(self.weight))))
        return weight.reshape(len(weight), -1).any(axis=1)

    @functools.cached_property
    def drawn(self) -> np.ndarray:
        """bool [rows]: which rows are no padding: examples, and examples whose weight is zero."""
        contents = [np.asarray(leaf) for leaf in _leaves(self.x)]
        filled = [c.reshape(len(c), -1).astype(bool).any(axis=1) for c in contents]
        return self.present | np.any(filled, axis=0)

    def keys(self, blank: bool) -> list[int]:
        """The keys of the rows that are no padding (`recorder.row_keys`).

        Args:
            blank: whether to leave out all rows without features, which padding looks like.
        """
        leaves = [leaf for part in (self.x, self.y) for leaf in _leaves(part)]
        keys, filled = row_keys(leaves, len([*_leaves(self.x)]))
        return keys[filled if blank else self.drawn].tolist()

    @property
    def noisy(self) -> np.ndarray | None:
        """The noisy sum that the update rule was given, flat; None where it has no such sum."""
        if not self.given:
            return None
        return self.divisor * (flat(self.given) / self.mean_factor - flat(self.penalty))

    @property
    def divisor(self) -> int:
        """Number of microbatches in a nominal lot."""
        return self.run.lot_size // self.run.microbatch_size

    @property
    def total(self) -> np.ndarray:
        """The bounded sum, flat, float64."""
        return flat(self.sums)


class Recording:
    """A recording in a folder.

    Args:
        folder: the folder of `record`.

    Attributes:
        path: the folder.
        model_file: the model as it was when the recording began.

    Raises:
        ValueError: the folder holds no recording, or one that did not end.
    """

    def __init__(self, folder: str | os.PathLike):
        self.path = os.fspath(folder)
        self.model_file = os.path.join(self.path, MODEL)
        try:
            with open(os.path.join(self.path, ABOUT)) as file:
                self._about = json.load(file)
        except FileNotFoundError as error:
            raise ValueError(
                f"Expected a folder of tfdp.auditing.record. Found no {ABOUT} in {self.path}: it "
                "is another one, or the recording did not end."
            ) from error
        self.runs = {name: Run.from_dict(run) for name, run in self._about["runs"].items()}

    def __len__(self):
        return self._about["steps"]

    @property
    def missing_runs(self) -> set[str]:
        """Ids of runs that steps were counted in and that are not in the ledger."""
        return {*self._about["run_ids"]} - {*self.runs}

    @property
    def final(self) -> list[np.ndarray]:
        """The trainable variables when the recording ended."""
        with np.load(os.path.join(self.path, FINAL), allow_pickle=False) as file:
            return [file[name] for name in sorted(file.files)]

    @property
    def trainable(self) -> list[list]:
        """The shape of each trainable variable, in order."""
        return self._about["trainable"]

    @property
    def whole(self) -> bool:
        """Whether the recorded training ended without an exception."""
        return self._about["whole"]

    @property
    def decayed(self) -> list[bool]:
        """For each trainable variable, whether weight decay is for it."""
        return self._about["decayed"]

    @property
    def engine(self) -> str:
        """Name of the engine."""
        return self._about["engine"]

    def step(self, number: int) -> Step:
        """Reads one step."""
        parts = {name: [] for name in _PARTS}
        with np.load(os.path.join(self.path, f"step_{number:06d}.npz"), allow_pickle=False) as file:
            for key in sorted(file.files):
                parts[key.partition(".")[2]].append(file[key])
        layout = self._about["layout"]
        single = {name: parts[name][0].item() for name in _SINGLE}
        return Step(
            number=number,
            run=self.runs[self._about["run_ids"][number]],
            **{name: _packed(layout[name], iter(parts[name])) for name in ("x", "y", "weight")},
            **{name: parts[name] for name in _LISTS},
            **single,
            mean_factor=self._about["mean_factor"],
            fit=self._about["fits"][number],
        )

    def examples(self, fit: int) -> tuple[np.ndarray, np.ndarray] | None:
        """(keys, whether each has features) of the examples that a fit drew from; None if unknown."""
        path = os.path.join(self.path, f"examples_{fit:06d}.npz")
        if not os.path.exists(path):
            return None
        with np.load(path, allow_pickle=False) as file:
            return file["keys"], file["filled"]


_PARTS = (
    "x", "y", "weight", "state", "sums", "before", "after", "given", "means", "penalty", "clip",
    "scale", "counted", "rate", "iteration",
)  # fmt: skip
_LISTS = ("state", "sums", "before", "after", "given", "means", "penalty")
_SINGLE = ("clip", "scale", "counted", "rate", "iteration")


def _packed(layout, leaves):
    """Puts leaves into the structure that was recorded, in the order in which it was flattened."""
    if isinstance(layout, dict):
        return {name: _packed(layout[name], leaves) for name in sorted(layout)}
    if isinstance(layout, list):
        return tuple(_packed(part, leaves) for part in layout)
    return next(leaves, None)


def _leaves(structure):
    if isinstance(structure, dict):
        for name in sorted(structure):
            yield from _leaves(structure[name])
    elif isinstance(structure, (list, tuple)):
        for part in structure:
            yield from _leaves(part)
    elif structure is not None:
        yield structure


def flat(arrays) -> np.ndarray:
    """Arrays, one after the other, as one float64 vector."""
    parts = [np.ravel(np.asarray(array)).astype(float) for array in arrays]
    return np.concatenate(parts) if parts else np.zeros(0)
