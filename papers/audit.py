"""Audits on scikit-learn's digits: a training with canaries, and the lower bound that they show."""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from scipy import stats

from papers.catalogue import ROOT

CANARIES = 500
# Fewer bounds than this above the stated epsilon, if it were true, refute it.
_REFUTED_BELOW = 1e-6
_CONFIDENCE = 0.95


def compute(*, coins: int, **settings) -> dict:
    """Audits once, by `python -m tfdp.auditing`.

    Args:
        coins: the seed of the coins that include canaries.
        settings: those of train.py.

    Returns:
        "bound" and its "ceiling" (what it can be at most), and the "claimed" and "proven" epsilons.
    """
    words = [f"--{name}={value}" for name, value in settings.items()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "audit.json")
        words += [f"--canaries={CANARIES}", f"--coins={coins}", f"--json={path}"]
        words = [sys.executable, "-m", "tfdp.auditing", "--flagfile=papers/no_recipe.cfg", *words]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        if done.returncode not in (0, 1):  # 1: refuted
            raise RuntimeError((done.stderr.strip().splitlines() or ["Nothing was printed."])[-1])
        found = json.loads(path.read_text())
    # JSON has no infinity.
    stated = {k: min(float(found["stated"][k]["epsilon"]), 1e9) for k in ("claimed", "proven")}
    return {"bound": found["bound"]["epsilon"], "ceiling": found["bound"]["ceiling"], **stated}


def summary(audits: Sequence[Mapping]) -> dict:
    """Returns what is shown of several audits; epsilons are medians."""
    bounds = [one["bound"] for one in audits]
    claimed, proven = (statistics.median(one[k] for one in audits) for k in ("claimed", "proven"))
    return {
        "audits": len(audits),
        "every": bounds,
        "bounds": (statistics.median(bounds), max(bounds)),
        "claimed": claimed,
        "proven": proven,
        "above_claimed": _above(audits, "claimed"),
        "above_proven": _above(audits, "proven"),
        "of_proven": statistics.median(bounds) / proven,
    }


def _above(audits, kind) -> str:
    count = sum(one["bound"] > one[kind] for one in audits)
    p = stats.binom.sf(count - 1, len(audits), 1 - _CONFIDENCE)
    refuted = ", **refuted**" if p < _REFUTED_BELOW else ""
    return f"{count} (p = {p:.2g}){refuted}" if count else "0"
