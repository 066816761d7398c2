"""Plots of the privacy of some trainings: epsilon over the steps, the best attack, and clipping."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdp._palette import ATTACK, CLAIMED, GREY, PROVEN, new_figure
from tfdp.accounting.composition import guarantee_of_all
from tfdp.accounting.guarantee import Guarantee, format_epsilon
from tfdp.accounting.run import Run

# Number of step counts at which epsilon is computed, above 0.
_POINTS = 16
# Label and style of each kind of guarantee.
_STYLES: dict[str, dict[str, Any]] = {
    "proven": {"color": PROVEN, "linestyle": "-", "marker": "o"},
    "claimed": {"color": CLAIMED, "linestyle": "--", "marker": "s"},
}


def picture(
    runs: Sequence[Run],
    guarantees: Sequence[Guarantee],
    clipping: Sequence[tuple[int, float]] = (),
) -> Any:
    """Plots the privacy spent by some trainings, as a matplotlib figure.

    Args:
        runs: The trainings, in order.
        guarantees: The proven and the claimed guarantee of all of them together.
        clipping: (number of steps, share of gradients that were clipped) for each epoch. The shares
            are computed from private data without noise; without them, the figure may be released.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    rows = 3 if clipping else 2
    figure, axes = new_figure(6.0, 2.7 * rows, rows)
    _epsilon_over_steps(axes[0], runs, guarantees)
    _attacks(axes[1], guarantees)
    if clipping:
        _clipping(axes[2], clipping)
    return figure


def _epsilon_over_steps(axis, runs: Sequence[Run], guarantees: Sequence[Guarantee]) -> None:
    proven = guarantees[0]
    axis.set_title("Epsilon spent", loc="left", fontsize=10, fontweight="bold")
    axis.set(xlabel="steps", ylabel=f"epsilon (delta = {proven.delta:g})")
    total = sum(run.steps for run in runs)
    counts = np.unique(np.linspace(0, total, min(_POINTS, total) + 1).astype(int))
    missing = []
    for stated in guarantees:
        found = [_spent(stated, _first_steps(runs, int(count))) for count in counts[:-1]]
        values = np.array([*found, stated.epsilon])
        if np.isinf(values[-1]):
            missing.append(f"{stated.kind}: infinite")
            continue
        label = f"{stated.kind}, {format_epsilon(stated.epsilon)} at the end"
        style = _STYLES[stated.kind]
        # Between two counts, the larger value is plotted, as an upper bound.
        axis.plot(
            counts, values, drawstyle="steps-pre", label=label, linewidth=1.8, markersize=4, **style
        )
    if missing:
        axis.plot([], [], " ", label="; ".join(missing))
    axis.set_xlim(0, max(total, 1))
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, fontsize=9, loc="best")


def _spent(stated: Guarantee, runs: Sequence[Run]) -> float:
    if not runs:
        return 0.0
    return guarantee_of_all(stated.kind, runs, stated.delta, stated.adjacency).epsilon


def _first_steps(runs: Sequence[Run], steps: int) -> list[Run]:
    """The first `steps` steps of runs in order."""
    parts = []
    for run in runs:
        taken = min(steps, run.steps)
        if taken:
            parts.append(run if taken == run.steps else run.with_steps(taken))
        steps -= taken
    return parts


def _attacks(axis, guarantees: Sequence[Guarantee]) -> None:
    """Plots the least false negative rate of a membership test over its false positive rate."""
    rates = np.geomspace(1e-4, 1.0, 200)
    axis.set_title("What an attacker can find at best", loc="left", fontsize=10, fontweight="bold")
    axis.set(
        xscale="log", xlim=(1e-4, 1.0), ylim=(0.0, 1.02),
        xlabel="false positive rate of the best test", ylabel="false negative rate",
    )  # fmt: skip
    for stated in guarantees:
        label = f"if epsilon is {format_epsilon(stated.epsilon)} ({stated.kind})"
        if math.isinf(stated.epsilon):
            label = f"no limit ({stated.kind})"
        style = _STYLES[stated.kind] | {"marker": None}
        axis.plot(rates, np.interp(rates, *stated.curve()), label=label, linewidth=1.8, **style)
    axis.plot(rates, 1 - rates, color=GREY, linestyle=":", linewidth=1.5, label="blind guessing")
    axis.legend(frameon=False, fontsize=9, loc="lower left")


def _clipping(axis, clipping: Sequence[tuple[int, float]]) -> None:
    title = "Gradients clipped (not private: do not release this panel)"
    axis.set_title(title, loc="left", fontsize=10, fontweight="bold")
    steps, shares = zip(*clipping, strict=True)
    axis.plot(steps, [100 * share for share in shares], "^-", color=ATTACK, markersize=4)
    axis.set(xlabel="steps", ylabel="% of gradients in each epoch", ylim=(0, 105))
    axis.set_xlim(left=0)
    axis.xaxis.get_major_locator().set_params(integer=True)
