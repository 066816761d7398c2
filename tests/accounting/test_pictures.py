"""The picture of a guarantee."""

import builtins

import numpy as np
import pytest

from tfdp.accounting import claimed, describe, proven
from tfdp.accounting.pictures import picture

pytest.importorskip("matplotlib")
DELTA = 1e-5
RUN = describe("dpsgd", "poisson", num_examples=1000, lot_size=100, steps=40, noise_multiplier=2.0)
OTHER = describe(
    "si_dpsgd", "cyclic", num_examples=1000, lot_size=500, steps=4, noise_multiplier=9.0
)


def drawn(runs, **more):
    stated = [of(runs, DELTA) for of in (proven, claimed)]
    return stated, picture(runs, stated, **more).axes


def test_epsilon_grows_over_all_runs_to_what_is_stated():
    stated, (epsilon, _) = drawn([RUN, OTHER])
    for guarantee, line in zip(stated, epsilon.lines, strict=True):
        steps, values = line.get_data()
        assert (steps[0], steps[-1], values[0]) == (0, 44, 0) and (np.diff(values) >= 0).all()
        assert values[-1] == guarantee.epsilon
        at = list(steps).index(22)
        of = proven if guarantee.kind == "proven" else claimed
        assert values[at] == of([RUN.with_steps(22)], DELTA).epsilon


def test_an_attacker_is_never_shown_weaker_than_the_best_test():
    (proven, _), (_, attacks) = drawn([RUN])
    fprs, fnrs = attacks.lines[0].get_data()
    for fpr, shown in [*zip(fprs, 1 - fnrs, strict=True)][5:-1:9]:
        assert proven.tpr(fpr) - 1e-9 <= shown <= 1.01 * proven.tpr(fpr)
    assert (attacks.lines[-1].get_ydata() == 1 - attacks.lines[-1].get_xdata()).all()


def test_what_is_infinite_is_said_and_clipping_is_called_not_private():
    _, axes = drawn([RUN.with_noise(0.0)], clipping=[(20, 0.5), (40, 0.25)])
    assert "infinite" in axes[0].get_legend().texts[0].get_text()
    assert "not private" in axes[2].get_title(loc="left")
    assert list(axes[2].lines[0].get_ydata()) == [50.0, 25.0]


def test_without_runs_nothing_is_spent():
    assert drawn([])[1][0].lines[0].get_ydata().tolist() == [0.0]


def test_a_missing_matplotlib_is_named(monkeypatch):
    real = builtins.__import__

    def importing(name, *arguments):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(ImportError, match=r"pip install 'tfdp\[plot\]'"):
        drawn([RUN])
