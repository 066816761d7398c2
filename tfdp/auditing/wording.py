"""What an audit found, in a sentence or two."""

import math

from tfdp.accounting.guarantee import format_epsilon


def verdict(audit, kind: str) -> str:
    """Says in a sentence or two what the audit found about a stated guarantee.

    Args:
        audit: the `Audit`.
        kind: "claimed" or "proven".

    Example:
        >>> from tfdp.experiments import Experiment, audit_experiment
        >>> experiment = Experiment(
        ...     mechanism="dpsgd", model="linear", sampling="cyclic", batch_size=479,
        ...     steps=3, noise_multiplier=4.0)
        >>> found = audit_experiment(experiment, canaries=200, confidence=0.999)
        >>> from tfdp.auditing import verdict
        >>> print(verdict(found, "proven"))
        The proven epsilon 0.926... stands: ...An audit that finds nothing proves nothing.
    """
    stated, bound = audit.stated(kind), audit.bound
    shown = rounded_down(bound.epsilon)
    sure = f"{100 * bound.confidence:g}% confidence, delta = {bound.delta:g}"
    if audit.refutes(kind):
        return (
            f"The {kind} epsilon {format_epsilon(stated.epsilon)} is refuted: epsilon is at least "
            f"{shown} ({sure})."
        )
    if math.isinf(stated.epsilon):
        return (
            f"The {kind} epsilon is infinite, which nothing refutes: the attack shows at least {shown} "
            f"({sure})."
        )
    if bound.ceiling < stated.epsilon:
        return (
            f"The {kind} epsilon {format_epsilon(stated.epsilon)} stands, and this audit could not "
            f"have refuted it: the attack shows at least {shown} ({sure}), and with "
            f"{bound.counts['guesses']:,} guesses at most {rounded_down(bound.ceiling)}. Use more "
            "canaries, or more runs."
        )
    most = f"more than {rounded_down(bound.ceiling)} with {bound.counts['guesses']:,} guesses"
    return (
        f"The {kind} epsilon {format_epsilon(stated.epsilon)} stands: the attack shows at least "
        f"{shown} ({sure}), and could not have shown {most}. An audit that finds nothing proves "
        "nothing."
    )


def rounded_down(epsilon: float) -> str:
    """Three digits, rounded down: a lower bound is not made larger by its print."""
    if epsilon == 0:
        return "0"
    text = f"{epsilon:.3g}"
    return text if float(text) <= epsilon else f"{epsilon * (1 - 5e-3):.3g}"
