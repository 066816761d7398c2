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


@pytest.mark.parametrize("mechanism", ["none", "dpsgd"])
def test_a_point_of_the_curve_after_every_second_epoch(mechanism):
    settings = {"mechanism": mechanism, "batch_size": 479, "epochs": 5, "seed": 1}
    settings |= {"noise_multiplier": 4.0, "sampling": "cyclic"} if mechanism == "dpsgd" else {}
    result = run(Experiment(**settings, test_every=2), verbose=0)
    assert [epoch for epoch, _ in result.curve] == [2, 4]
    assert all(0 < accuracy < 1 for _, accuracy in result.curve)
    plain = run(Experiment(**settings), verbose=0)
    assert plain.curve == () and plain.test_accuracy is not None
