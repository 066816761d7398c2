"""Audits every mechanism with many seeds: `python -m benchmarks.audits --seeds=100`.

Each audit trains once with canaries on scikit-learn's digits and compares lower bounds at 95% with
what is stated. The runs are in docs/audits.json, which is written after every audit, so the command
goes on where it was stopped. docs/audits.md and docs/audits.png are made from that file; with
`--report`, only these two.
"""

import argparse
import json
import os
import time
from pathlib import Path

from absl import logging

from benchmarks.audits_report import write_plot, write_text

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "audits.json"
CANARIES = 500
_SHORT = {"model": "linear", "steps": 30, "batch_size": 256}
_CYCLIC = {**_SHORT, "sampling": "cyclic"}
_RECIPE = {
    "mechanism": "si_dpsgd", "model": "linear", "normalization": "layer", "batch_size": 32,
    "epochs": 10.0, "sampling": "cyclic", "learning_rate": 0.1,
}  # fmt: skip
_RANDOM = {**_RECIPE, "guarantee": "claimed", "sampling": "with_replacement"}

# For each row of the table the settings of its experiment.
CASES = {
    "DP-SGD, Poisson lots": {"mechanism": "dpsgd", "epsilon": 2.0, **_SHORT},
    "DP-SGD, fixed order": {"mechanism": "dpsgd", "epsilon": 2.0, **_CYCLIC},
    "DP-SGD, fixed order, epsilon 8": {"mechanism": "dpsgd", "epsilon": 8.0, **_CYCLIC},
    "DP-SGD, adaptive clipping": {
        "mechanism": "dpsgd",
        "epsilon": 2.0,
        "clipping": "adaptive",
        **_CYCLIC,
    },
    "SI-DPSGD": {"mechanism": "si_dpsgd", "epsilon": 2.0, **_CYCLIC},
    "SI-DPSGD, claimed 0.05": {**_RECIPE, "guarantee": "claimed", "epsilon": 0.05},
    "SI-DPSGD, claimed 0.5": {**_RECIPE, "guarantee": "claimed", "epsilon": 0.5},
    # Lots are drawn as the paper draws them.
    "SI-DPSGD, random lots, claimed 0.05": {**_RANDOM, "epsilon": 0.05},
    "SI-DPSGD, random lots, claimed 0.5": {**_RANDOM, "epsilon": 0.5},
    "correlated noise": {"mechanism": "matrix", "epsilon": 2.0, **_CYCLIC},
    "DP dropout": {"mechanism": "dp_dropout", "epsilon": 2.0, **_CYCLIC},
    "SGLD": {"mechanism": "sgld", "epsilon": 2.0, **_CYCLIC},
    "discrete SGD, Student's t": {
        "mechanism": "discrete_sgd",
        "epsilon": 2.0,
        "noise": "student_t",
        "encode": False,
        "denoise": False,
        **_SHORT,
    },
}


def measure(name: str, seed: int) -> dict:
    """Audits a case once and returns what the tables need, JSON-safe."""
    import keras

    from tfdp.experiments import Experiment, audit_experiment

    started = time.perf_counter()
    found = audit_experiment(Experiment(**CASES[name]), canaries=CANARIES, seed=seed)
    keras.utils.clear_session()
    return {
        "bound": found.bound.epsilon,
        "ceiling": found.bound.ceiling,
        "claimed": min(found.guarantees["claimed"].epsilon, 1e9),
        "proven": min(found.guarantees["proven"].epsilon, 1e9),
        "seconds": time.perf_counter() - started,
    }


def main(arguments=None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audits", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="audits of each case")
    parser.add_argument("--minutes", type=float, default=None, help="starts nothing after these")
    parser.add_argument("--report", action="store_true", help="only writes the page")
    flags = parser.parse_args(arguments)
    logging.set_verbosity(logging.ERROR)
    records = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    started = time.monotonic()
    for seed in range(0 if flags.report else flags.seeds):
        for name in CASES:
            known = records.setdefault(name, {})
            if str(seed) in known:
                continue
            if flags.minutes is not None and time.monotonic() - started > 60 * flags.minutes:
                break
            known[str(seed)] = measure(name, seed)
            partial = RESULTS.with_suffix(".partial")
            partial.write_text(json.dumps(records, indent=1) + "\n")
            os.replace(partial, RESULTS)
            print(f"{name}, seed {seed}: {known[str(seed)]['bound']:.3f}", flush=True)
    write_text(records, CANARIES, ROOT / "docs" / "audits.md")
    write_plot(records, ROOT / "docs" / "audits.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
