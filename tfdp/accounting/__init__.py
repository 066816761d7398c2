"""Privacy accounting without a model: epsilon for a planned training, and the noise for a budget.

Describe the training as a `Run`, with `describe`. Then `proven` and `claimed` compute its guarantee,
`noise_for` and `max_steps` the noise and the steps that a budget allows. For a model that tfdp trains,
`model.privacy` does this.

The package needs NumPy, SciPy and dp_accounting and never imports TensorFlow. Each public name is
imported on first use.

Example:
    >>> from tfdp.accounting import describe, noise_for, proven
    >>> run = describe("dpsgd", num_examples=60000, lot_size=256, steps=3516,
    ...                sampling="poisson", noise_multiplier=1.1)
    >>> print(proven(run, delta=1e-5))
    proven epsilon: 1.13... at delta = 1e-05, for one record replaced by a record that contributes
    nothing (zero_out).
"""

from typing import TYPE_CHECKING

from tfdp._lazy import importing

if TYPE_CHECKING:
    from tfdp.accounting.band_choice import BandChoice as BandChoice
    from tfdp.accounting.band_choice import best_bands as best_bands
    from tfdp.accounting.calibration import CalibrationError as CalibrationError
    from tfdp.accounting.calibration import epsilon_curve as epsilon_curve
    from tfdp.accounting.calibration import max_steps as max_steps
    from tfdp.accounting.calibration import noise_for as noise_for
    from tfdp.accounting.composition import claimed as claimed
    from tfdp.accounting.composition import proven as proven
    from tfdp.accounting.contribution import Contribution as Contribution
    from tfdp.accounting.described import describe as describe
    from tfdp.accounting.described import steps_for as steps_for
    from tfdp.accounting.encoding import Encoding as Encoding
    from tfdp.accounting.guarantee import VACUOUS_ABOVE as VACUOUS_ABOVE
    from tfdp.accounting.guarantee import Guarantee as Guarantee
    from tfdp.accounting.guarantee import delta_warning as delta_warning
    from tfdp.accounting.ledger import BudgetExhausted as BudgetExhausted
    from tfdp.accounting.ledger import Ledger as Ledger
    from tfdp.accounting.ledger import LedgerError as LedgerError
    from tfdp.accounting.ledger import PrivacyBudget as PrivacyBudget
    from tfdp.accounting.mechanisms import Mechanism as Mechanism
    from tfdp.accounting.mechanisms import mechanism_names as mechanism_names
    from tfdp.accounting.mechanisms import register_mechanism as register_mechanism
    from tfdp.accounting.run import Run as Run
    from tfdp.accounting.sampling import Sampling as Sampling
    from tfdp.accounting.sampling import sampling_names as sampling_names
    from tfdp.accounting.search import draw_trials as draw_trials
    from tfdp.accounting.statements import Statement as Statement
    from tfdp.accounting.strategies import Strategy as Strategy
    from tfdp.accounting.strategies import strategy as strategy
    from tfdp.accounting.tensorflow_privacy import compute_dp_sgd_privacy as compute_dp_sgd_privacy
    from tfdp.accounting.tensorflow_privacy import (
        compute_dp_sgd_privacy_statement as compute_dp_sgd_privacy_statement,
    )
else:
    __getattr__, __dir__, __all__ = importing(__name__)
