"""Audits: attacks that refute a stated epsilon which is too small, and never one that is true.

An audit trains with canaries, examples that a coin includes or leaves out, and guesses from what is
released which were included. The better the guesses, the larger the epsilon that the training must
have. `docs/audit.md` says what an audit can and cannot say.

    python -m tfdp.auditing --mechanism=dpsgd --epsilon=2
    python -m tfdp.auditing --flagfile=flags/audit/si_dpsgd_claimed.cfg

Example:
    >>> from tfdp.auditing import many_runs
    >>> bound = many_runs(true_positives=97, included=100, false_positives=4, absent=100, delta=1e-5)
    >>> print(f"epsilon is at least {bound.epsilon:.2f} (95% confidence)")
    epsilon is at least 2...
"""

from tfdp._lazy import importing

_PUBLIC = {
    "Audit": "running",
    "DiracCanaries": "canaries",
    "ExampleCanaries": "membership",
    "LowerBound": "bounds",
    "Membership": "membership",
    "Scores": "scores",
    "audit": "running",
    "draw": "plot",
    "many_runs": "bounds",
    "membership_inference": "membership",
    "one_run": "bounds",
}

__all__ = [*_PUBLIC]
__getattr__, __dir__ = importing(__name__, _PUBLIC)
