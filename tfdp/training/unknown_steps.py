"""Finds training steps that an optimizer has counted and no ledger contains."""

import keras

from tfdp._compat.keras import layers_of
from tfdp.account import DECLARED, Account, known_steps
from tfdp.optimizers import DPKerasOptimizer


def enter_unknown_steps(model: keras.Model, account: Account, declared: bool = False) -> None:
    """Enters steps into the ledger that an optimizer has counted and no ledger contains.

    Nothing finite is proven for such weights, unless the user declares the data of the steps public.

    Args:
        model: A model. Optimizers of models inside it count, too.
        account: The account of its weights.
        declared: Whether the user declares that the steps so far were taken on public data.
    """
    for each in layers_of(model, itself=True):
        optimizer = getattr(each, "optimizer", None)
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            continue
        steps = int(optimizer.iterations.numpy())
        if isinstance(optimizer, DPKerasOptimizer):
            steps -= known_steps(account.ledger)
        if declared:
            vars(optimizer)[DECLARED] = steps
        if steps > vars(optimizer).get(DECLARED, 0):
            account.enter_unaccounted(
                f"Weights of '{each.name}' were trained for {steps} steps by the optimizer "
                f"{type(optimizer).__name__}, and no ledger accounts for them. If that was on "
                "public data, declare it: make_private(model, start='public')."
            )
