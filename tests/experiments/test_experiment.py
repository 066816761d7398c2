"""What an experiment reports about its training."""

import numpy as np
import pytest

from tfdp import data
from tfdp.experiments import Experiment, run


@pytest.mark.parametrize("privacy", [{"mechanism": "none"}, {"noise_multiplier": 1.0}])
def test_rows_that_pad_a_lot_do_not_count_in_the_training_accuracy(privacy):
    """A row of padding has zeros as inputs and as its label, and would be one more example."""
    settings = {"model": "mlp", "batch_size": 48, "epochs": 4, "learning_rate": 1e-9, "seed": 1}
    result = run(Experiment(**settings, **privacy), verbose=0)
    digits = data.load("digits")
    logits = result.model.predict(digits.x_train, verbose=0)
    expected = np.mean(logits.argmax(axis=1) == digits.y_train)
    # Some 5,570 rows are drawn, and 14% are right: five and a half standard deviations. As many rows
    # are padding; with them 7% would be right, or 57% where zeros are taken for a zero.
    assert np.mean(result.history["accuracy"]) == pytest.approx(expected, abs=0.026)
