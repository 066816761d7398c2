"""The privacy statement: both guarantees in plain words, with what they do not cover."""

from collections.abc import Sequence

from tfdp.accounting.guarantee import (
    ADJACENCY_WORDS,
    SAMPLING_WORDS,
    Guarantee,
    check_delta,
    format_epsilon,
)
from tfdp.accounting.guarantees import claimed_composition, proven_composition
from tfdp.accounting.run import Run

NOT_COVERED = (
    "Training loss, training accuracy and other figures computed on the private data.",
    "Early stopping, the choice of a checkpoint and the choice of hyperparameters on private data.",
    "Attacks on the floating-point representation of the noise.",
)
SEEDED = (
    "The noise came from a seed that the user chose: there is no privacy against anyone who knows "
    "the seed."
)


def statement(runs_or_run: Run | Sequence[Run], delta: float, adjacency: str = "zero_out") -> str:
    """Says in words what was sampled and released, and what is claimed and proven about it.

    Args:
      runs_or_run: One run, or the segments of one training.
      delta: Probability in (0, 1).
      adjacency: Neighbouring relation of the proven guarantee.

    Returns:
      Several lines of text.
    """
    check_delta(delta)
    runs = [runs_or_run] if isinstance(runs_or_run, Run) else list(runs_or_run)
    proven = proven_composition(runs, delta, adjacency)
    claimed = claimed_composition(runs, delta, adjacency)
    return render(runs, claimed, proven)


def render(runs: Sequence[Run], claimed: Guarantee, proven: Guarantee) -> str:
    """The text of `statement`, from guarantees that were computed already."""
    lines = ["Privacy statement"]
    lines += [_sampled(run) for run in runs] or ["Nothing was executed."]
    lines += [
        f"Released: {proven.released}.",
        f"Neighbours: {ADJACENCY_WORDS[proven.adjacency]} ({proven.adjacency}).",
        f"Claimed epsilon: {format_epsilon(claimed.epsilon)}  (delta = {claimed.delta:g}, "
        "the paper's own formula)",
        f"Proven epsilon:  {format_epsilon(proven.epsilon)}  (delta = {proven.delta:g}, "
        "for what was really sampled, computed and released)",
    ]
    if proven.reason:
        lines.append(f"Why: {proven.reason}")
    elif proven.vacuous:
        lines.append("An epsilon this large gives no meaningful protection.")
    if proven.assumptions:
        lines += ["The proven guarantee assumes:", *(f"  - {s}" for s in proven.assumptions)]
    not_covered = [*NOT_COVERED, *([SEEDED] if any(run.seeded for run in runs) else [])]
    lines += ["Not covered:", *(f"  - {s}" for s in not_covered)]
    return "\n".join(lines)


def _sampled(run: Run) -> str:
    return (
        f"Executed: {run.mechanism}, {run.steps} steps with {SAMPLING_WORDS[run.sampling]} of "
        f"{run.lot_size} out of {run.num_examples} examples{_noise(run)}."
    )


def _noise(run: Run) -> str:
    if run.mechanism == "none":
        return ""
    if run.encoding is not None:
        nu = run.encoding.degrees_of_freedom
        family = run.encoding.noise + (f" ({nu:g} degrees of freedom)" if nu else "")
        return f", {family} noise of scale {run.noise_multiplier:g}"
    if run.strategy is not None:
        bands = "" if run.strategy.bands is None else f" of {run.strategy.bands} bands"
        return (
            f", noise multiplier {run.noise_multiplier:g} correlated by {run.strategy.name}{bands}"
        )
    clipping = " (adaptive clipping included)" if run.adaptive_clipping else ""
    return f", noise multiplier {run.noise_multiplier:g}{clipping}"
