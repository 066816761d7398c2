"""Effect over noise, scores and filters, on numbers whose law is known."""

import numpy as np
import pytest

from tfdp.auditing import Scores, effect_over_noise
from tfdp.auditing.scores import matched_filter


@pytest.mark.parametrize(("mu", "releases"), [(0.5, 1), (3.0, 6), (300.0, 3)])
def test_intervals_hold_the_true_mu_as_often_as_promised(mu, releases):
    rng, held = np.random.default_rng(0), 0
    mix = rng.normal(size=(releases, releases)) + 2 * np.eye(releases)
    effect = mix @ (mu / np.sqrt(releases) * np.ones(releases))
    for _ in range(300):
        inside = rng.normal(size=(150, releases)) @ mix.T + effect
        outside = rng.normal(size=(250, releases)) @ mix.T
        held += effect_over_noise(inside, outside, confidence=0.9).holds(mu)
    assert abs(held / 300 - 0.9) < 4 * np.sqrt(0.09 / 300)


def test_two_thirds_and_three_halves_of_the_noise_are_outside():
    rng = np.random.default_rng(1)
    for factor in (2 / 3, 3 / 2):
        inside, outside = rng.normal(3.0, factor, 20_000), rng.normal(0.0, factor, 20_000)
        assert not effect_over_noise(inside, outside, confidence=0.9999).holds(3.0)
    right = effect_over_noise(rng.normal(3.0, 1.0, 20_000), rng.normal(0.0, 1.0, 20_000))
    assert right.high - right.low < 0.04 * 3.0


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        (np.zeros((5, 2)), np.zeros((5, 3))),
        (np.zeros((3, 4)), np.zeros((3, 4))),
        (np.array([1.0, np.nan]), np.zeros(50)),
        (np.zeros(50), np.zeros(50)),
    ],
)
def test_what_gives_no_estimate_is_refused(inside, outside):
    with pytest.raises(ValueError, match="Expected"):
        effect_over_noise(inside, outside)


def test_rates_and_guesses_of_scores():
    scores = Scores(np.array([5.0, 4.0, 3.0, 2.0, 1.0]), np.array([1, 1, 0, 1, 0], bool))
    assert scores.guesses(2) == 2 and scores.guesses(5) == 3
    assert scores.counts(2.5) == (2, 3, 1, 2)
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
    values, of_blanks = matched_filter(released, noise[:, canaries:])
    assert Scores(values, included).auc > 0.97
    assert Scores(released[-1], included).auc < 0.7
    assert np.mean(of_blanks) == pytest.approx(0) and np.std(of_blanks) == pytest.approx(1)
