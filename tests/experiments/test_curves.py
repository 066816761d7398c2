"""What is tested after an epoch is what would be released then."""

import pytest

from tfdp.experiments import Experiment, run


@pytest.mark.parametrize("release", ["theta", "mu"])
def test_the_last_point_of_the_curve_is_the_accuracy_of_the_release(release):
    settings = {"mechanism": "si_dpsgd", "release": release, "noise_multiplier": 100.0}
    settings |= {"sampling": "cyclic", "batch_size": 479, "learning_rate": 1.0, "seed": 1}
    result = run(Experiment(**settings, steps=6, test_every=1), verbose=0)
    assert [epoch for epoch, _ in result.curve] == [1, 2]
    assert result.curve[-1][1] == result.test_accuracy
