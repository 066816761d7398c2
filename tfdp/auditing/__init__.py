"""Audits: attacks on a training that can show that a stated epsilon is too small.

An audit trains with canaries, examples that a coin flip includes or leaves out. Then it guesses from
the released weights which of them were included. The better the guesses, the larger the epsilon of the
training must be. An audit can refute a stated epsilon, but it cannot prove one: `docs/audit.md`.

    python -m tfdp.auditing --mechanism=dpsgd --epsilon=2
    python -m tfdp.auditing --flagfile=flags/audit/si_dpsgd_claimed.cfg

Example:
    >>> from tfdp.auditing import many_runs
    >>> bound = many_runs(true_positives=97, included=100, false_positives=4, absent=100, delta=1e-5)
    >>> print(f"epsilon is at least {bound.epsilon:.2f} (95% confidence)")
    epsilon is at least 2...
"""

from typing import TYPE_CHECKING

from tfdp._lazy import importing

if TYPE_CHECKING:
    from tfdp.auditing.bounds import LowerBound as LowerBound
    from tfdp.auditing.bounds import many_runs as many_runs
    from tfdp.auditing.bounds import one_run as one_run
    from tfdp.auditing.canaries import DiracCanaries as DiracCanaries
    from tfdp.auditing.membership import ExampleCanaries as ExampleCanaries
    from tfdp.auditing.membership import Membership as Membership
    from tfdp.auditing.membership import membership_inference as membership_inference
    from tfdp.auditing.plot import draw as draw
    from tfdp.auditing.running import Audit as Audit
    from tfdp.auditing.running import audit as audit
    from tfdp.auditing.scores import Scores as Scores
else:
    __getattr__, __dir__, __all__ = importing(__name__)
