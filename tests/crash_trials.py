"""Kills `train.py` at random moments until it has finished: the table of docs/decisions/crashes.md.

    python -m tests.crash_trials [--kills=20] [--mechanisms="dpsgd;matrix"] --out=FILE

Each training is killed with SIGKILL `kills` times, at moments that are uniform over the time from the
start of the process to `window` seconds after its first epoch, and then left alone. The same training
without a kill stands beside it.
"""

import argparse
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
EPOCH = "loss: "
LONG = ["--model=hidden_1000", "--batch_size=479", "--steps=3000"]
# What differs from one command to the next; most train a linear model on digits in lots of 64.
TRIALS = {
    "dpsgd, Poisson": ["--mechanism=dpsgd"],
    "dpsgd, fixed order": ["--mechanism=dpsgd", "--sampling=cyclic"],
    "dpsgd, shuffled": ["--mechanism=dpsgd", "--sampling=shuffle"],
    "dpsgd, fixed size": ["--mechanism=dpsgd", "--sampling=fixed_size"],
    "dpsgd, Adam": ["--mechanism=dpsgd", "--optimizer=adam", "--learning_rate=0.01"],
    "dpsgd, adaptive clipping": [
        "--mechanism=dpsgd", "--clipping=adaptive",
    ],
    "dpsgd, public batch normalization": ["--mechanism=dpsgd", "--normalization=batch"],
    # The accounting of these is slow for many steps, so they take few long ones.
    "si_dpsgd": ["--mechanism=si_dpsgd", "--learning_rate=0.01", *LONG],
    "matrix, fixed order": ["--mechanism=matrix", "--sampling=cyclic", *LONG],
    "matrix, groups by turns": ["--mechanism=matrix", "--sampling=cyclic_poisson", *LONG],
    "dp_dropout": ["--mechanism=dp_dropout"],
    "sgld": ["--mechanism=sgld"],
    "discrete_sgd": ["--mechanism=discrete_sgd"],
    "none": ["--mechanism=none"],
}  # fmt: skip


def command(folder, flags, steps, every):
    return [
        sys.executable, str(ROOT / "train.py"), "--model=linear", "--batch_size=64",
        f"--steps={steps}", *flags, f"--checkpoint_every={every}", f"--model_dir={folder}",
    ]  # fmt: skip


def killed_once(words, window, rng):
    """Starts a command and kills it; returns its last words if it ended before that."""
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )
    # Some die before their first step: while TensorFlow is imported, or the state is read.
    early = rng is not None and rng.random() < 0.25
    killer = threading.Timer(1e6 if rng is None else rng.uniform(0, 6), process.kill)
    if early:
        killer.start()
    said = []
    for line in process.stdout:
        said.append(line)
        if EPOCH in line and not early:
            delay = window if rng is None else rng.uniform(0, window)
            early, killer = True, threading.Timer(delay, process.kill)
            killer.start()
    process.wait()
    killer.cancel()
    if process.returncode == -9:
        return None
    # A kill may come just after the result was put in place.
    over = process.returncode == 2 and "There is a finished result" in said[-1]
    assert process.returncode == 0 or over, "".join(said)[-3000:]
    return "".join(said)


def trial(flags, folder, kills, window, steps, every, rng):
    """Trains with so many kills; returns the record of the result and the number of kills."""
    words, done = command(folder, flags, steps, every), 0
    while done < kills:
        if killed_once(words, window, rng) is not None:
            break
        done += 1
    else:
        killed_once(words, 1e6, None)
    assert sorted(p.name for p in folder.parent.iterdir()) == [folder.name], "something is left"
    return json.loads((folder / "run.json").read_text()), done


LAST_DIGITS = 1e-6  # of the metrics that float32 sums over a data set give


def same(one, other):
    """Whether two parts of records are equal but for the last digits of evaluations."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=LAST_DIGITS)
    return one == other


def row(name, kills, window, steps, every, rng):
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        (place / "a").mkdir()
        (place / "b").mkdir()
        record, done = trial(TRIALS[name], place / "a" / "r", kills, window, steps, every, rng)
        whole, _ = trial(TRIALS[name], place / "b" / "r", 0, window, steps, every, rng)
    steps = whole["steps"]
    assert record["steps"] == steps
    for each in (record, whole):  # where results decide, one may end sooner than the other
        each["statement"].pop("executed")
    for key in ("proven", "claimed", "statement"):
        assert same(record[key], whole[key]), (record[key], whole[key])
    return {
        "trial": name,
        "steps": steps,
        "kills": done,
        "restarts": record["training"]["restarts"],
        "lost_steps": record["training"]["lost_steps"],
        "seconds_per_step": whole["seconds"] / steps,
        "proven": record["proven"]["epsilon"],
        "accuracy": record["test_accuracy"],
        "accuracy_without": whole["test_accuracy"],
        "seconds": time.monotonic() - started,
    }


def page(rows):
    """The table in Markdown."""
    lines = [
        "| training | kills | went on | steps | lost | seconds lost by a kill | proven epsilon | "
        "accuracy | without kills |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in rows:
        lost = each["lost_steps"] * each["seconds_per_step"] / max(1, each["kills"])
        epsilon = each["proven"] if isinstance(each["proven"], str) else f"{each['proven']:.4f}"
        lines.append(
            f"| {each['trial']} | {each['kills']} | {each['restarts']} | {each['steps']:,} | "
            f"{each['lost_steps']:,} | {lost:.2f} | {epsilon} | {100 * each['accuracy']:.1f} | "
            f"{100 * each['accuracy_without']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--window", type=float, default=4.0)
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--mechanisms", help="names of trials that contain one of these words")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    out = pathlib.Path(options.out)
    rows = json.loads(out.read_text()) if out.exists() else []
    words = (options.mechanisms or "").split(";")
    for name in TRIALS:
        if any(each["trial"] == name for each in rows) or not any(word in name for word in words):
            continue
        rng = random.Random(options.seed)
        rows.append(row(name, options.kills, options.window, options.steps, options.every, rng))
        out.write_text(json.dumps(rows, indent=1))
        print(page(rows[-1:]).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
