"""Names of TensorFlow Privacy and Opacus, and what tfdp has in their place.

This module imports neither TensorFlow nor Keras.
"""

from collections.abc import Iterable

_OF_THE_OPTIMIZER = (
    "It belongs to the private optimizer, as in tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, "
    "noise_multiplier=1.1)."
)
_OWN_LOOP = "For a loop of your own, see model.privacy.steps(x, y, batch_size=..., epochs=...)."
_SPENT = "Call model.privacy.spent(delta)."
_RUNS = "See model.privacy.ledger.runs."
NAMES = {
    "BatchMemoryManager": "Pass physical_batch_size to tfdp.make_private.",
    "ModuleValidator": "Call tfdp.fix(model); tfdp.make_private checks the model.",
    "PrivacyEngine": "Call tfdp.make_private or tfdp.make_private_with_epsilon.",
    "accountant": _RUNS,
    "alphas": _SPENT,
    "compute_gradients": _OWN_LOOP,
    "data_loader": "Pass the data to model.fit.",
    "get_epsilon": _SPENT,
    "get_gradients": _OWN_LOOP,
    "get_noise_multiplier": "Call tfdp.accounting.noise_for.",
    "get_privacy_spent": _SPENT,
    "get_updates": _OWN_LOOP,
    "grad_sample_mode": "Pass engine='auto', 'ghost', 'vectorized' or 'loop'.",
    "history": _RUNS,
    "l2_norm_clip": _OF_THE_OPTIMIZER,
    "make_private": "Call tfdp.make_private(model).",
    "make_private_with_epsilon": "Call tfdp.make_private_with_epsilon(model, optimizer, (x, y), ...).",
    "max_grad_norm": "Its name here is l2_norm_clip, an argument of the private optimizer.",
    "max_physical_batch_size": "Its name here is physical_batch_size.",
    "minimize": _OWN_LOOP,
    "module": "Pass the Keras model as the first argument.",
    "noise_multiplier": _OF_THE_OPTIMIZER,
    "num_microbatches": _OF_THE_OPTIMIZER,
    "optimizer": "Pass it to model.compile.",
    "poisson_sampling": "fit(x, y) draws Poisson lots; tfdp.data.make_lots has other schemes.",
    "target_delta": "Its name here is delta.",
    "target_epsilon": "Its name here is epsilon.",
    "unroll_microbatches": "Leave it out: per-example gradients are vectorized.",
    "use_xla": "Pass jit_compile=True to model.compile.",
}


def refuse_other(where: str, names: Iterable[str], error: type[Exception] = TypeError) -> None:
    """Raises `error` for the first name that another library has, with what to use instead.

    Args:
        where: the object or function that was asked for a member or given a keyword.
        names: members or keywords that it lacks; names in no library are left to the caller.
        error: class of the exception.
    """
    for name in names:
        if name in NAMES:
            raise error(f"{where} has no {name!r}. {NAMES[name]}")
