"""Noise that is smaller in later epochs: what is added, and what is accounted."""

import numpy as np
import pytest

from tfdp import accounting
from tfdp.experiments import Experiment, run
from tfdp.experiments.announcement import announcement

SMALL = {"model": "linear", "batch_size": 479, "sampling": "cyclic", "steps": 7, "seed": 1}


def test_the_noise_of_every_epoch_is_that_of_the_last_one_times_the_factor():
    # Cyclic lots of 479 out of 1,437 examples: three steps in an epoch.
    result = run(Experiment(mechanism="dpsgd", noise_multiplier=4.0, noise_decay=0.5, **SMALL))
    assert result.run.noise_multiplier == (4.0, 4.0, 4.0, 2.0, 2.0, 2.0, 1.0)
    # Without amplification, the steps of a record's epochs are Gaussian mechanisms in a row: its three
    # participations have the noise 4, 2 and 1, or fewer of them.
    mu = np.sqrt(1 / 16 + 1 / 4 + 1)
    single = accounting.Run(
        mechanism="dpsgd", sampling="cyclic", num_examples=1437, lot_size=479, steps=1,
        noise_multiplier=float(1 / mu),
    )  # fmt: skip
    assert result.proven.epsilon == pytest.approx(accounting.proven(single, 1e-5).epsilon, rel=1e-4)


def test_it_is_calibrated_as_a_whole():
    settings = SMALL | {"steps": 6}
    result = run(Experiment(mechanism="dpsgd", epsilon=2.0, noise_decay=0.5, **settings))
    first, last = result.run.noise_multiplier[0], result.run.noise_multiplier[-1]
    assert first / last == pytest.approx(2.0)
    assert 1.99 < result.proven.epsilon <= 2.0
    constant = run(Experiment(mechanism="dpsgd", epsilon=2.0, **settings))
    assert last < constant.run.noise_multiplier < first


def test_announcement():
    said = announcement(Experiment(mechanism="dpsgd", epsilon=2.0, noise_decay=0.9))
    assert "noise times 0.9 after every epoch" in said


def test_other_mechanisms_have_none():
    with pytest.raises(ValueError, match="has no --noise_decay"):
        Experiment(mechanism="sgld", epsilon=2.0, noise_decay=0.9)
    with pytest.raises(ValueError, match="one noise multiplier with clipping='adaptive'"):
        run(
            Experiment(
                mechanism="dpsgd", epsilon=2.0, noise_decay=0.9, clipping="adaptive", **SMALL
            )
        )
