"""train.py goes on with a training that was interrupted or killed."""

import errno
import json
import os
import signal
import subprocess
import sys

import pytest

from tests.experiments.result_helpers import ROOT, names
from tfdp.experiments import Experiment, ResultError, ResultFolder, experiment, run_into
from tfdp.experiments.checkpoints import parts
from tfdp.experiments.parsing import checkpoint_every
from tfdp.training.backup_folder import BackupFolder

L, N = 479, 1437  # three steps an epoch
STEPS = 8  # two epochs and two steps


class Crash(Exception):
    pass


def settings(mechanism="dpsgd", **more):
    fields = {
        "matrix": {"sampling": "cyclic", "optimizer": "sgd"},
        "si_dpsgd": {"sampling": "cyclic", "learning_rate": 0.05, "release": "theta"},
        "none": {"sampling": "shuffle"},
    }.get(mechanism, {})
    more = {"seed": 1, **fields, **more}
    if mechanism != "none":
        more.setdefault("noise_multiplier", 4.0)
    return Experiment(mechanism=mechanism, model="linear", batch_size=L, steps=STEPS, **more)


def train(folder, of, crash_after=None, kill=False, every=2, monkeypatch=None, **options):
    """Runs an experiment, which fails after so many steps; with `kill`, it can tell nobody."""
    with pytest.MonkeyPatch.context() as patch:
        done = [0]

        def after(self, batch, logs=None):
            done[0] += 1
            if done[0] == crash_after:
                if kill:
                    patch.setattr(BackupFolder, "reserve", lambda *a, **k: None)
                raise Crash

        patch.setattr(experiment._StepTimes, "on_train_batch_end", after)
        with ResultFolder(folder, **options) as opened:
            return run_into(opened, of, verbose=0, checkpoint_steps=every)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The record of a training without a crash, by mechanism."""
    found = {}

    def record(mechanism):
        if mechanism not in found:
            folder = tmp_path_factory.mktemp("whole") / "r"
            train(folder, settings(mechanism))
            found[mechanism] = read(folder)
        return found[mechanism]

    return record


def read(folder):
    return json.loads((folder / "run.json").read_text())


@pytest.mark.parametrize("mechanism", ["dpsgd", "matrix", "si_dpsgd", "none"])
@pytest.mark.parametrize("crashes", [(1,), (4, 1), (6,), (7, 1)])
def test_a_crash_in_any_part_of_a_training_changes_no_statement(
    tmp_path, whole, mechanism, crashes
):
    for after in crashes:
        with pytest.raises(Crash):
            train(tmp_path / "r", settings(mechanism), after)
    result = train(tmp_path / "r", settings(mechanism))
    record, before = read(tmp_path / "r"), whole(mechanism)
    assert names(tmp_path) == ["r"]
    for key in ("steps", "proven", "claimed", "statement", "settings", "noise_multiplier"):
        assert record[key] == before[key], key
    assert record["training"].pop("id") != before["training"]["id"]
    assert record["training"]["restarts"] == len(crashes)
    # At most the steps since the last state, and none where they are simply taken again.
    assert record["training"]["lost_steps"] <= 2 * len(crashes) * (mechanism != "none")
    # An epoch whose end was lost has no line.
    assert all(3 - len(crashes) <= len(values) <= 3 for values in result.history.values())
    assert "- Interrupted: " in (tmp_path / "r" / "model_card.md").read_text()
    assert record["test_accuracy"] > 0.3
    # All processes have written into one log.
    assert mechanism == "none" or len(names(tmp_path / "r" / "tensorboard")) > len(crashes)


@pytest.mark.parametrize("after", [3, 7])
def test_steps_that_a_kill_loses_are_counted_and_told(tmp_path, whole, after):
    with pytest.raises(Crash):
        train(tmp_path / "r", settings(), after, kill=True)
    train(tmp_path / "r", settings())
    record = read(tmp_path / "r")
    # The state of the even step is the last, and steps are reserved up to the end of a fit.
    assert 1 <= record["training"]["lost_steps"] <= {3: 4, 7: 2}[after]
    assert record["steps"] == STEPS and record["proven"] == whole("dpsgd")["proven"]
    card = (tmp_path / "r" / "model_card.md").read_text()
    assert "once; " in card and "counted and not in the weights" in card


def test_a_training_that_has_ended_only_writes_its_result(tmp_path, monkeypatch):
    """The disk was full at the end: the trained model is not lost."""

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.keras")

    with monkeypatch.context() as patch:
        patch.setattr("tfdp.experiments.saving.export", full)
        with pytest.raises(ResultError, match="run the same command again: it goes on from there"):
            train(tmp_path / "r", settings())
    train(tmp_path / "r", settings(), crash_after=1)  # which would crash in its first step
    assert read(tmp_path / "r")["steps"] == STEPS


def test_a_full_disk_at_the_first_state_is_a_sentence(tmp_path, monkeypatch):
    def full(self, *arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    monkeypatch.setattr(BackupFolder, "write", full)
    with pytest.raises(ResultError, match=r"state of the training.*No space left"):
        train(tmp_path / "r", settings())
    assert names(tmp_path) == []


def test_a_training_that_diverged_is_not_gone_on_with(tmp_path, monkeypatch):
    def diverged(model, x, when):
        if when.startswith("after"):
            raise FloatingPointError

    monkeypatch.setattr(experiment, "_check_finite", diverged)
    with pytest.raises(FloatingPointError):
        train(tmp_path / "r", settings())
    assert names(tmp_path) == []


def test_an_edited_state_is_refused(tmp_path):
    with pytest.raises(Crash):
        train(tmp_path / "r", settings(), 4)
    path = tmp_path / "r.secret" / "backup" / "state.npz"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="SHA-256"):
        train(tmp_path / "r", settings())
    with pytest.raises(ValueError, match="SHA-256"):
        train(tmp_path / "r", settings())  # it stays refused
    train(tmp_path / "r", settings(), resume=False)
    assert read(tmp_path / "r")["training"]["restarts"] == 0


def test_the_state_of_another_training_is_refused(tmp_path):
    """Whoever moves a state under the settings of another training does not get its epsilon."""
    for name, of in (("a", settings()), ("b", settings(noise_multiplier=2.0))):
        with pytest.raises(Crash):
            train(tmp_path / name, of, 4)
    state = tmp_path / "a.secret" / "backup"
    state.rename(tmp_path / "a.secret" / "aside")
    (tmp_path / "b.secret" / "backup").rename(state)
    with pytest.raises(ValueError, match="somebody has moved it"):
        train(tmp_path / "a", settings())


@pytest.mark.parametrize("mechanism", ["dpsgd", "si_dpsgd", "none"])
def test_a_disk_that_is_full_for_a_while_loses_no_step(tmp_path, mechanism):
    """Between the two fits of a training, too: the weights in memory go on."""

    def full(self, about, arrays):
        if about["steps"] and about["steps"] < STEPS:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        written(self, about, arrays)

    written = BackupFolder.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BackupFolder, "write", full)
        result = train(tmp_path / "r", settings(mechanism))
    assert (result.restarts, result.lost_steps) == (0, 0)
    assert read(tmp_path / "r")["steps"] == STEPS


def test_noise_is_not_gone_on_with_unless_its_key_is_kept(tmp_path):
    def full(self, about, arrays):
        if about["steps"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        written(self, about, arrays)

    written = BackupFolder.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BackupFolder, "write", full)
        with pytest.raises(ResultError, match="run the same command again"):
            train(tmp_path / "r", settings("matrix"))
    train(tmp_path / "r", settings("matrix"))
    assert read(tmp_path / "r")["training"]["lost_steps"] == 6


def test_time_is_that_of_all_processes(tmp_path):
    with pytest.raises(Crash):
        train(tmp_path / "r", settings(), 7)
    result = train(tmp_path / "r", settings())
    assert result.seconds > 0.1  # of the first process, which traced


def test_a_training_with_a_seed_for_its_noise_does_not_go_on_without(tmp_path):
    with pytest.raises(Crash):
        train(tmp_path / "r", settings(insecure_seed=1), 4)
    with pytest.raises(ResultError, match=r"--insecure_seed=True\. Found --insecure_seed=False"):
        train(tmp_path / "r", settings())


@pytest.mark.parametrize("behind", range(26))
def test_parts_add_up(behind):
    taken = behind
    for first, epochs, length in parts(25, 10, behind):
        assert first == taken // 10
        taken += epochs * length
    assert taken == 25


@pytest.mark.parametrize("text", ["0", "", "30 minutes", "-5s", "1.5"])
def test_how_often_is_a_time_or_a_number_of_steps(text):
    with pytest.raises(ValueError, match="--checkpoint_every"):
        checkpoint_every(text)


def test_times_and_steps_are_told_apart():
    assert checkpoint_every("500") == {"checkpoint_steps": 500, "checkpoint_seconds": 0.0}
    assert checkpoint_every("1.5m") == {"checkpoint_steps": None, "checkpoint_seconds": 90.0}


# -- the command -----------------------------------------------------------------------------------


def command(folder, mechanism, steps=30_000):
    return [
        sys.executable, str(ROOT / "train.py"), f"--mechanism={mechanism}", "--model=linear",
        f"--steps={steps}", "--batch_size=64", "--checkpoint_every=1s", f"--model_dir={folder}",
    ]  # fmt: skip


QUIET = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}


def stop(words, number):
    """Starts a command, and sends a signal after its third epoch; returns status, output and errors."""
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=QUIET
    ) as process:
        epochs = 0
        for line in process.stdout:
            epochs += "loss: " in line
            if epochs == 3:
                process.send_signal(number)
                break
        out, errors = process.communicate(timeout=120)
    return process.returncode, out, errors


@pytest.mark.parametrize(
    ("mechanism", "number", "status", "word"),
    [
        ("dpsgd", signal.SIGINT, 130, "interrupted"),
        ("none", signal.SIGTERM, 143, "terminated"),
    ],
)
def test_an_interruption_is_one_line_and_the_same_command_goes_on(
    tmp_path, mechanism, number, status, word
):
    words = command(tmp_path / "r", mechanism)
    code, _, errors = stop(words, number)
    assert code == status
    said = errors.strip().splitlines()
    assert len(said) == 1, errors
    assert said[0].startswith(f"train.py: {word}. Stopped after step ")
    assert " of 30,000" in said[0] and "the same command goes on from there" in said[0]
    assert ("(proven epsilon " in said[0]) == (mechanism != "none")
    assert names(tmp_path) == ["r.partial", "r.secret"]
    code, *_ = stop(words, signal.SIGKILL)
    assert code == -9
    assert names(tmp_path) == ["r.partial", "r.secret"]
    done = subprocess.run(
        [*words, "--learning_rate=0.5"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and "--learning_rate=0.5. Give the same settings" in done.stderr
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "Interrupted" in ended.stdout
    assert names(tmp_path) == ["r"]
    assert read(tmp_path / "r")["training"]["restarts"] == 2
    assert read(tmp_path / "r")["steps"] == 30_000


def test_two_processes_do_not_go_on_with_one_training(tmp_path):
    words = command(tmp_path / "r", "dpsgd", 10**6)
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        for line in process.stdout:
            if "loss: " in line:
                break
        second = subprocess.run(words, capture_output=True, text=True, timeout=120)
        process.kill()
    assert second.returncode == 2 and "which is making it" in second.stderr


def test_an_unfinished_training_survives_a_model_that_is_not_finite_before_training(
    tmp_path, monkeypatch
):
    with pytest.raises(Crash):
        train(tmp_path / "r", settings(), 4)

    def not_finite(*arguments):
        raise FloatingPointError("The model's output is not a finite number before training.")

    with monkeypatch.context() as patch:
        patch.setattr(experiment, "_check_finite", not_finite)
        with pytest.raises(FloatingPointError):
            train(tmp_path / "r", settings())
    result = train(tmp_path / "r", settings())
    assert result.restarts == 1 and result.run.steps == STEPS


def test_other_initial_weights_in_the_same_file_are_refused(tmp_path):
    from tfdp import models

    path = tmp_path / "start.weights.h5"
    models.build("linear", (8, 8, 1), 10).save_weights(path)
    of = settings(initial_weights=str(path))
    with pytest.raises(Crash):
        train(tmp_path / "r", of, 4)
    kept = path.read_bytes()
    changed = models.build("linear", (8, 8, 1), 10)
    changed.set_weights([w + 1 for w in changed.get_weights()])
    changed.save_weights(path)
    with pytest.raises(ResultError, match=r"--initial_weights \(SHA-256\)="):
        train(tmp_path / "r", of)
    path.write_bytes(kept)
    assert train(tmp_path / "r", of).restarts == 1


@pytest.mark.parametrize("content", [b"", bytes(2048), b"\x07" * 2048, b" " * 2047])
def test_what_cannot_be_read_stays(tmp_path, content):
    with pytest.raises(Crash):
        train(tmp_path / "r", settings(), 4)
    backup = tmp_path / "r.secret" / "backup"
    (backup / "state.npz").unlink()
    (backup / "reserved").write_bytes(content)
    for _ in range(2):
        with pytest.raises(ValueError, match="cut, changed or removed"):
            train(tmp_path / "r", settings())
    assert train(tmp_path / "r", settings(), resume=False).restarts == 0


REMOVED = {
    "state": ["state.npz"],
    "reservations": ["reserved"],
    "both": ["state.npz", "reserved"],
    "mark": ["begun"],
    "mark and state": ["begun", "state.npz"],
    "all but the lock": ["begun", "state.npz", "reserved"],
    "all": ["begun", "state.npz", "reserved", "lock"],
}


@pytest.mark.parametrize("which", REMOVED)
def test_removed_files_are_missed_every_time(tmp_path, which):
    """What the training had spent is not known, so it is not begun anew in silence."""
    with pytest.raises(Crash):
        train(tmp_path / "r", settings(), 4, kill=True)
    for name in REMOVED[which]:
        (tmp_path / "r.secret" / "backup" / name).unlink()
    for _ in range(2):
        with pytest.raises(ValueError, match="--resume=never"):
            train(tmp_path / "r", settings())
        assert (tmp_path / "r.partial").exists()  # with the log, in case that the files come back
    train(tmp_path / "r", settings(), resume=False)
    assert read(tmp_path / "r")["training"]["restarts"] == 0 and names(tmp_path) == ["r"]


def test_a_mark_that_was_changed_is_refused(tmp_path):
    with pytest.raises(Crash):
        train(tmp_path / "r", settings(), 4, kill=True)
    (tmp_path / "r.secret" / "backup" / "begun").write_text("2\n")
    with pytest.raises(ValueError, match=r"begun to say whether training has begun"):
        train(tmp_path / "r", settings())


def test_a_reservation_that_cannot_be_written_ends_the_training_with_a_sentence(tmp_path):
    written = os.pwrite

    def fails(handle, content, place):
        if len(content) > 2 and done[0]:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        done[0] += len(content) > 2
        return written(handle, content, place)

    done = [0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", fails)
        with pytest.raises(ResultError, match="Expected to write the state of the training"):
            train(tmp_path / "r", settings())
    train(tmp_path / "r", settings())
    assert read(tmp_path / "r")["steps"] == STEPS


def test_a_state_that_cannot_be_removed_is_told(tmp_path, caplog):
    from tfdp.experiments.unfinished import Unfinished

    def fails(self):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Unfinished, "discard", fails)
        train(tmp_path / "r", settings())
    assert "r.secret, which holds values without noise. Remove it" in caplog.text
    assert "may not be on the disk" not in caplog.text
