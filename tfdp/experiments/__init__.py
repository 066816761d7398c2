"""Experiments: from settings to a trained model, its test accuracy and its two guarantees.

A name is imported when it is first used, so that settings and flags load without TensorFlow.

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

from tfdp._lazy import importing

_PUBLIC = {
    "Experiment": "settings",
    "run": "experiment",
    "run_into": "saving",
    "attack_experiment": "audited",
    "audit_experiment": "audited",
    "RunFolder": "run_folder",
    "read_record": "run_folder",
}

__all__ = [*_PUBLIC]
__getattr__, __dir__ = importing(__name__, _PUBLIC)
