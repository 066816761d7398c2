"""Guarantees: what they say, how runs compose, and who may register."""

import json
import math

import pytest

from tfdp import accounting
from tfdp.accounting import (
    Guarantee,
    Run,
    claimed,
    claimed_composition,
    mechanisms,
    proven,
    proven_composition,
    register_mechanism,
)
from tfdp.accounting.guarantee import format_epsilon

DELTA = 1e-5
POISSON = Run(
    mechanism="dpsgd",
    num_examples=1000,
    lot_size=10,
    steps=100,
    sampling="poisson",
    noise_multiplier=1.5,
)
CYCLIC = POISSON.with_(sampling="cyclic", noise_multiplier=3.0)
SI = CYCLIC.with_(mechanism="si_dpsgd", noise_multiplier=100.0)
FIELDS = {
    "epsilon": 1.0,
    "delta": DELTA,
    "kind": "proven",
    "adjacency": "zero_out",
    "sampling": "poisson",
    "released": "weights",
    "mechanism": "dpsgd",
}


def test_infinite_guarantees_are_json_and_say_why():
    guarantee = proven(SI.with_(release="mu"), DELTA)
    text = json.dumps(guarantee.to_dict(), allow_nan=False)
    assert json.loads(text)["epsilon"] == "inf"
    assert guarantee.vacuous
    assert "infinite" in str(guarantee)
    assert guarantee.reason in str(guarantee)


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (1.2345678, "1.235"),
        (50.0, "50"),
        (7669.42, "vacuous (epsilon = 7669)"),
        (1613353.8, "vacuous (epsilon = 1.613e+06)"),
        (math.inf, "infinite"),
    ],
)
def test_epsilon_in_words(epsilon, words):
    assert format_epsilon(epsilon) == words


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": -1.0},
        {"epsilon": math.nan},
        {"epsilon": math.inf},
        {"delta": 0.0},
        {"kind": "hoped"},
        {"adjacency": "user"},
    ],
)
def test_bad_guarantees_are_refused(change):
    Guarantee(**FIELDS)
    with pytest.raises(ValueError, match="Expected"):
        Guarantee(**(FIELDS | change))


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, math.inf, True])
def test_bad_delta_is_refused(delta):
    for function in (claimed, proven):
        with pytest.raises(ValueError, match="delta"):
            function(POISSON, delta)


def test_bad_names_are_refused():
    with pytest.raises(ValueError, match="adjacency"):
        proven(POISSON, DELTA, "user")
    with pytest.raises(ValueError, match="mechanism"):
        proven(POISSON.with_(mechanism="laplace"), DELTA)
    with pytest.raises(ValueError, match="mechanism"):
        claimed(POISSON.with_(mechanism="laplace"), DELTA)
    with pytest.raises(AttributeError, match="no attribute"):
        _ = accounting.surprise


def test_no_privacy_is_infinite():
    run = POISSON.with_(mechanism="none", noise_multiplier=0.0)
    for guarantee in (claimed(run, DELTA), proven(run, DELTA)):
        assert guarantee.epsilon == math.inf
        assert guarantee.reason


def test_a_run_in_two_segments_costs_what_it_costs_in_one():
    for run, tolerance in ((POISSON, 1e-3), (CYCLIC.with_(steps=200), 1e-9)):
        half = run.with_(steps=run.steps // 2)
        whole = proven(run, DELTA).epsilon
        assert proven_composition([half, half], DELTA).epsilon == pytest.approx(
            whole, rel=tolerance
        )
        assert claimed_composition([half, half], DELTA).epsilon == pytest.approx(
            claimed(run, DELTA).epsilon
        )


def test_mixed_segments_compose_soundly():
    parts = [POISSON, CYCLIC, SI]
    both = proven_composition(parts, DELTA)
    alone = [proven(run, DELTA).epsilon for run in parts]
    assert max(alone) < both.epsilon < sum(proven(r, DELTA / 3).epsilon for r in parts)
    assert both.mechanism == "dpsgd, si_dpsgd"
    assert both.sampling == "poisson, cyclic"
    gaussian = proven_composition([CYCLIC, SI], DELTA)
    mus = [proven(run, DELTA).mu for run in (CYCLIC, SI)]
    assert gaussian.mu == pytest.approx(math.hypot(*mus))


def test_random_si_segments_compose():
    random = SI.with_(sampling="poisson")
    two = proven_composition([random, random], DELTA)
    assert proven(random, DELTA).epsilon < two.epsilon
    assert two.epsilon < 2 * proven(random, DELTA / 2).epsilon
    assert any("released weights" in sentence for sentence in two.assumptions)
    with_dpsgd = proven_composition([random, POISSON], DELTA)
    assert with_dpsgd.epsilon == pytest.approx(
        proven(random, DELTA / 2).epsilon + proven(POISSON, DELTA / 2).epsilon, rel=1e-3
    )


def test_one_bad_segment_spoils_the_composition():
    bad = SI.with_(release="mu")
    guarantee = proven_composition([POISSON, bad], DELTA)
    assert guarantee.epsilon == math.inf
    assert guarantee.reason == proven(bad, DELTA).reason


def test_nothing_costs_nothing():
    assert proven_composition([], DELTA).epsilon == 0
    assert claimed_composition([], DELTA).epsilon == 0
    assert proven(POISSON.with_(steps=0), DELTA).epsilon == 0


def test_claims_do_not_know_replacement():
    guarantee = claimed(POISSON, DELTA, "replace_one")
    assert guarantee.adjacency == "add_or_remove_one"
    assert guarantee.epsilon == claimed(POISSON, DELTA).epsilon
    assert claimed(POISSON, DELTA).adjacency == "zero_out"


def test_assumptions_name_what_matters():
    sentences = " ".join(proven(POISSON.with_(seeded=True), DELTA).assumptions)
    for words in ("1000", "coin flips", "stays secret", "seed"):
        assert words in sentences


def test_registry(monkeypatch):
    from tfdp.accounting import guarantees

    monkeypatch.setattr(guarantees, "_MODULES", dict(guarantees._MODULES))
    register_mechanism("quiet", "tfdp.accounting.none")
    register_mechanism("quiet", "tfdp.accounting.none")
    assert "quiet" in mechanisms()
    assert proven(POISSON.with_(mechanism="quiet"), DELTA).epsilon == math.inf
    with pytest.raises(ValueError, match="taken"):
        register_mechanism("dpsgd", "tfdp.accounting.none")


def test_every_public_name_loads():
    for name in accounting.__all__:
        assert getattr(accounting, name) is not None
    assert set(accounting.__all__) <= set(dir(accounting))
