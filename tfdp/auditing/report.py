"""The result of an audit for people: a table."""

import math

import numpy as np
from rich.console import Console
from rich.table import Table

from tfdp.accounting.guarantee import format_epsilon
from tfdp.auditing.membership import Membership
from tfdp.auditing.running import Audit
from tfdp.auditing.wording import rounded_down

_NAMES = {
    "one_run": "coins alone",
    "one_run_gaussian": "if the mechanism is Gaussian",
    "many_runs": "if canaries are independent",
    "many_runs_gaussian": "if both",
}


def print_table(audit: Audit, console: Console | None = None) -> None:
    """Prints the bounds beside what is stated.

    Args:
        audit: the audit.
        console: the console to print to; by default the terminal.

    Example:
        >>> from tfdp.experiments import Experiment, audit_experiment
        >>> experiment = Experiment(
        ...     mechanism="dpsgd", model="linear", sampling="cyclic", batch_size=479,
        ...     steps=3, noise_multiplier=4.0)
        >>> found = audit_experiment(experiment, canaries=40, confidence=0.999)
        >>> from tfdp.auditing import print_table
        >>> print_table(found)
        Audit
        ...coins alone...proven...stands...
    """
    count = audit.bound.counts
    table = Table(title="Audit", title_justify="left", pad_edge=False)
    table.add_column("epsilon")
    table.add_column("", justify="right")
    table.add_column("what it rests on", overflow="fold")
    for bound in (audit.bound, *audit.others.values()):
        style = "bold" if bound is audit.bound else None
        name = f"at least, {_NAMES[bound.method]}"
        table.add_row(name, rounded_down(bound.epsilon), _evidence(bound), style=style)
    table.add_section()
    for kind in ("claimed", "proven"):
        if kind in audit.guarantees:
            stated = audit.guarantees[kind]
            said = "stands" if math.isfinite(stated.epsilon) else "nothing refutes it"
            said = "[bold red]refuted[/]" if audit.refutes(kind) else said
            table.add_row(f"{kind}", format_epsilon(stated.epsilon), said)
    mu = _mu(audit)
    if audit.effect is not None and mu is not None:  # otherwise the effect itself is random
        table.add_section()
        effect = audit.effect
        table.add_row(
            "effect over noise",
            f"{effect.mu:.3g}",
            f"{effect.low:.3g} to {effect.high:.3g} ({100 * effect.confidence:g}%) in "
            f"{effect.releases} means of releases; accounted for the record that moves most: at most "
            f"{mu:.3g}",
        )
    console = console or Console()
    console.print(table)
    runs = "one training" if audit.runs == 1 else f"{audit.runs} trainings"
    among = "" if audit.records is None else f", among {audit.records:,} records"
    console.print(
        f"{count['canaries']:,} canaries in {runs}, each in or out by a coin of seed {audit.seed}"
        f"{among}; observed: {audit.observed}; area under the ROC {audit.scores.auc:.3f}.",
        highlight=False,
    )


def print_membership(found: Membership, console: Console | None = None) -> None:
    """Prints what black-box attacks found out, beside what is proven.

    Args:
        found: the attacks.
        console: the console to print to; by default the terminal.

    Example:
        >>> import numpy as np
        >>> from tfdp.auditing import Membership, Scores, print_membership
        >>> scores = Scores(np.arange(4.0), np.array([False, False, True, True]))
        >>> print_membership(Membership(loss=scores, lira=scores, guarantee=None, models=1))
        Membership inference on the released model
        ...LiRA...
    """
    table = Table(
        title="Membership inference on the released model", title_justify="left", pad_edge=False
    )
    table.add_column("false positive rate")
    for name in ("loss threshold", "LiRA", "allowed by what is proven"):
        table.add_column(name, justify="right")
    for fpr, *rates in found.table():
        shown = ["-" if rate is None else f"{100 * rate:.2f}%" for rate in rates]
        table.add_row(f"{100 * fpr:g}%", *shown)
    table.add_row("area under the ROC", f"{found.loss.auc:.3f}", f"{found.lira.auc:.3f}", "")
    console = console or Console()
    console.print(table)
    proven = "nothing is proven"
    if found.guarantee is not None:
        epsilon, delta = found.guarantee.epsilon, found.guarantee.delta
        proven = f"proven epsilon {format_epsilon(epsilon)} at delta = {delta:g}"
    absent = int(np.sum(~found.loss.included))
    console.print(
        f"True positive rates of {len(found.loss.values):,} guesses about {found.models} models, "
        f"{absent:,} of them about absent examples; {proven}. Weak attacks prove nothing.",
        highlight=False,
    )


def _evidence(bound):
    c = bound.counts
    most = f"(all right would show {rounded_down(bound.ceiling)})"
    if "guesses" in c:
        return f"{c['correct']:,} of {c['guesses']:,} guesses right {most}"
    return (
        f"{c['true_positives']:,} of {c['included']:,} found, {c['false_positives']:,} of "
        f"{c['absent']:,} falsely {most}"
    )


def _mu(audit):
    return getattr(audit.guarantees.get("proven"), "mu", None)
