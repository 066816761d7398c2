"""Proven guarantees: the theorem of each mechanism, and the assumptions of its result.

`PROOFS` has the theorem of each mechanism: a function of a run, a delta and an adjacency. It is called
with runs of at least one step that `assumptions.UNPROVEN` does not exclude. It has to cover every
sampling, microbatch, user, group of weights, batch statistic and table of noise that such a run may
have. Delta determines how much tail mass is left out.
"""

import dataclasses
from collections.abc import Callable

from tfdp.accounting import encoded_steps, gaussian_steps, linear_steps
from tfdp.accounting.analysis import Analysis
from tfdp.accounting.assumptions import assumptions, unproven
from tfdp.accounting.contribution import UnboundedSensitivity
from tfdp.accounting.mechanisms import DPSGD, SIDPSGD, DiscreteSGD, Matrix, Mechanism, entry_of
from tfdp.accounting.run import Run

Theorem = Callable[[Run, float, str], Analysis]


PROOFS: dict[type[Mechanism], Theorem] = {
    DPSGD: gaussian_steps.prove,
    SIDPSGD: linear_steps.prove_means,
    Matrix: linear_steps.prove_matrix,
    DiscreteSGD: encoded_steps.prove,
}


def analyse(run: Run, delta: float, adjacency: str, one_change: bool = False) -> Analysis:
    """Translates a run into privacy losses, or into the reason why nothing finite can be proven.

    With `one_change`, the losses are those of a change of a single clipped term, of the kind
    `adjacency`. A chain of such changes leads from one neighbour to the other (`Contribution.chains`).
    The data sets in between have other terms, or fewer, and the theorems hold for all data sets. A
    microbatch is one term, as if it were one example.
    """
    analysed = run.of_single_terms() if one_change else run
    analysed.contribution.check_adjacency(adjacency)
    analysed.sampling.check_adjacency(adjacency)
    if run.steps == 0:
        return Analysis()
    reason = unproven(analysed, adjacency)
    if reason:
        return Analysis(reason=reason)
    try:
        found = entry_of(PROOFS, analysed.mechanism)(analysed, delta, adjacency)
    except UnboundedSensitivity as error:
        return Analysis(reason=str(error))
    if found.reason:
        return found
    return dataclasses.replace(found, assumptions=assumptions(run, found))
