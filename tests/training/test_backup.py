"""Trainings that are interrupted go on: in the same run, with nothing spent unseen."""

import os
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.rounding import assert_close
from tests.seeds import seed_keras
from tests.training.test_backup_folder import Killed, dying
from tfdp.accounting import Strategy, max_steps
from tfdp.training.backup_folder import BackupFolder
from tfdp.training.backup_state import setup_of
from tfdp.training.feed import feed_of

N, L, EPOCHS = 12, 4, 3
PER_EPOCH = N // L
STEPS = PER_EPOCH * EPOCHS


class Crash(Exception):
    pass


def data():
    """Examples whose gradients are all clipped and point the same way; the target is the row."""
    x = 1 + 0.01 * np.random.default_rng(0).normal(size=(N, 3))
    return x.astype("float32"), 1000 + np.arange(N, dtype="float32")


def options(**more):
    return {"l2_norm_clip": 1.0, "noise_multiplier": 2.0, "learning_rate": 0.1} | more


def dpsgd(**more):
    return tfdp.DPKerasSGDOptimizer(**options(momentum=0.9, **more))


def matrix(**more):
    strategy = Strategy(name="banded_toeplitz", coefficients=(1.0, 0.5, 0.25))
    return tfdp.MatrixDPSGDOptimizer(**options(strategy=strategy) | more)


MECHANISMS = {
    "dpsgd": dpsgd,
    "adam": lambda: tfdp.DPKerasAdamOptimizer(**options()),
    "adaptive": lambda: tfdp.DPKerasSGDOptimizer(**options(clipping="adaptive")),
    "si_dpsgd": lambda: tfdp.SIDPSGDOptimizer(**options(momentum=0.5)),
    "matrix": matrix,
    "dp_dropout": lambda: tfdp.DPDropoutOptimizer(**options()),
    "sgld": lambda: tfdp.SGLDOptimizer(**options(num_examples=N)),
    "discrete_sgd": lambda: tfdp.DiscreteSGDOptimizer(**options(noise="student_t", denoise=False)),
}
SAMPLINGS = {
    "poisson": {}, "cyclic": {}, "shuffle": {}, "fixed_size": {}, "with_replacement": {},
    "cyclic_poisson": {"groups": 3}, "random_allocation": {},
}  # fmt: skip
# Mechanisms that keep a state of their own; other pairs are slow. tests/data resumes every sampling.
QUICK = {
    "dpsgd": "fixed_size", "adaptive": "poisson", "si_dpsgd": "shuffle", "matrix": "cyclic_poisson",
}  # fmt: skip
PAIRS = [
    pytest.param(m, s, marks=[] if QUICK.get(m) == s else [pytest.mark.slow])
    for m in MECHANISMS
    for s in SAMPLINGS
    # Nothing is proven about correlated noise with these lots.
    if (m, s) not in {("matrix", "fixed_size"), ("matrix", "with_replacement")}
]


class Training:
    """A program that trains, and that is run again after a crash.

    Attributes:
        seen: for each execution of the program, the weights after its steps: {step: weights}.
        backup: the callback of the last execution.
    """

    def __init__(self, folder, make=dpsgd, sampling="cyclic", **more):
        self.folder, self.make, self.sampling = folder, make, sampling
        self.more, self.seen = {"save_freq": 1} | more, []

    def model(self, kind=keras.Sequential, **compiled):
        seed_keras(3)
        network = kind([keras.Input((3,)), keras.layers.Dense(1)])
        model = tfdp.make_private(network, engine="loop")
        model.compile(self.make(), "mse", **compiled)
        return model

    def lots(self):
        more = SAMPLINGS[self.sampling]
        return tfdp.data.make_lots(self.sampling, *data(), lot_size=L, **more)

    def run(self, stop=None, model=None, epochs=EPOCHS, lots=None, callbacks=()):
        """Trains; `stop` is called after each step with its number."""
        model = self.model() if model is None else model
        seen = {}

        def after(batch, logs):
            assert "loss" in logs
            steps = model.privacy.steps_taken
            seen[steps] = np.concatenate([w.ravel() for w in model.get_weights()])
            if stop is not None:
                stop(steps)

        self.seen.append(seen)
        self.backup = tfdp.callbacks.BackupAndRestore(self.folder, **self.more)
        hears = keras.callbacks.LambdaCallback(on_train_batch_end=after)
        model.fit(
            self.lots() if lots is None else lots,
            epochs=epochs,
            verbose=0,
            callbacks=[self.backup, hears, *callbacks],
        )
        return model

    def crash(self, after, **more):
        """Ends with an exception after a step, so that reserved steps are given back."""

        def stop(steps):
            if steps == after:
                raise Crash

        with pytest.raises(Crash):
            self.run(stop, **more)

    def kill(self, after, **more):
        """Resumes from the folder's content after a step, as if the process had been killed there.

        Returns the state in the folder, and the number of steps that were reserved.
        """
        killed = f"{self.folder}-{after}"

        def stop(steps):
            if steps == after:
                shutil.copytree(self.folder, killed, ignore=shutil.ignore_patterns("*.partial*"))
                raise Crash

        with pytest.raises(Crash):
            self.run(stop, **more)
        self.folder = killed
        folder = BackupFolder(killed)
        folder.enter()
        about, _, reserved = folder.read()
        folder.leave()
        return about, reserved


def entries(model):
    return [run.steps for run in model.privacy.ledger.runs]


@pytest.mark.parametrize(("mechanism", "sampling"), PAIRS)
def test_every_mechanism_goes_on(mechanism, sampling, tmp_path):
    training = Training(tmp_path / "b", MECHANISMS[mechanism], sampling)
    training.crash(4)
    model = training.run()
    assert entries(model) == [STEPS] == [int(model.optimizer.iterations.numpy())]
    assert model.privacy.ledger.runs[0].taken is None
    # Nothing is lost where a state follows each step and steps that were not begun are given back.
    assert [[*seen] for seen in training.seen] == [[*range(1, 5)], [*range(5, STEPS + 1)]]
    assert (training.backup.restarts, training.backup.lost_steps) == (1, 0)
    assert model.history.epoch == [*range(EPOCHS)]
    assert not (tmp_path / "b").exists()


def test_a_seeded_training_goes_on_with_the_same_numbers(tmp_path):
    """With noise from a seed, the weights are those of a training without a crash, bit by bit."""
    found, compiled = [], {"steps_per_execution": 2}
    for crashes in ((), (3,)):
        training = Training(tmp_path / str(len(crashes)), lambda: dpsgd(seed=1))
        for step in crashes:
            training.crash(step, model=training.model(**compiled))
        found.append(training.run(model=training.model(**compiled)))
    for one, other in zip(*(model.get_weights() for model in found), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_crash_before_the_second_state_takes_no_step_twice(tmp_path):
    # However slow the machine is, no second state is due by time.
    training = Training(tmp_path / "b", sampling="poisson", save_freq=None, seconds=1e6)
    training.crash(2)
    assert entries(training.run()) == [STEPS]
    assert training.backup.lost_steps == 2


SLOW = [pytest.param(s, marks=pytest.mark.slow) for s in ("cyclic", "random_allocation")]


@pytest.mark.parametrize("sampling", ["shuffle", "cyclic_poisson", *SLOW])
def test_no_example_takes_part_twice_in_an_epoch(sampling, tmp_path):
    lots = []

    class Sees(keras.Sequential):
        """Is told of the examples of each lot."""

        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            lots.append(sorted(int(each) - 1000 for each in np.ravel(y)))
            return super().compute_metrics(x, y, y_pred, sample_weight)

    training = Training(tmp_path / "b", sampling=sampling, save_freq=3)
    training.kill(4, model=training.model(Sees, run_eagerly=True))
    training.run(model=training.model(Sees, run_eagerly=True))
    taken = [step for seen in training.seen for step in seen]
    assert len(taken) == len(lots)
    epochs = {}
    for step, rows in zip(taken, lots, strict=True):
        epochs.setdefault((step - 1) // PER_EPOCH, []).extend(rows)
        if sampling == "cyclic":
            first = (step - 1) % PER_EPOCH * L
            assert rows == [*range(first, first + L)]
        if sampling == "cyclic_poisson":  # whole groups, which take turns
            assert rows == [*range((step - 1) % PER_EPOCH, N, PER_EPOCH)]
    for rows in epochs.values():
        assert len(rows) == len(set(rows))
    assert len(epochs) == EPOCHS and sorted(epochs[0]) == [*range(N)]


def test_steps_that_are_lost_stay_counted_and_correlated_noise_goes_on_behind_them(tmp_path):
    """Every step has the noise that a training without a crash has there."""
    make = lambda: matrix(l2_norm_clip=1e-6, noise_multiplier=1e6, seed=5)  # noqa: E731
    whole, training = Training(tmp_path / "a", make), Training(tmp_path / "b", make, save_freq=2)
    whole.run()
    about, reserved = training.kill(5)
    assert 2 <= about["steps"] < 5 <= reserved
    model = training.run()
    assert [*training.seen[1]] == [*range(reserved + 1, STEPS + 1)]
    assert training.backup.lost_steps == reserved - about["steps"]
    assert entries(model) == [STEPS]
    (all_steps,), (_, resumed) = whole.seen, training.seen
    moved = [np.diff([seen[step] for step in resumed], axis=0) for seen in (all_steps, resumed)]
    assert len(moved[1]) >= 1
    largest = max(np.max(np.abs(seen)) for seen in all_steps.values())
    assert_close(moved[1], moved[0], len(all_steps), largest)


@pytest.mark.parametrize("lost", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_means_go_on_without_velocity_behind_lost_steps(lost, tmp_path):
    make = lambda: tfdp.SIDPSGDOptimizer(**options(momentum=0.5, noise_multiplier=0.0))  # noqa: E731
    training = Training(tmp_path / "b", make, save_freq=2 if lost else 1)
    if lost:
        about, _ = training.kill(5)
        kept = about["steps"]
    else:
        training.crash(kept := 5)
    training.run()
    before, first = training.seen[0][kept], next(iter(training.seen[1].values()))
    # All gradients are clipped and point the same way; momentum nearly doubles the steps.
    assert np.linalg.norm(first - before) / 0.1 == pytest.approx(1 if lost else 2, abs=0.1)


def test_a_full_disk_loses_no_count(tmp_path, monkeypatch):
    """States cannot be written any more; reservations can, since their field is there."""
    original = BackupFolder.write

    def full(self, about, arrays):
        if about["steps"]:
            raise OSError(28, "No space left on device")
        original(self, about, arrays)

    training = Training(tmp_path / "b")
    with monkeypatch.context() as patch:
        patch.setattr(BackupFolder, "write", full)
        about, reserved = training.kill(4)
    assert about["steps"] == 0 and reserved >= 4
    assert entries(training.run()) == [STEPS] and min(training.seen[1]) > 4


def test_no_step_beyond_the_budget_is_reserved(tmp_path):
    training = Training(tmp_path / "b", save_freq=None)
    model = training.model()
    model.privacy.budget = tfdp.PrivacyBudget(4.0, 1e-3)
    _, reserved = training.kill(6, model=model, epochs=1000)
    (run,) = model.privacy.ledger.runs
    assert 6 <= reserved <= max_steps(4.0, 1e-3, run) < 100


def test_a_kill_between_file_operations(tmp_path):
    check_kill_between_file_operations(tmp_path, 14, "dpsgd")


def check_kill_between_file_operations(folder, number, mechanism):
    """Returns whether the training died at that operation; it goes on and is counted all the same."""
    training, died = Training(folder / "b", MECHANISMS[mechanism], "shuffle", save_freq=3), False
    with dying(training.folder, number):
        try:
            training.run()
        except Killed:
            died = True
    if not died or (training.seen[0] and not (training.folder / "state").exists()):
        return died  # it had ended
    model = training.run()
    assert entries(model) == [STEPS] == [int(model.optimizer.iterations.numpy())]
    steps = [n for seen in training.seen for n in seen]
    assert steps == sorted(set(steps))
    return True


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_kill_between_any_two_file_operations(mechanism, tmp_path):
    # Every third operation, from another one for each mechanism.
    number = 1 + [*MECHANISMS].index(mechanism) % 3
    while check_kill_between_file_operations(tmp_path / str(number), number, mechanism):
        number += 3
    assert number > 30


# -- which trainings go on ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """The folder of a training that was interrupted after step 5."""
    folder = tmp_path_factory.mktemp("interrupted") / "b"
    Training(folder).crash(5)
    return folder


def reversed_lots(training):
    x, y = data()
    return {"lots": tfdp.data.make_lots("cyclic", x[::-1], y, lot_size=L)}


# What differs, in the words of the refusal.
NAMES = {"noise": "noise_multiplier", "sampling": "sampling", "data": "examples"}
OTHERS = {
    "noise": {"make": lambda: dpsgd(noise_multiplier=3.0)},
    "update rule": {"make": lambda: tfdp.optimizers.DPKerasLionOptimizer(**options())},
    "mechanism": {"make": lambda: tfdp.SIDPSGDOptimizer(**options(momentum=0.9))},
    "sampling": {"sampling": "poisson"},
}


@pytest.mark.parametrize("other", [*OTHERS, "data"])
def test_another_training_does_not_go_on(other, interrupted):
    training = Training(interrupted, **OTHERS.get(other, {}))
    more = reversed_lots(training) if other == "data" else {}
    with pytest.raises(ValueError, match=NAMES.get(other, "optimizer")):
        training.run(**more)
    assert training.seen == [{}]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_examples_and_their_order_matter_where_they_have_places(sampling, tmp_path):
    training = Training(tmp_path, sampling=sampling)
    model, feed = training.model(), feed_of(training.lots())
    model.optimizer.build(model.trainable_variables)
    independent = ("poisson", "fixed_size", "with_replacement")
    assert (setup_of(model, feed)["examples"] is None) == (sampling in independent)
    assert feed.needs_order == (sampling in ("shuffle", "random_allocation"))


def test_a_training_goes_on_after_others_were_refused(interrupted, tmp_path):
    shutil.copytree(interrupted, tmp_path / "b")
    with pytest.raises(ValueError):
        Training(tmp_path / "b", sampling="poisson").run()
    assert entries(Training(tmp_path / "b").run()) == [STEPS]


@pytest.mark.parametrize("damage", ["cut", "emptied", "changed", "open to others"])
def test_damaged_backups_are_refused(damage, tmp_path, interrupted):
    shutil.copytree(interrupted, tmp_path / "b")
    state = tmp_path / "b" / ("steps" if damage == "changed" else "state")
    content = bytearray(state.read_bytes())
    if damage == "open to others":
        (tmp_path / "b").chmod(0o755)
    content[33] ^= damage == "changed"  # the number of reserved steps
    state.write_bytes({"cut": content[:-100], "emptied": b""}.get(damage, content))
    with pytest.raises(ValueError):
        Training(tmp_path / "b").run()


def test_a_second_fit_with_the_same_folder_begins_anew(tmp_path):
    training = Training(tmp_path / "b")
    model = training.run()
    training.run(model=model)
    assert sum(entries(model)) == 2 * STEPS


def test_the_state_of_a_finished_training_can_be_kept(tmp_path):
    class Halves(keras.callbacks.Callback):
        """Changes the weights behind the backup, as EarlyStopping does that restores the best."""

        def on_train_end(self, logs=None):
            for variable in self.model.trainable_variables:
                variable.assign(0.5 * variable)

    training = Training(tmp_path / "b", sampling="poisson", delete_checkpoint=False)
    first = training.run(callbacks=[Halves()])
    again = training.run()
    assert entries(again)[0] == STEPS and not training.seen[1]
    for one, other in zip(first.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    for model in (first, again):  # two trainings from one state are not one of so many steps
        model.fit(training.lots(), verbose=0)
    first.privacy.ledger.merge(again.privacy.ledger)
    assert sorted(entries(first)) == [PER_EPOCH, PER_EPOCH, STEPS]


@pytest.mark.slow
def test_a_run_whose_state_is_left_goes_on_from_there_only(tmp_path):
    """Steps that nobody reserves are another run, so no two trainings go on from one state."""
    training = Training(tmp_path / "b", matrix)
    model = training.model()
    training.crash(5, model=model)
    model.fit(training.lots(), epochs=1, verbose=0)
    assert sorted(entries(model)) == [PER_EPOCH, STEPS]
    assert entries(training.run()) == [STEPS]


def test_steps_that_an_earlier_process_planned_count(interrupted, tmp_path):
    training = Training(shutil.copytree(interrupted, tmp_path / "b"))
    model = training.run(epochs=2)
    assert model.privacy.steps_taken == 2 * PER_EPOCH and entries(model) == [STEPS]


@pytest.mark.slow
def test_a_training_that_goes_on_in_its_process_counts_planned_steps_once(tmp_path):
    training = Training(tmp_path / "b")
    model = training.model()
    for step in (2, 5):
        training.crash(step, model=model)
        assert entries(model) == [STEPS]
    assert entries(training.run(model=model)) == [STEPS]


@pytest.mark.slow
def test_epochs_may_be_shorter_when_a_training_goes_on(tmp_path):
    training = Training(tmp_path / "b", sampling="poisson")
    training.crash(2)
    model, backup = training.model(), tfdp.callbacks.BackupAndRestore(training.folder)
    model.fit(training.lots(), epochs=3, steps_per_epoch=2, verbose=0, callbacks=[backup])
    assert model.privacy.steps_taken == 2 + 2 * 2 and entries(model) == [STEPS]


@pytest.mark.slow
def test_user_batches_go_on_behind_those_that_were_taken(tmp_path):
    def batches():
        return tf.data.Dataset.from_tensor_slices(data()).batch(L)

    training = Training(tmp_path / "b")
    training.crash(4, lots=batches())
    assert entries(training.run(lots=batches())) == [STEPS]
    assert [*training.seen[1]] == [*range(5, STEPS + 1)]


def test_two_backups_or_a_plain_model_are_refused(tmp_path):
    training = Training(tmp_path / "a")
    with pytest.raises(ValueError, match="at most one"):
        training.run(callbacks=[tfdp.callbacks.BackupAndRestore(tmp_path / "b")])
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="make_private"):
        training.run(model=model, lots=tf.data.Dataset.from_tensor_slices(data()).batch(L))
    assert os.listdir(tmp_path) == []
