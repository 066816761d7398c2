"""Experiments: from settings to a trained model, its test accuracy and its two guarantees.

This is `train.py` in Python: for the models, data sets and mechanisms that it knows by name. For your
own model, use `tfdp.make_private`.

Example:
    >>> from tfdp.experiments import Experiment, run
    >>> experiment = Experiment(
    ...     mechanism="dpsgd", model="linear", sampling="cyclic", batch_size=479,
    ...     steps=3, noise_multiplier=4.0, seed=1)
    >>> result = run(experiment, verbose=0)
    >>> print(f"{result.proven.epsilon:.3f}")
    0.926
    >>> result.test_accuracy > 0.3
    True
"""

from typing import TYPE_CHECKING

from tfdp._lazy import importing

if TYPE_CHECKING:
    from tfdp.experiments.audited import attack_experiment as attack_experiment
    from tfdp.experiments.audited import audit_experiment as audit_experiment
    from tfdp.experiments.experiment import run as run
    from tfdp.experiments.run_folder import RunFolder as RunFolder
    from tfdp.experiments.run_folder import read_record as read_record
    from tfdp.experiments.saving import run_into as run_into
    from tfdp.experiments.settings import Experiment as Experiment
else:
    __getattr__, __dir__, __all__ = importing(__name__)
