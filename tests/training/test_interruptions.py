"""Signals and kills: what a training says of its interruption, and that it goes on after it."""

import os
import signal
import subprocess
import sys
import time

import keras
import pytest

import tfdp
from tests.accounting.varying import vary
from tests.training.test_backup import (
    MECHANISMS,
    STEPS,
    Training,
    entries,
)
from tfdp._interruptions import Interruptions
from tfdp.accounting import proven
from tfdp.accounting.guarantee import format_epsilon


def interrupted(folder, after, number=signal.SIGINT, error=KeyboardInterrupt, model=None, **more):
    """Trains until a signal arrives after a step; returns the exception."""
    training = Training(folder, save_freq=100, **more)

    def stop(steps):
        if steps == after:
            os.kill(os.getpid(), number)

    with pytest.raises(error) as interruption:
        training.run(stop, model=model)
    return interruption.value


def test_an_interruption_loses_nothing(tmp_path):
    after = 5
    said = interrupted(tmp_path / "b", after).__notes__
    assert f"step {after} of {STEPS}" in said[0] and str(tmp_path / "b") in said[-1]
    assert "at delta" not in "".join(said)  # nobody asked for one
    training = Training(tmp_path / "b")
    assert entries(training.run()) == [STEPS]
    assert (training.backup.restarts, training.backup.lost_steps) == (1, 0)
    assert min(training.seen[0]) == after + 1


@pytest.mark.parametrize("source", ["budget", "callback"])
def test_an_interruption_states_the_epsilon_of_the_asked_adjacency(source, tmp_path):
    model, more = Training(tmp_path).model(), {}
    if source == "budget":
        model.privacy.budget = tfdp.PrivacyBudget(40.0, 1e-5, adjacency="replace_one")
    else:
        more = {"delta": 1e-5, "adjacency": "replace_one"}
    resumed, never, _ = interrupted(tmp_path / "b", 3, model=model, **more).__notes__
    (run,) = model.privacy.ledger.runs
    for note, steps in ((resumed, 3), (never, STEPS)):
        spent = proven(vary(run, steps=steps, taken=None), 1e-5, adjacency="replace_one").epsilon
        assert f"epsilon {format_epsilon(spent)} at delta 1e-05, adjacency replace_one" in note
    assert run.steps == STEPS  # this process does not know whether it will be resumed


def test_sigterm_calls_the_handler_that_was_there(tmp_path):
    class Asked(Exception):
        pass

    def handler(number, frame):
        raise Asked

    before = signal.signal(signal.SIGTERM, handler)
    try:
        asked = interrupted(tmp_path / "b", 3, signal.SIGTERM, Asked)
        assert "step 3" in asked.__notes__[0]
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_sigterm_without_a_handler_ends_the_process_with_a_word(tmp_path, caplog):
    ended = interrupted(tmp_path / "b", 3, signal.SIGTERM, SystemExit)
    assert ended.code == 128 + signal.SIGTERM and "step 3" in caplog.text


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interruptions() as noted:
            os.kill(os.getpid(), signal.SIGINT)
            assert noted.number is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_second_interruption_ends_at_once():
    with Interruptions() as noted:
        os.kill(os.getpid(), signal.SIGINT)
        assert noted.number == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_is_not_lost_if_something_else_fails():
    with pytest.raises(KeyboardInterrupt) as interruption, Interruptions():
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError
    assert isinstance(interruption.value.__context__, ValueError)


def test_a_signal_while_callbacks_hear_of_the_end_keeps_the_state(tmp_path):
    training = Training(tmp_path / "b")
    end = keras.callbacks.LambdaCallback(
        on_train_end=lambda logs: os.kill(os.getpid(), signal.SIGINT)
    )
    with pytest.raises(KeyboardInterrupt):
        training.run(callbacks=[end])
    assert entries(training.run()) == [STEPS] and not training.seen[1]


# -- kills of processes ------------------------------------------------------------------------------


def train_aloud(folder, mechanism, sampling):
    """What the killed process runs."""

    def tell(steps):
        print("step", steps, flush=True)
        time.sleep(0.1)

    Training(folder, MECHANISMS[mechanism], sampling, save_freq=3).run(tell)


def program(*arguments):
    text = f"from tests.training.test_interruptions import train_aloud; train_aloud(*{arguments!r})"
    return subprocess.Popen(
        [sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize(
    ("mechanism", "sampling", "number"),
    [
        pytest.param("dpsgd", "poisson", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("si_dpsgd", "shuffle", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("dpsgd", "cyclic", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_killed_program_goes_on(mechanism, sampling, number, tmp_path):
    process, last = program(str(tmp_path / "b"), mechanism, sampling), 0
    for line in process.stdout:
        last = int(line.split()[1]) if line.startswith("step") else last
        if line == "step 4\n":
            process.send_signal(number)
    error = process.stderr.read()
    code = process.wait()
    training = Training(tmp_path / "b", MECHANISMS[mechanism], sampling, save_freq=3)
    model = training.run()
    assert entries(model) == [STEPS] == [int(model.optimizer.iterations.numpy())]
    # What the first process showed is behind the second one, and after a signal nothing is lost.
    if number == signal.SIGKILL:
        assert code == -number and min(training.seen[0]) > last >= 4
    else:
        assert code in (1, 130, 143, -number) and "Stopped after step" in error
        assert min(training.seen[0]) == last + 1
