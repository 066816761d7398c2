"""A closed terminal interrupts a training, and nothing is lost, although the progress bar fails."""

import contextlib
import os
import pty
import signal
import sys
import time

import keras
import numpy as np
import pytest

import tfdp

N, L, EPOCHS = 60, 10, 600


def train(folder, verbose):
    x = np.random.default_rng(0).normal(size=(N, 3)).astype("float32")
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=9.0), "mse")
    backup = tfdp.callbacks.BackupAndRestore(folder, save_freq=1_000_000)
    lots = tfdp.data.make_lots("cyclic", x, x[:, :1], lot_size=L)
    model.fit(lots, epochs=EPOCHS, verbose=verbose, callbacks=[backup])
    return model, backup


def wait_for(process, seconds=60):
    for _ in range(10 * seconds):
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.1)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    raise AssertionError("the training did not end when its terminal was closed")


@pytest.mark.parametrize("shell_sends_one_too", [False, True])
def test_nothing_is_lost(tmp_path, shell_sends_one_too):
    program = f"import sys; sys.path[:0] = {sys.path!r}\n"
    program += f"from tests.training.test_closed_terminal import train\ntrain({str(tmp_path)!r}, 1)"
    process, terminal = pty.fork()
    if not process:  # the child, whose terminal this is
        os.execv(sys.executable, [sys.executable, "-c", program])
    seen = b""
    while b"Epoch 20/" not in seen:  # some 120 steps, of which no state was written after the first
        seen = seen[-100:] + os.read(terminal, 10_000)
    os.close(terminal)
    if shell_sends_one_too:
        for _ in range(3):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGHUP)
            time.sleep(0.01)
    wait_for(process)
    model, backup = train(tmp_path, 0)
    assert (backup.restarts, backup.lost_steps) == (1, 0)
    assert [run.steps for run in model.privacy.ledger.runs] == [N // L * EPOCHS]
