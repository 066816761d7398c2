"""Scores and filters, on numbers whose law is known."""

import numpy as np
import pytest

from tfdp.auditing import Scores
from tfdp.auditing.scores import matched_filter


def test_rates_and_guesses_of_scores():
    scores = Scores(np.array([5.0, 4.0, 3.0, 2.0, 1.0]), np.array([1, 1, 0, 1, 0], bool))
    assert scores.guesses(2) == 2 and scores.guesses(5) == 3
    assert scores.tpr_at(0.4) == pytest.approx(2 / 3)
    assert scores.auc == pytest.approx(5 / 6)
    fpr, tpr = scores.roc()
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert len(Scores.of([scores, scores]).values) == 10
    with pytest.raises(ValueError, match="finite"):
        Scores(np.array([np.nan]), np.array([True]))


def test_equal_scores_are_guesses_by_chance_only():
    included = np.random.default_rng(0).random(4000) < 0.5
    scores = Scores(np.zeros(4000), included)
    assert abs(scores.guesses(4000) / 4000 - 0.5) < 0.05 and scores.auc == 0.5


def test_the_filter_finds_what_no_single_release_shows():
    """Independent noise around an effect that stays: 60 releases together show 7.7 times as much."""
    rng, canaries, blanks = np.random.default_rng(0), 800, 2000
    included = rng.random(canaries) < 0.5
    noise = rng.normal(size=(60, canaries + blanks))
    released = noise[:, :canaries] + 0.4 * included
    values = matched_filter(released, noise[:, canaries:])
    assert Scores(values, included).auc > 0.97
    assert Scores(released[-1], included).auc < 0.7
    # In units of the noise.
    assert np.std(values[~included]) == pytest.approx(1, rel=0.1)
