"""Early stopping: which examples decide, when training ends, and what is said of them."""

import numpy as np
import pytest

from tests.experiments.test_resume import Crash, settings, train
from tfdp import data
from tfdp.accounting import proven
from tfdp.experiments import Experiment, run, validation
from tfdp.experiments.report import card
from tfdp.experiments.validation import hold_out, over, parted

SMALL = {
    "mechanism": "dpsgd",
    "model": "linear",
    "batch_size": 256,
    "noise_multiplier": 4.0,
    "seed": 1,
}


def test_validation_examples_are_neither_trained_on_nor_tested():
    digits = data.load("digits")
    experiment = Experiment(**SMALL, validation_split=0.25)
    kept, held = hold_out(digits, experiment)
    own, (x, y) = parted(kept, held)
    assert held == len(y) == 359 and len(own.y_train) == 1437 - 359
    np.testing.assert_array_equal(own.x_test, digits.x_test)
    np.testing.assert_array_equal(own.y_test, digits.y_test)
    rows = np.concatenate([own.x_train, x]).reshape(1437, -1)
    every = digits.x_train.reshape(1437, -1)
    np.testing.assert_array_equal(rows[np.lexsort(rows.T)], every[np.lexsort(every.T)])
    again, _ = hold_out(digits, experiment)
    np.testing.assert_array_equal(again.y_train, kept.y_train)


@pytest.mark.parametrize(
    ("accuracies", "patience", "ends"),
    [
        ([0.1, 0.2, 0.3], 2, False),
        ([0.1, 0.3, 0.2], 2, False),
        ([0.1, 0.3, 0.2, 0.3], 2, True),
        ([0.3, 0.2], 1, True),
        ([], 1, False),
    ],
)
def test_when_training_ends(accuracies, patience, ends):
    epochs = {i: {"validation_accuracy": a} for i, a in enumerate(accuracies)}
    assert over(epochs, patience) == ends


def stopped(**changes):
    # At such a noise the accuracy moves at random, so it ends soon.
    return Experiment(
        **SMALL | {"noise_multiplier": 50.0, "epochs": 40.5, "validation_split": 0.3, "patience": 2},
        **changes,
    )  # fmt: skip


def test_training_ends_and_the_statement_counts_the_steps_that_were_planned():
    result = run(stopped(), verbose=0)
    seen = result.history["validation_accuracy"]
    assert len(seen) < 40 and len(seen) - 1 - int(np.argmax(seen)) == 2
    # Three lots of 256 in an epoch of 1,006 examples; what the weights showed chose the end.
    assert int(result.model.optimizer.iterations.numpy()) == 3 * len(seen)
    assert result.run.num_examples == 1006 and result.run.steps == round(40.5 * 3)
    assert result.statement.proven.epsilon == proven(result.run, result.experiment.delta).epsilon
    (said,) = [note for note in result.notes if "validation" in note]
    assert "431 validation examples" in said and "NO guarantee" in said
    assert f"stopped after epoch {len(seen)}, and all planned steps are counted" in said
    assert said in card(result)


def test_it_ends_without_privacy_too():
    result = run(
        Experiment(
            mechanism="none", model="linear", learning_rate=1e-9, epochs=60.5, validation_split=0.3,
            patience=2, seed=1,
        ),
        verbose=0,
    )  # fmt: skip
    seen = result.history["validation_accuracy"]
    assert len(seen) < 60 and len(seen) - 1 - int(np.argmax(seen)) == 2


@pytest.mark.parametrize("mechanism", ["dpsgd", "none"])
def test_a_training_that_goes_on_counts_the_epochs_before_the_crash(tmp_path, mechanism):
    noise = {"noise_multiplier": 4.0} if mechanism == "dpsgd" else {}
    of = settings(mechanism, validation_split=0.3, patience=10, **noise)
    # Epochs have two steps of 479 out of 1,006 examples; the crash is in the third of four.
    with pytest.raises(Crash):
        train(tmp_path / "r", of, crash_after=5)
    asked = []
    with pytest.MonkeyPatch.context() as patch:

        def noted(epochs, patience):
            asked.append(sorted(epochs))
            return len(epochs) == 3

        patch.setattr(validation, "over", noted)
        result = train(tmp_path / "r", of)
    # The end of the epoch whose last step had the last state may be lost, and its measurement with it.
    assert result.restarts == 1 and asked[-1] in ([0, 1, 2], [0, 2, 3])
    assert result.run.steps <= 8 and len(result.history["validation_accuracy"]) == 3


@pytest.mark.parametrize("mechanism", ["dpsgd", "none"])
def test_a_crash_in_the_end_of_an_epoch_moves_the_end_by_a_step_at_most(tmp_path, mechanism):
    """The state of the epoch's last step is written, and its accuracy is not measured yet."""
    noise = {"noise_multiplier": 4.0} if mechanism == "dpsgd" else {}
    of = settings(mechanism, validation_split=0.3, patience=1, **noise)
    measured = validation.ValidationStop.on_epoch_end
    with pytest.MonkeyPatch.context() as patch:
        # The accuracy of each epoch is below that before; so the second epoch ends the training.
        values = iter([0.5, 0.4, 0.3, 0.2])
        patch.setattr(validation, "accuracy_of", lambda *arguments: next(values))

        def dies(self, epoch, logs=None):
            if epoch == 1:
                raise Crash
            measured(self, epoch, logs)

        with patch.context() as once:
            once.setattr(validation.ValidationStop, "on_epoch_end", dies)
            with pytest.raises(Crash):
                train(tmp_path / "r", of, every=1)
        result = train(tmp_path / "r", of, every=1)
    assert result.history["validation_accuracy"][:2] == [0.5, 0.4]
    # Two epochs of two steps, and one step; with privacy, all of the plan is counted.
    assert int(result.model.optimizer.iterations.numpy()) == 5
    assert result.run.steps == (8 if mechanism == "dpsgd" else 5)
    if mechanism == "dpsgd":
        assert [run.steps for run in result.model.privacy.ledger.runs] == [8]
    assert any("stopped after epoch 3" in note for note in result.notes)


@pytest.mark.parametrize("mechanism", ["dpsgd", "matrix"])
@pytest.mark.parametrize("after", [1, 3, 4, 5])
def test_a_kill_before_a_state_that_knows_an_epoch(tmp_path, monkeypatch, mechanism, after):
    """Only the first state is there, so that nobody knows the loss of the epochs that are lost."""
    monkeypatch.setattr("tfdp.training.backup._AHEAD", 0.0)  # steps are reserved one by one
    monkeypatch.setattr("tfdp.training.backup._SHARE", float("inf"))
    of = settings(mechanism, validation_split=0.3, patience=10)
    with pytest.raises(Crash):
        train(tmp_path / "r", of, crash_after=after, kill=True, every=1000)
    result = train(tmp_path / "r", of, every=1000)
    assert result.run.steps == 8
    assert {len(values) for values in result.history.values()} <= {3, 4}
    assert result.lost_steps == after


def test_an_end_that_is_decided_in_the_middle_of_an_epoch(tmp_path):
    """A kill has lost the decision, and the lost steps end within the next epoch."""
    of = settings(validation_split=0.3, patience=1)
    with pytest.raises(Crash):
        train(tmp_path / "r", of, crash_after=3, every=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation, "over", lambda epochs, patience: bool(epochs))
        result = train(tmp_path / "r", of, every=1)
    assert result.run.steps == 8


def test_settings():
    with pytest.raises(ValueError, match="--patience with --validation_split only"):
        Experiment(**SMALL, patience=5)
    with pytest.raises(ValueError, match="leave an example for each part"):
        run(Experiment(**SMALL, validation_split=1e-9), verbose=0)
