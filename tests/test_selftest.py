"""`python -m tfdp.selftest` holds here, and fails where a sum, a bound or the noise is wrong."""

import json

import pytest
import tensorflow as tf

from tfdp import selftest
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.noise.gaussian import NoiseSource
from tfdp.selftest.__main__ import main


@pytest.mark.slow
@pytest.mark.parametrize("mode", selftest.MODES)
def test_all_checks_hold(mode, capsys):
    code = main([f"--modes={mode}"])
    said = capsys.readouterr().out
    assert code == 0, said
    count = 20 if mode in ("graph", "xla") else 14
    assert f"{count} of {count} checks passed" in said


def test_the_checks_of_a_dense_layer_hold(monkeypatch, capsys):
    monkeypatch.setattr(selftest, "_KINDS", {"dense": selftest._dense})
    monkeypatch.setattr(selftest, "_WAYS", selftest._WAYS[:1])
    monkeypatch.setattr(selftest, "_MORE_WAYS", ())
    code = main(["--modes=graph"])
    said = capsys.readouterr().out
    assert code == 0 and "4 of 4 checks passed" in said, said


BROKEN = {
    "too_little": lambda noise: [part * 2 / 3 for part in noise],
    "too_much": lambda noise: [part * 3 / 2 for part in noise],
    "the_same_for_all_variables": lambda noise: [noise[0]] * len(noise),
    "not_normal": lambda noise: [tf.sign(part) * tf.abs(part) ** 0.9 for part in noise],
}


SCALES = ("too_little", "too_much")


@pytest.mark.parametrize(
    "name", [n if n in SCALES else pytest.param(n, marks=pytest.mark.slow) for n in BROKEN]
)
def test_wrong_noise_is_found(name, monkeypatch):
    right = NoiseSource.gaussians
    monkeypatch.setattr(NoiseSource, "gaussians", lambda *given: BROKEN[name](right(*given)))
    assert not selftest._noise("graph")[0]


def with_one_key(right, monkeypatch):
    made = NoiseSource.__init__
    monkeypatch.setattr(NoiseSource, "__init__", lambda self, *given: made(self, 1))
    return right


def with_one_number(right, monkeypatch):
    return lambda source, number, *rest: right(source, 0, *rest)


@pytest.mark.parametrize(
    "repeats", [with_one_key, pytest.param(with_one_number, marks=pytest.mark.slow)]
)
def test_noise_that_repeats_in_runs_or_steps_is_found(repeats, monkeypatch):
    monkeypatch.setattr(NoiseSource, "gaussians", repeats(NoiseSource.gaussians, monkeypatch))
    assert not selftest._noise("graph")[0]


@pytest.mark.parametrize("factor", [pytest.param(2 / 3, marks=pytest.mark.slow), 3 / 2])
def test_a_wrong_bound_is_found(factor, monkeypatch, capsys):
    right = GlobalL2Clip.scales
    monkeypatch.setattr(GlobalL2Clip, "scales", lambda self, norms: factor * right(self, norms))
    monkeypatch.setattr(selftest, "_KINDS", {"dense": selftest._dense})
    monkeypatch.setattr(selftest, "_WAYS", selftest._WAYS[:1])
    monkeypatch.setattr(selftest, "_MORE_WAYS", ())
    for other in ("_noise", "_counting"):
        monkeypatch.setattr(selftest, other, lambda mode: (True, ""))
    selftest._step.cache_clear()
    assert main(["--modes=graph", "--json"]) == 1
    selftest._step.cache_clear()
    checks = json.loads(capsys.readouterr().out)["checks"]
    wrong = {check["name"] for check in checks if not check["passed"]}
    kinds = ("sum", "bound") if factor > 1 else ("sum",)
    assert wrong == {f"{kind}, dense, {way.name}" for kind in kinds for way in selftest._WAYS}


def test_an_error_is_a_failed_check(monkeypatch):
    def broken(*_):
        raise RuntimeError("no such device")

    monkeypatch.setattr(selftest, "_KINDS", {})
    monkeypatch.setattr(selftest, "_counting", broken)
    monkeypatch.setattr(selftest, "_noise", lambda mode: (True, ""))
    *_, check = selftest.checks(["eager"])
    assert not check.passed and "no such device" in check.measured


def test_an_unknown_mode_is_refused(capsys):
    assert main(["--modes=xl"]) == 2
    assert "Did you mean 'xla'?" in capsys.readouterr().err
    with pytest.raises(ValueError, match="mode"):
        next(selftest.checks(["gpu"]))
