"""scikit-learn trains private models by the wrapper of Keras, and every trial is counted."""

import math

import pytest

from tests.test_docs import run_blocks
from tfdp.accounting import Ledger, Statement, proven


def test_the_pages_searches_count_every_trial(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    names = run_blocks("docs/scikit_learn.md", tmp_path, monkeypatch)
    search = names["statement"]
    assert 2.99 < search.proven.epsilon <= 3.0
    alone = names["best"].privacy.spent(1e-4).epsilon
    assert alone < search.proven.epsilon  # the other trial counts
    assert any("Scalers" in each for each in search.assumptions)  # those of a Pipeline
    assert (tmp_path / "best.keras").exists()

    together = Ledger()
    for ledger in names["ledgers"]:
        together.merge(ledger)
    assert sorted(run.steps for run in together.runs) == [30, 30, 30]  # three folds of 600 rows
    folds = Statement.of_search(names["ledgers"], 1e-4).proven.epsilon
    assert folds == proven(together.runs, 1e-4).epsilon < math.inf
