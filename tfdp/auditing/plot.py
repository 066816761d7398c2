"""The picture of an audit: the lower bound beside what is stated, and the ROC below what is allowed."""

from pathlib import Path

import numpy as np

from tfdp._palette import ATTACK, CLAIMED, GREY, PROVEN
from tfdp.accounting.guarantee import VACUOUS_ABOVE, format_epsilon
from tfdp.auditing.membership import Membership
from tfdp.auditing.running import Audit
from tfdp.auditing.wording import rounded_down, verdict

_FEW = 10
_STATED = {"claimed": CLAIMED, "proven": PROVEN}


def draw(audit: Audit, path: str | Path) -> None:
    """Draws an audit into a file.

    Args:
        audit: the audit.
        path: file name that ends with .png, .pdf or .svg.

    Raises:
        ImportError: matplotlib is not installed (`pip install 'tfdp[plot]'`).

    Example:
        >>> from tfdp.experiments import Experiment, audit_experiment
        >>> experiment = Experiment(
        ...     mechanism="dpsgd", model="linear", sampling="cyclic", batch_size=479,
        ...     steps=3, noise_multiplier=4.0)
        >>> found = audit_experiment(experiment, canaries=40)
        >>> from tfdp.auditing import draw
        >>> import os
        >>> draw(found, "audit.svg")
        >>> os.path.exists("audit.svg")
        True
    """
    pyplot = _pyplot()
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(10.5, 4.6), gridspec_kw={"width_ratios": (1, 1.15)}
    )
    _epsilons(left, audit)
    _roc(right, audit)
    kind = "claimed" if "claimed" in audit.guarantees and audit.refutes("claimed") else "proven"
    kind = kind if kind in audit.guarantees else "claimed"
    figure.suptitle(verdict(audit, kind).partition(" (")[0], x=0.01, ha="left", fontsize=12)
    _save(pyplot, figure, path)


def _epsilons(axis, audit):
    """The lower bound as a bar, and what is stated as lines: a line inside the bar is refuted."""
    stated = {kind: g.epsilon for kind, g in audit.guarantees.items()}
    finite = [
        e for e in (*stated.values(), audit.bound.epsilon, audit.bound.ceiling) if np.isfinite(e)
    ]
    top = 1.15 * max([*(e for e in finite if e <= VACUOUS_ABOVE), audit.bound.ceiling, 1.0])
    axis.bar([0], [audit.bound.epsilon], width=0.5, color=ATTACK, zorder=2)
    axis.annotate(
        f"attack: at least {rounded_down(audit.bound.epsilon)}", (0, audit.bound.epsilon),
        xytext=(0, 4),
        textcoords="offset points", ha="center", fontsize=10, color=ATTACK,
    )  # fmt: skip
    axis.plot([-0.25, 0.25], 2 * [audit.bound.ceiling], color=GREY, linewidth=1, linestyle=":")
    axis.annotate(
        f"most that {audit.bound.counts['guesses']:,} guesses can show", (0.27, audit.bound.ceiling),
        va="center", fontsize=9, color=GREY,
    )  # fmt: skip
    above = 0  # statements that are beyond the axis, one below the other
    for kind, epsilon in stated.items():
        words = f"{kind}: {format_epsilon(epsilon)}"
        if epsilon <= top:
            axis.axhline(epsilon, color=_STATED[kind], linewidth=2, zorder=3)
            axis.annotate(
                words, (1.45, epsilon), xytext=(0, 3), textcoords="offset points", ha="right",
                fontsize=10, color=_STATED[kind],
            )  # fmt: skip
        else:
            axis.annotate(
                f"{words} (above)", (1.45, top), xytext=(0, -14 * above), textcoords="offset points",
                va="top", ha="right", fontsize=10, color=_STATED[kind],
            )  # fmt: skip
            above += 1
    axis.set_xlim(-0.45, 1.5)
    axis.set_ylim(0, top)
    axis.set_xticks([])
    axis.set_ylabel(f"epsilon at delta = {audit.bound.delta:g}")
    axis.set_title("Lower bound and what is stated", loc="left", fontsize=11)


def _roc(axis, audit):
    """The attack's true against its false positives, and what each stated epsilon allows."""
    allowed = {
        f"allowed, {kind}": (audit.allowed(kind), _STATED[kind]) for kind in audit.guarantees
    }
    _curves(axis, {"attack": (audit.scores, ATTACK)}, allowed)
    axis.set_title("Attack on the canaries", loc="left", fontsize=11)


def _curves(axis, attacks, allowed):
    """ROCs on logarithmic axes below what is allowed.

    Args:
        axis: the axis.
        attacks: (scores, colour) by name.
        allowed: (trade-off curve, colour) by name.
    """
    absent = max(1, *(int(np.sum(~scores.included)) for scores, _ in attacks.values()))
    least = 0.5 / absent
    grid = np.geomspace(least, 1.0, 400)
    for name, (curve, color) in allowed.items():
        axis.plot(grid, curve.largest_tpr(grid), color=color, linewidth=2, label=name)
    for name, (scores, color) in attacks.items():
        fpr, tpr = scores.roc()
        # Rates of a few examples are chance, and may lie above what is allowed.
        sure = int(np.searchsorted(fpr, _FEW / absent))
        fpr = np.maximum(fpr, least)
        style = {"where": "post", "color": color, "linewidth": 1.6}
        axis.step(fpr[sure:], tpr[sure:], label=name, **style)
        axis.step(
            fpr[: sure + 1], tpr[: sure + 1], alpha=0.4, linestyle=(0, (2, 2)),
            label=f"{name}, below {_FEW} false positives", **style,
        )  # fmt: skip
    axis.plot(grid, grid, color=GREY, linewidth=1, linestyle=":", label="guessing")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(least, 1.0)
    axis.set_ylim(least, 1.15)
    axis.set_xlabel("false positive rate")
    axis.set_ylabel("true positive rate")
    axis.grid(color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.legend(frameon=False, fontsize=9, loc="lower right")


def draw_membership(found: Membership, path: str | Path) -> None:
    """Draws the ROCs of black-box attacks into a file, below what is proven.

    Args:
        found: the attacks.
        path: file name that ends with .png, .pdf or .svg.

    Raises:
        ImportError: matplotlib is not installed (`pip install 'tfdp[plot]'`).

    Example:
        >>> import numpy as np
        >>> from tfdp.auditing import Membership, Scores, draw_membership
        >>> draws = np.random.default_rng(0)
        >>> scores = Scores(draws.normal(size=400), draws.random(400) < 0.5)
        >>> found = Membership(loss=scores, lira=scores, guarantee=None, models=1)
        >>> draw_membership(found, "roc.svg")
        >>> import os
        >>> os.path.exists("roc.svg")
        True
    """
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(6.4, 5.2))
    allowed = {}
    if found.allowed is not None:
        words = f"allowed, proven {format_epsilon(found.guarantee.epsilon)}"
        allowed = {words: (found.allowed, PROVEN)}
    attacks = {"LiRA": (found.lira, ATTACK), "loss threshold": (found.loss, CLAIMED)}
    _curves(axis, attacks, allowed)
    examples = len(found.loss.values) // found.models
    axis.set_title(
        f"Membership of {examples:,} examples in {found.models} models", loc="left", fontsize=11
    )
    _save(pyplot, figure, path)


def _pyplot():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(pyplot, figure, path):
    for axis in figure.axes:
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
