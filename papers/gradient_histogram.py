"""Figure 1 of the encoding paper: the distribution of the entries of gradients.

The histogram is released without noise, so it has no guarantee. The training is not private either.
This is for public data only.
"""

import numpy as np
from scipy import stats

# The histogram reaches this many standard deviations to both sides, in bins of a tenth of a deviation.
_REACH, _BINS = 8.0, 160


def compute(*, examples: int, **settings) -> dict:
    """Trains without privacy, and measures the gradients of single training examples.

    Args:
        examples: Number of the first training examples, whose gradients are measured.
        settings: Settings of the training, as for `Experiment`. Lots are drawn anew each time.

    Returns:
        The result of `summary`, and "test_accuracy" in percent.
    """
    # These import Keras, which other commands of the catalogue do not need.
    from tfdp import data
    from tfdp.experiments import Experiment, run
    from tfdp.gradients import per_example_gradients

    experiment = Experiment(mechanism="none", sampling="shuffle", **settings)
    result = run(experiment, verbose=0)
    found = data.load(experiment.dataset, train_split=experiment.train_split)
    some = found.x_train[:examples], found.y_train[:examples]
    parts = per_example_gradients(result.model, *some)
    entries = np.concatenate([np.ravel(part) for part in parts])
    return summary(entries) | {"test_accuracy": 100 * result.test_accuracy}


def summary(entries: np.ndarray) -> dict:
    """Returns the histogram of numbers, and figures that compare them with the fitted Gaussian.

    Args:
        entries: Numbers, an array of any shape.

    Returns:
        A dictionary with "deviation", the standard deviation of the fitted Gaussian; "within_one", the
        percentage of entries within one deviation of the mean (68.27 for a Gaussian); "kurtosis", the
        excess kurtosis (0 for a Gaussian); "zeros", the percentage of entries that are exactly 0;
        "nonzero_within_one" and "nonzero_kurtosis", the same figures of all other entries; and "edges"
        and "density", the histogram over (entry - mean) / deviation.
    """
    entries = np.asarray(entries, float).reshape(-1)
    edges = np.linspace(-_REACH, _REACH, _BINS + 1)
    counts, _ = np.histogram(stats.zscore(entries), edges)
    density = counts / len(entries) / np.diff(edges)
    return {
        "deviation": float(entries.std()),
        "zeros": 100 * float(np.mean(entries == 0)),
        "edges": [float(f"{edge:.6g}") for edge in edges],
        "density": [float(f"{value:.6g}") for value in density],
        **_shape(entries),
        **{f"nonzero_{name}": value for name, value in _shape(entries[entries != 0]).items()},
    }


def _shape(entries) -> dict:
    within = 100 * float(np.mean(np.abs(stats.zscore(entries)) <= 1))
    return {"within_one": within, "kurtosis": float(stats.kurtosis(entries))}
