"""Several replicas of one machine take the steps of one device, with the same keys and lots."""

import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

import tfdp
from tests.training.replica_cases import CASES, net, trained
from tfdp.training import replicas

QUICK = ["together", "deviation", "outside", "shared"]
OTHERS = [*(name for name in CASES if name not in QUICK), "resumed_si_dpsgd", "resumed_matrix"]


def differences(devices, *cases):
    """What differs in each case, in a process of its own."""
    path = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.training.replica_cases", str(devices), *cases]
    done = subprocess.run(command, capture_output=True, text=True, env=path)
    found = {}
    for line in done.stdout.splitlines():
        found |= json.loads(line)
    assert done.returncode == 0 and found.keys() == {*cases}, done.stderr[-3000:]
    return found


@pytest.fixture(scope="module")
def quick():
    return differences(3, *QUICK)


@pytest.mark.parametrize("case", QUICK)
def test_three_replicas_train_as_one(quick, case):
    assert quick[case] is None, quick[case]


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_every_option_on_several_devices(devices):
    found = differences(devices, *OTHERS, *(QUICK if devices != 3 else ()))
    assert not any(found.values()), [f"{name}: {found[name]}" for name in found if found[name]]


REFUSED = {
    "statistics='batch'": {"model": lambda: net(_by_lot())},
    "jit_compile=True": {"compiled": {"jit_compile": True}},
}


def _by_lot():
    return tfdp.layers.PrivateBatchNormalization(statistics="batch")


@pytest.mark.parametrize("what", REFUSED)
def test_what_several_replicas_cannot_train_is_refused(what, monkeypatch):
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model, _ = trained(1, fit=lambda model: None, **REFUSED[what])
    monkeypatch.setattr(replicas, "several", lambda strategy: True)
    with pytest.raises(NotImplementedError, match=rf"{what} cannot be combined with several"):
        replicas.check_replicas(model)
