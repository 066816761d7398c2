"""Two machines, as processes on one: they train as one device, refuse to differ, and end together."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest

import tfdp
from tests.training.replica_cases import CASES
from tests.training.small import small
from tests.training.test_replicas import OTHERS, QUICK
from tfdp.training import feed as feeds
from tfdp.training.backup_state import setup_of
from tfdp.training.describe import open_session

REFUSED = [
    *("other_data", "other_people", "equal_shards", "other_weights", "other_rate"),
    *("wrong_shards", "own_batches"),
]
# Batches that a machine draws are refused; views have seeds of the machine that reads the row.
OF_ONE_MACHINE = {"dataset", "dataset_in_microbatches", "generator", "pydataset", "drifted"}
PATH = os.pathsep.join(sys.path)


class _Process(subprocess.Popen):
    """A process with its output in files."""

    def __init__(self, *command, stdout, stderr, **options):
        super().__init__(*command, stdout=stdout, stderr=stderr, **options)
        self.files = stdout, stderr

    def written(self):
        for file in self.files:
            file.seek(0)
        return [file.read() for file in self.files]


def together(*command, number=2):
    """Starts a Python program as so many machines, and returns their processes."""
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    places = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()

    def config(index):
        task = {"type": "worker", "index": index}
        return json.dumps({"cluster": {"worker": places}, "task": task})

    return [
        _Process(
            [sys.executable, *command],
            stdout=tempfile.TemporaryFile("w+"),  # a full pipe of one would stop both
            stderr=tempfile.TemporaryFile("w+"),
            env=os.environ | {"PYTHONPATH": PATH, "TF_CONFIG": config(index)},
        )
        for index in range(number)
    ]


def ended(processes, seconds=900):
    """Waits for the processes; returns (exit status, output, errors) of each."""
    try:
        return [(p.wait(seconds), *p.written()) for p in processes]
    finally:
        for process in processes:
            process.kill()


def differences(*cases):
    both = ended(together("-m", "tests.training.replica_cases", "2", *cases))
    found = {}
    for status, output, errors in both:
        assert status == 0, errors[-3000:]
        for line in output.splitlines():
            found |= {name: found.get(name) or what for name, what in json.loads(line).items()}
    assert found.keys() == {*cases}
    return found


def test_two_machines_take_the_steps_of_one_and_refuse_to_differ():
    found = differences("adaptive", "deviation", *REFUSED)
    assert not any(found.values()), found


@pytest.mark.slow
def test_every_option_on_two_machines():
    cases = [n for n in [*QUICK, *OTHERS] if n in CASES and n not in OF_ONE_MACHINE]
    found = differences(*cases, "again")
    assert not any(found.values()), [f"{name}: {found[name]}" for name in found if found[name]]


KILLED = """
import json, os, signal, sys
import keras, numpy as np, tensorflow as tf
import tfdp

victim, number, folder, sampling = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
x, y = np.random.default_rng(0).normal(size=(54, 4)).astype("float32"), np.arange(54) % 3
with strategy.scope():
    keras.utils.set_random_seed(0)
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]))
    optimizer = tfdp.SIDPSGDOptimizer if sampling == "cyclic" else tfdp.DPKerasSGDOptimizer
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(l2_norm_clip=1.0, noise_multiplier=4.0, learning_rate=0.1), loss)

def end(batch, logs):
    if rank == victim and model.privacy.steps_taken == 5:
        print("at", flush=True)
        os.kill(os.getpid(), number)

lots = tfdp.data.make_lots(sampling, x, y, lot_size=18)
backup = tfdp.callbacks.BackupAndRestore(folder, save_freq=2)
callbacks = [backup, keras.callbacks.LambdaCallback(on_train_batch_end=end)]
model.fit(lots, epochs=3, verbose=0, callbacks=callbacks)
model.save(os.path.join(os.path.dirname(folder), "model.keras"))
steps = int(model.optimizer.iterations.numpy())
print(json.dumps([model.privacy.steps_taken, model.privacy.ledger.runs[0].steps, steps]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["poisson", "cyclic", "random_allocation"])
@pytest.mark.parametrize(
    ("victim", "number"), [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGTERM)]
)
def test_a_machine_that_ends_ends_the_other_and_nothing_spent_is_lost(
    tmp_path, victim, number, sampling
):
    folder = tmp_path / "backup"
    processes = together("-c", KILLED, str(victim), str(int(number)), str(folder), sampling)
    processes[victim].wait(300)
    began = time.monotonic()
    processes[1 - victim].wait(60)
    assert time.monotonic() - began < 60
    found = ended(processes)
    assert all(status for status, _, _ in found)
    assert "If another machine has ended" in found[1 - victim][2]
    both = ended(together("-c", KILLED, "9", "0", str(folder), sampling))
    for status, output, errors in both:
        assert status == 0, errors[-3000:]
        assert json.loads(output.splitlines()[-1]) == [9, 9, 9]
    assert (tmp_path / "model.keras").exists() and not folder.exists()


def test_two_shards_draw_independently():
    """Records of two shards that enter lots together would be a group, which nothing amplifies."""
    lots = tfdp.data.make_lots("poisson", np.zeros((400, 1)), lot_size=200, shard_of=800)
    drawn = []
    for number in range(2):
        order = feeds.order_of_shard(bytes(16), number)
        drawn.append([set(i.numpy()) for i in lots.indices(order=order).take(4)])
    shared = np.mean([len(a & b) for a, b in zip(*drawn, strict=True)])
    assert 10 < shared < 45  # 400 / 16 = 25 for independent draws, 100 for equal ones


def test_a_shard_is_drawn_at_the_rate_of_all():
    options = {"lot_size": 100, "shard_of": 4000, "seed": 0}
    for sampling in ("poisson", "random_allocation"):
        lots = tfdp.data.make_lots(sampling, np.zeros((1000, 1)), **options)
        assert (lots.num_examples, lots.steps_per_epoch) == (4000, 40)
        sizes = [len(i) for i in lots.indices().take(40)]
        assert 800 < sum(sizes) < 1200  # 40 lots of 1000 * 100 / 4000 examples


def test_machines_give_a_run_one_id():
    """Otherwise a run would count twice where a machine merges the ledger of the chief's state."""
    lots = tfdp.data.make_lots("cyclic", np.zeros((8, 4)), np.zeros(8), lot_size=4)
    ids = set()
    for key in (bytes(16), bytes(16), b"others' secret !"):
        model = small()
        feed = dataclasses.replace(feeds.feed_of(lots), key=key)
        ids.add(open_session(model, model.privacy.account, feed, 2).entry.run_id)
    assert len(ids) == 2


def test_shards_stay_with_their_machines():
    """Otherwise an example would be in two lots of an epoch that is resumed."""
    lots = tfdp.data.make_lots("random_allocation", np.zeros((8, 4)), lot_size=4, shard_of=16)
    feed, model = feeds.feed_of(lots), small()
    model.optimizer.build(model.trainable_variables)
    setups = [setup_of(model, dataclasses.replace(feed, shards=s)) for s in ((1, 2), (2, 1))]
    assert setups[0]["examples"] != setups[1]["examples"]


def test_a_shard_needs_several_machines():
    model = small(compiled={"loss": "mse"})
    lots = tfdp.data.make_lots(
        "poisson", np.zeros((8, 4)), np.zeros((8, 3)), lot_size=4, shard_of=9
    )
    with pytest.raises(ValueError, match=r"only several machines have all shards"):
        model.fit(lots, verbose=0)
