"""Guarantees: their content, the composition of runs and the registration of mechanisms."""

import json
import math

import pytest

from tests.accounting.varying import vary
from tfdp import accounting
from tfdp.accounting import (
    Guarantee,
    Run,
    claimed,
    describe,
    mechanism_names,
    mechanisms,
    proven,
    register_mechanism,
)
from tfdp.accounting.guarantee import format_epsilon
from tfdp.accounting.mechanisms import NoMechanism
from tfdp.accounting.search import of_random_search

DELTA = 1e-5
POISSON = describe(
    mechanism="dpsgd",
    num_examples=1000,
    lot_size=10,
    steps=100,
    sampling="poisson",
    noise_multiplier=1.5,
)
CYCLIC = vary(POISSON, sampling="cyclic", noise_multiplier=3.0)
SI = vary(CYCLIC, mechanism="si_dpsgd", noise_multiplier=100.0)
FIELDS = {
    "epsilon": 1.0,
    "delta": DELTA,
    "kind": "proven",
    "adjacency": "zero_out",
    "sampling": "poisson",
    "released": "weights",
    "mechanism": "dpsgd",
}


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (1.2341, "1.235"),
        (2.00001, "2.001"),
        (50.0, "50"),
        (7669.42, "vacuous (epsilon = 7670)"),
        (math.inf, "infinite"),
    ],
)
def test_epsilon_is_rounded_up_in_words(epsilon, words):
    assert format_epsilon(epsilon) == words


@pytest.mark.parametrize(
    ("fields", "noises"),
    [
        ({"lot_size": 200, "steps": 1}, (0.0285, 0.029, 0.02938, 0.0297)),
        ({"lot_size": 467, "steps": 3, "max_examples_per_user": 3}, (0.142, 0.145, 0.1463, 0.149)),
    ],
)
def test_epsilon_falls_with_the_noise_where_it_is_vacuous(fields, noises):
    """Near 700, where e^epsilon is the largest float; all records of a user are likely to be drawn."""
    found = [proven(vary(POISSON, **fields, noise_multiplier=z), DELTA).epsilon for z in noises]
    assert found == sorted(found, reverse=True) and found[-1] > 600


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


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, True])
def test_bad_delta_is_refused(delta):
    for function in (claimed, proven):
        with pytest.raises(ValueError, match="delta"):
            function(POISSON, delta)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="adjacency"):
        proven(POISSON, DELTA, "user")
    with pytest.raises(ValueError, match="mechanism"):
        vary(POISSON, mechanism="laplace")


@pytest.mark.parametrize(("run", "tolerance"), [(POISSON, 1e-3), (vary(CYCLIC, steps=200), 1e-9)])
def test_a_run_in_two_segments_costs_what_it_costs_in_one(run, tolerance):
    half = vary(run, steps=run.steps // 2)
    for compose in (proven, claimed):
        whole = compose(run, DELTA).epsilon
        assert compose([half, half], DELTA).epsilon == pytest.approx(whole, rel=tolerance)


def test_mixed_segments_compose_soundly():
    parts = [POISSON, CYCLIC, SI]
    both = proven(parts, DELTA)
    alone = [proven(run, DELTA).epsilon for run in parts]
    assert max(alone) < both.epsilon < sum(proven(r, DELTA / 3).epsilon for r in parts)
    assert both.mechanism == "dpsgd, si_dpsgd"
    assert both.sampling == "poisson, cyclic"
    gaussian = proven([CYCLIC, SI], DELTA)
    mus = [proven(run, DELTA).mu for run in (CYCLIC, SI)]
    assert gaussian.mu == pytest.approx(math.hypot(*mus))


def test_random_si_segments_compose():
    random = vary(SI, sampling="poisson")
    two = proven([random, random], DELTA)
    assert proven(random, DELTA).epsilon < two.epsilon
    assert two.epsilon < 2 * proven(random, DELTA / 2).epsilon
    assert any("released weights" in sentence for sentence in two.assumptions)
    with_dpsgd = proven([random, POISSON], DELTA).epsilon
    parts = [proven(run, DELTA).epsilon for run in (random, POISSON)]
    assert (
        max(parts) < with_dpsgd < sum(proven(run, DELTA / 2).epsilon for run in (random, POISSON))
    )


def test_runs_of_different_users_are_all_about_the_most_examples():
    one = describe("dpsgd", num_examples=1000, lot_size=50, steps=60, noise_multiplier=2.0)
    four = one.for_users(4)
    found = proven([one, four], 1e-4)
    assert found.max_examples_per_user == 4
    assert found.epsilon == proven([four, four], 1e-4).epsilon
    trials = [[one], [four]], [[four], [four]]
    mixed, alike = (of_random_search(each, 1e-4, "zero_out", 5) for each in trials)
    assert mixed.epsilon == alike.epsilon


def test_one_bad_segment_spoils_the_composition():
    bad = vary(SI, release="mu")
    guarantee = proven([POISSON, bad], DELTA)
    assert guarantee.epsilon == math.inf
    assert guarantee.reason == proven(bad, DELTA).reason


def test_nothing_costs_nothing():
    assert proven([], DELTA).epsilon == 0
    assert claimed([], DELTA).epsilon == 0
    assert proven(vary(POISSON, steps=0), DELTA).epsilon == 0


def test_claims_do_not_know_replacement():
    guarantee = claimed(POISSON, DELTA, "replace_one")
    assert guarantee.adjacency == "add_or_remove_one"
    assert guarantee.epsilon == claimed(POISSON, DELTA).epsilon
    assert claimed(POISSON, DELTA).adjacency == "zero_out"


def test_unaccounted_training_spoils_everything():
    before = vary(POISSON, mechanism=NoMechanism(reason="Nobody accounted for keras SGD."))
    guarantee = proven([before, POISSON], DELTA)
    assert guarantee.epsilon == math.inf
    assert "keras SGD" in guarantee.reason
    assert claimed([before, POISSON], DELTA).epsilon == math.inf
    assert proven([vary(before, steps=0), POISSON], DELTA).epsilon < math.inf
    assert Run.from_dict(json.loads(json.dumps(before.to_dict()))) == before
    with pytest.raises(ValueError, match="reason"):
        NoMechanism(reason=" ")


def test_adding_a_record_needs_a_probability_that_was_fixed_before():
    with pytest.raises(ValueError, match="nominal_examples"):
        proven(POISSON, DELTA, "add_or_remove_one")
    nominal = vary(POISSON, nominal=True)
    guarantee = proven(nominal, DELTA, "add_or_remove_one")
    assert guarantee.epsilon == proven(POISSON, DELTA).epsilon
    assert "fixed without looking at the data" in " ".join(guarantee.assumptions)
    with pytest.raises(ValueError, match="regroup"):
        proven(vary(nominal, microbatch_size=2), DELTA, "add_or_remove_one")


def test_a_registered_mechanism_is_known(monkeypatch):
    monkeypatch.setattr(mechanisms, "_CLASSES", dict(mechanisms._CLASSES))

    class Quiet(NoMechanism):
        name = "quiet"

    class Impostor(NoMechanism):
        name = "dpsgd"

    assert register_mechanism(Quiet) is Quiet
    assert "quiet" in mechanism_names()
    run = vary(POISSON, mechanism="quiet")
    assert Run.from_dict(run.to_dict()) == run
    with pytest.raises(ValueError, match="dpsgd"):
        register_mechanism(Impostor)


def test_every_public_name_loads():
    for name in accounting.__all__:
        assert getattr(accounting, name) is not None
    assert set(accounting.__all__) <= set(dir(accounting))


def test_people_and_examples_compose_for_people_of_known_size():
    """A person's 4 examples in one run, and the person as one unit in the other."""
    examples = describe("dpsgd", num_examples=1000, lot_size=50, steps=60, noise_multiplier=2.0)
    people = vary(examples, num_examples=400, examples_per_person=3, views=3)
    alone = proven(people, 1e-4)
    assert alone.unit == "person" and "one person" in alone.neighbours
    assert alone.epsilon == proven(vary(examples, num_examples=400), 1e-4).epsilon
    mixed = proven([examples, people], 1e-4)
    assert math.isinf(mixed.epsilon) and "max_examples_per_user" in mixed.reason
    found = proven([examples.for_users(4), people.for_users(4)], 1e-4)
    alike = proven([examples.for_users(4), vary(examples, num_examples=400).for_users(1)], 1e-4)
    assert alone.epsilon < found.epsilon <= alike.epsilon
