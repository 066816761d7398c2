"""Privacy accounting: the claimed and the proven epsilon of a training run.

This package uses NumPy, SciPy and dp_accounting only and never imports TensorFlow. Describe with a
`Run` what was executed, then compute its guarantee. Each public name is imported on first use.

Example:
    >>> from tfdp.accounting import describe, noise_for, proven
    >>> run = describe("dpsgd", num_examples=60000, lot_size=256, steps=3516,
    ...                sampling="poisson", noise_multiplier=1.1)
    >>> print(proven(run, delta=1e-5))
    proven epsilon: 1.13... at delta = 1e-05, for one record replaced by a record that contributes
    nothing (zero_out).
"""

from tfdp._lazy import importing

_PUBLIC = {
    "Run": "run",
    "describe": "described",
    "steps_for": "described",
    "Sampling": "sampling",
    "sampling_names": "sampling",
    "Contribution": "contribution",
    "Mechanism": "mechanisms",
    "Encoding": "encoding",
    "Strategy": "strategies",
    "strategy": "strategies",
    "Guarantee": "guarantee",
    "VACUOUS_ABOVE": "guarantee",
    "claimed": "composition",
    "proven": "composition",
    "claimed_composition": "composition",
    "proven_composition": "composition",
    "delta_warning": "guarantee",
    "register_mechanism": "mechanisms",
    "mechanism_names": "mechanisms",
    "noise_for": "calibration",
    "max_steps": "calibration",
    "epsilon_curve": "calibration",
    "CalibrationError": "calibration",
    "PrivacyBudget": "ledger",
    "BudgetExhausted": "ledger",
    "Ledger": "ledger",
    "LedgerError": "ledger",
    "statement": "statements",
    "Statement": "statements",
    "draw_trials": "search",
    "best_bands": "band_choice",
    "BandChoice": "band_choice",
    "compute_dp_sgd_privacy": "tensorflow_privacy",
    "compute_dp_sgd_privacy_statement": "tensorflow_privacy",
}

__all__ = [*_PUBLIC]
__getattr__, __dir__ = importing(__name__, _PUBLIC)
