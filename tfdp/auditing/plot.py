"""Plots of attacks: their true and false positive rates, and the limits that guarantees set."""

import os

import numpy as np

from tfdp._palette import ATTACK, CLAIMED, GREY, PROVEN, new_figure
from tfdp.accounting.guarantee import format_epsilon
from tfdp.auditing.membership import Membership
from tfdp.auditing.running import Audit

# Rates from fewer false positives are dotted, because they vary by chance and may exceed the limit.
_FEW = 10


def draw(found: Audit | Membership, path: str | os.PathLike) -> None:
    """Plots the success of attacks into a file, with the limit that each stated guarantee sets.

    The curves are true positive rates over false positive rates, on logarithmic axes. A stated epsilon
    is wrong if an attack is significantly above its curve.

    Args:
        found: The result of `audit` or of `membership_inference`.
        path: File name that ends in .png, .pdf or .svg.

    Raises:
        ImportError: If matplotlib is not installed (`pip install 'tfdp[plot]'`).

    Example:
        >>> import os
        >>> import numpy as np
        >>> from tfdp.auditing import Membership, Scores, draw
        >>> draws = np.random.default_rng(0)
        >>> scores = Scores(draws.normal(size=400), draws.random(400) < 0.5)
        >>> draw(Membership(attacks={"lira": scores}, guarantee=None, models=1), "roc.svg")
        >>> os.path.exists("roc.svg")
        True
    """
    figure, (axis,) = new_figure(6.4, 5.2)
    absent = max(1, *(int(np.sum(~scores.included)) for scores in found.attacks.values()))
    least = 0.5 / absent
    grid = np.geomspace(least, 0.999, 100)
    for kind, guarantee in found.guarantees.items():
        color = {"claimed": CLAIMED, "proven": PROVEN}[kind]
        label = f"allowed, {kind} {format_epsilon(guarantee.epsilon)}"
        axis.plot(
            grid, 1 - np.interp(grid, *guarantee.curve()), color=color, linewidth=2, label=label
        )
    for (name, scores), color in zip(found.attacks.items(), (ATTACK, CLAIMED), strict=False):
        fpr, tpr = scores.roc()
        fpr, sure = np.maximum(fpr, least), int(np.searchsorted(fpr, _FEW / absent))
        few = f"{name}, fewer than {_FEW} false positives"
        for rows, label, how, alpha in (
            (slice(sure, None), name, "-", 1.0),
            (slice(sure + 1), few, ":", 0.4),
        ):
            axis.step(
                fpr[rows], tpr[rows], where="post", color=color, linewidth=1.6,
                linestyle=how, alpha=alpha, label=label,
            )  # fmt: skip
    axis.plot(grid, grid, color=GREY, linewidth=1, linestyle="--", label="guessing")
    axis.set(
        xscale="log", yscale="log", xlim=(least, 1.0), ylim=(least, 1.15),
        xlabel="false positive rate", ylabel="true positive rate",
    )  # fmt: skip
    axis.set_title(found.title, loc="left", fontsize=11)
    axis.legend(frameon=False, fontsize=9, loc="lower right")
    figure.savefig(path, dpi=150)
