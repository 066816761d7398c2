"""Training without privacy, for comparison: every guarantee is infinite, and says why."""

import numpy as np

from tfdp.accounting.analysis import Analysis
from tfdp.accounting.claims import ORDERS_2020
from tfdp.accounting.run import Run

RELEASED = "weights trained without noise"
CLAIM_ASSUMPTIONS = ()
REASON = "The run was not private: no noise was added."


def analyse(run: Run, delta: float, adjacency: str) -> Analysis:
    """Returns an analysis without any finite guarantee."""
    del run, delta, adjacency
    return Analysis((), RELEASED, (), reason=REASON)


def claimed_rdp(run: Run) -> np.ndarray:
    """Infinite divergences."""
    del run
    return np.full(len(ORDERS_2020), np.inf)
