"""`python -m tfdp.selftest` holds here, and fails where a sum, a bound or the noise is wrong."""

import json

import pytest
import tensorflow as tf

from tfdp import selftest
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.noise.gaussian import NoiseSource


@pytest.mark.parametrize("mode", selftest.MODES)
def test_all_checks_hold(mode, capsys):
    code = selftest.main([f"--modes={mode}"])
    said = capsys.readouterr().out
    assert code == 0, said
    count = 20 if mode in ("graph", "xla") else 14
    assert f"{count} of {count} checks hold" in said


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_wrong_noise_is_found(factor, monkeypatch):
    right = NoiseSource.gaussians
    monkeypatch.setattr(
        NoiseSource, "gaussians", lambda self, stddev, *rest: right(self, stddev * factor, *rest)
    )
    assert not selftest._noise("graph")[0]


def _halves(noise):
    half = tf.reshape(noise, [-1])[: tf.size(noise) // 2]
    return tf.reshape(tf.concat([half, -half], 0), noise.shape)


BROKEN = {
    "the_same_for_all_variables": lambda noise: [noise[0]] * len(noise),
    "half_is_minus_the_other_half": lambda noise: [_halves(part) for part in noise],
    "uniform": lambda noise: [tf.sign(part) * tf.abs(part) ** 0.9 for part in noise],
}


@pytest.mark.parametrize("name", BROKEN)
def test_noise_that_is_not_independent_or_not_normal_is_found(name, monkeypatch):
    right = NoiseSource.gaussians
    monkeypatch.setattr(NoiseSource, "gaussians", lambda *given: BROKEN[name](right(*given)))
    assert not selftest._noise("graph")[0]


def test_noise_that_repeats_is_found(monkeypatch):
    monkeypatch.setattr(NoiseSource, "_counter_of", lambda self, draw: 0)
    assert not selftest._noise("graph")[0]


def test_runs_with_the_same_noise_are_found(monkeypatch):
    right = NoiseSource.__init__
    monkeypatch.setattr(NoiseSource, "__init__", lambda self, seed=None: right(self, 1))
    assert not selftest._noise("graph")[0]


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_a_wrong_bound_is_found(factor, monkeypatch, capsys):
    right = GlobalL2Clip.scales
    monkeypatch.setattr(GlobalL2Clip, "scales", lambda self, norms: factor * right(self, norms))
    monkeypatch.setattr(selftest, "_KINDS", {"dense": selftest._dense})
    monkeypatch.setattr(selftest, "_noise", lambda mode: (True, ""))
    selftest._step.cache_clear()
    assert selftest.main(["--modes=graph", "--json"]) == 1
    selftest._step.cache_clear()
    checks = json.loads(capsys.readouterr().out)["checks"]
    wrong = {check["name"] for check in checks if not check["passed"]}
    ways = selftest._WAYS + selftest._MORE_WAYS
    sums = {f"sum, dense, {way.name}" for way in ways}
    # The mean of two rows is hardly ever moved from one side of the ball to the other.
    bounds = {f"bound, dense, {way.name}" for way in ways if way.together == 1}
    assert wrong == (sums | bounds if factor > 1 else sums)


def test_an_error_is_a_failed_check(monkeypatch):
    def broken(mode):
        raise RuntimeError("no such device")

    check = selftest._timed("graph", "noise", broken)
    assert not check.passed and check.measured == "RuntimeError: no such device"


def test_an_unknown_mode_is_refused(capsys):
    with pytest.raises(SystemExit):
        selftest.main(["--modes=gpu"])
    known = ", ".join(selftest.MODES)
    assert f"expected --modes among {known}, found gpu" in capsys.readouterr().err
    with pytest.raises(ValueError, match="mode"):
        next(selftest.checks(["gpu"]))
