"""Steps that an optimizer has counted on a model's weights, and that no ledger contains."""

import keras

from tfdp._compat.keras import layers_of
from tfdp.account import DECLARED, Account, known_steps
from tfdp.optimizers import DPKerasOptimizer


def enter_unknown_steps(model: keras.Model, account: Account, declared: bool = False) -> None:
    """Enters steps on a model's weights that an optimizer has counted and no ledger contains.

    The optimizers of models inside it count, too. `declared`: the user declares public data.
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
                "public data, say so: make_private(model, start='public')."
            )
