"""Counts all steps that were planned where results decide when training ends, or what is kept of it.

Formal guarantee: an epsilon is proven for a number of steps that was fixed without looking at what
the steps release. If what they released decides when training ends (early stopping on validation
data) or which weights are kept (the best of a file), the output is a function of what *all* planned
steps would have released, so the guarantee of these covers it; that of the steps that were taken does
not. The composition of the steps up to a time that depends on them can leak more.
"""

import math

import keras

from tfdp.training.steering import is_public


def keeps_the_best(callbacks) -> bool:
    """Whether a callback writes a file only if the weights do better than those before.

    Args:
        callbacks: the argument of a fit.
    """
    a_list = isinstance(callbacks, keras.callbacks.CallbackList)
    return any(
        isinstance(callback, keras.callbacks.ModelCheckpoint)
        and callback.save_best_only
        and not is_public(callback.monitor)
        for callback in (callbacks.callbacks if a_list else keras.tree.flatten(callbacks))
    )


def refuse_unknown_plan(steps: int | None) -> None:
    """Raises ValueError if nobody knows how many steps an epoch has whose best weights are kept."""
    if steps is None:
        raise ValueError(
            "ModelCheckpoint(save_best_only=True) chooses by what the steps showed, so that its file "
            "counts all planned steps, and the data do not say how many these are. Expected "
            "steps_per_epoch, or a dataset that knows its length."
        )


def left_out(
    planned: int | None, taken: int, epochs: int, behind: int, longest: int | None
) -> float:
    """Returns the number of steps that are planned and not taken; infinite if nobody knows it.

    Args:
        planned: number of planned steps of a fit; None if the data end the epochs.
        taken: number of steps that the fit has taken.
        epochs: number of epochs that the fit was to take.
        behind: number of steps of the first of them that lay behind the fit.
        longest: number of steps of the longest whole epoch of these data; None if none has ended.
    """
    if planned is None:
        if longest is None:
            return math.inf
        planned = epochs * longest - behind
    return max(0, planned - taken)
