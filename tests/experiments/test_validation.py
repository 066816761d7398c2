"""Early stopping: which examples decide, when training ends, and what is counted."""

import numpy as np
import pytest

from tfdp import data
from tfdp.accounting import proven
from tfdp.experiments import Experiment, run
from tfdp.experiments.report import card
from tfdp.experiments.validation import hold_out

# At such a rate no epoch is better than the first. (A linear model begins with zeros.)
SMALL = {"model": "mlp", "batch_size": 256, "seed": 1, "learning_rate": 1e-9}


def test_validation_examples_are_neither_trained_on_nor_tested():
    digits = data.load("digits")
    experiment = Experiment(**SMALL, noise_multiplier=4.0, validation_split=0.25)
    kept = hold_out(digits, experiment)
    assert len(kept.y_validation) == 359 and len(kept.y_train) == 1437 - 359
    assert kept.x_test is digits.x_test and kept.y_test is digits.y_test
    rows = np.concatenate([kept.x_train, kept.x_validation]).reshape(1437, -1)
    every = digits.x_train.reshape(1437, -1)
    np.testing.assert_array_equal(rows[np.lexsort(rows.T)], every[np.lexsort(every.T)])
    again = hold_out(digits, experiment)  # as in a process that resumes
    np.testing.assert_array_equal(again.y_train, kept.y_train)


def test_training_ends_early_and_the_statement_counts_the_planned_steps():
    settings = {"noise_multiplier": 50.0, "epochs": 40.5, "validation_split": 0.3, "patience": 2}
    result = run(Experiment(**SMALL, **settings), verbose=0)
    assert len(result.history["val_accuracy"]) == 3
    # Three lots of 256 in an epoch of 1,006 examples.
    assert int(result.model.optimizer.iterations.numpy()) == 9
    assert result.run.sampling.num_examples == 1006 and result.run.steps == round(40.5 * 3)
    assert result.model.privacy.ledger.runs[-1].steps == result.run.steps
    assert result.statement.proven.epsilon == proven(result.run, result.experiment.delta).epsilon
    (said,) = [note for note in result.notes if "validation" in note]
    assert "431 validation examples" in said and "NO guarantee" in said
    assert "stopped after epoch 3" in said and said in card(result)


def test_it_ends_without_privacy_too():
    settings = {"mechanism": "none", "epochs": 40.5, "validation_split": 0.3, "patience": 2}
    result = run(Experiment(**SMALL, **settings), verbose=0)
    assert len(result.history["val_accuracy"]) == 3 and result.run.steps == 9


def test_settings_that_leave_nothing_are_refused():
    with pytest.raises(ValueError, match="--validation_split"):
        Experiment(**SMALL, noise_multiplier=4.0, patience=5)
    with pytest.raises(ValueError, match="--validation_split"):
        run(Experiment(**SMALL, noise_multiplier=4.0, validation_split=1e-9), verbose=0)
