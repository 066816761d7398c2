"""Lots have exactly the law of their sampling scheme: brute force over all lots of tiny data sets."""

import collections
import itertools

import numpy as np
import pytest
import scipy.stats

from tfdp import data

# All draws are seeded. A correct sampler with another seed fails once in a billion runs.
SIGNIFICANCE = 1e-9
DRAWS = 1_500


def make(sampling="poisson", num_examples=50, lot_size=10, seed=7, **options):
    ids = np.arange(num_examples, dtype=np.int32)
    return data.make_lots(
        sampling, ids.astype(np.float32), ids, lot_size=lot_size, seed=seed, **options
    )


def drawn(lots, count=DRAWS, **options):
    return list(itertools.islice(lots.indices(**options).as_numpy_iterator(), count))


def coins(members, chance):
    """The probability of each subset if every member joins independently."""
    subsets = (s for n in range(len(members) + 1) for s in itertools.combinations(members, n))
    return {s: chance ** len(s) * (1 - chance) ** (len(members) - len(s)) for s in subsets}


def equally_likely(outcomes):
    outcomes = list(outcomes)
    return dict.fromkeys(outcomes, 1 / len(outcomes))


def law_p_value(found, law):
    """Chi-square p-value of outcomes under a law, a dict of their probabilities."""
    counts = collections.Counter(found)
    if not counts.keys() <= law.keys():
        return 0.0
    expected = [len(found) * chance for chance in law.values()]
    return scipy.stats.chisquare([counts[outcome] for outcome in law], expected).pvalue


def independence_p_value(found):
    """Chi-square p-value for the independence of an outcome and the next one, in disjoint pairs."""
    pairs = collections.Counter(zip(found[::2], found[1::2], strict=True))
    table = [[pairs[first, second] for second in set(found[1::2])] for first in set(found[::2])]
    return scipy.stats.chi2_contingency(table).pvalue


def as_sets(lots):
    return [tuple(sorted(lot.tolist())) for lot in lots]


# For each scheme: its name, the numbers of examples, of a lot and of nominal examples, and the law.
LAWS = {
    "poisson": ("poisson", 3, 1, None, coins(range(3), 1 / 3)),
    "fewer than nominal": ("poisson", 3, 2, 5, coins(range(3), 2 / 5)),
    "more than nominal": ("poisson", 3, 1, 2, coins(range(3), 1 / 2)),
    "fixed size": ("fixed_size", 5, 2, None, equally_likely(itertools.combinations(range(5), 2))),
    "with replacement": (
        *("with_replacement", 3, 2, None),
        equally_likely(itertools.product(range(3), repeat=2)),
    ),
}


@pytest.fixture(scope="module", params=LAWS)
def sample(request):
    sampling, examples, lot_size, nominal, law = LAWS[request.param]
    found = drawn(make(sampling, examples, lot_size, nominal_examples=nominal))
    in_order = sampling == "with_replacement"
    return [tuple(lot.tolist()) for lot in found] if in_order else as_sets(found), law


def test_every_lot_is_as_likely_as_its_scheme_says(sample):
    found, law = sample
    assert law_p_value(found, law) > SIGNIFICANCE


def test_successive_lots_are_independent(sample):
    found, _ = sample
    assert independence_p_value(found) > SIGNIFICANCE
    assert independence_p_value([lot for lot in found[:500] for _ in range(2)]) < SIGNIFICANCE


def test_another_probability_and_another_scheme_are_rejected():
    found, law = as_sets(drawn(make("poisson", 3, 1))), coins(range(3), 1 / 3)
    for wrong in (1 / 3 * 2 / 3, 1 / 3 * 3 / 2):
        assert law_p_value(found, coins(range(3), wrong)) < SIGNIFICANCE
    for sampling in ("cyclic", "shuffle", "with_replacement", "fixed_size"):
        assert law_p_value(as_sets(drawn(make(sampling, 3, 1), 200)), law) < SIGNIFICANCE


class TestPoisson:
    def test_many_examples_join_equally_often_and_independently(self):
        """More coins than random words of one draw, so that no word may serve twice."""
        draws = drawn(make("poisson", 50, 10))
        member = np.zeros((DRAWS, 50))
        for row, lot in zip(member, draws, strict=True):
            assert np.unique(lot).size == lot.size
            row[lot] = 1
        z = (member.sum(axis=0) - DRAWS * 0.2) / np.sqrt(DRAWS * 0.2 * 0.8)
        assert scipy.stats.chi2.sf(np.sum(z**2), 50) > SIGNIFICANCE
        # All 1,225 correlations in a lot and 2,500 with the next lot are about N(0, 1/DRAWS).
        both = np.hstack([member[1:], member[:-1]])
        correlation = np.corrcoef(both, rowvar=False)[np.triu_indices(100, 1)]
        limit = scipy.stats.norm.isf(SIGNIFICANCE / (2 * correlation.size))
        assert np.abs(correlation).max() * np.sqrt(DRAWS - 1) < limit

    @pytest.mark.parametrize("lot_size", [15, 1_999, 4_095])
    def test_chances_are_exact_where_the_first_bits_of_a_coin_do_not_decide(self, lot_size):
        # The first bits count in 16ths of a lot; without the other bits these sizes fail.
        sizes = [lot.size for lot in drawn(make("poisson", 4_096, lot_size), 1_000)]
        q = lot_size / 4_096
        spread = np.sqrt(1_000 * 4_096 * q * (1 - q))
        assert abs(sum(sizes) - 1_000 * lot_size) < 5 * spread

    def test_probability_one_draws_everyone(self):
        for lots in (make("poisson", 7, 7), make("poisson", 7, 9, nominal_examples=9)):
            for lot in drawn(lots, 3):
                np.testing.assert_array_equal(lot, np.arange(7))

    def test_the_nominal_number_is_what_is_accounted(self):
        lots = make("poisson", 30, 10, nominal_examples=50)
        assert (lots.nominal, lots.num_examples, lots.available_examples) == (True, 50, 30)
        assert (lots.lot_size, lots.steps_per_epoch) == (10, 5)

    @pytest.mark.parametrize("sampling", ["cyclic", "fixed_size"])
    def test_a_nominal_number_belongs_to_one_scheme(self, sampling):
        with pytest.raises(ValueError, match="nominal_examples"):
            make(sampling, nominal_examples=50)

    def test_lots_are_at_most_the_nominal_number(self):
        with pytest.raises(ValueError, match="from 1 to 9"):
            make("poisson", nominal_examples=9)


class TestRandomAllocation:
    def test_an_epoch_puts_every_example_into_one_lot_uniformly_and_independently(self):
        """Three examples, three lots: 27 equally likely epochs."""
        lots = as_sets(drawn(make("random_allocation", 3, 1), 3 * DRAWS))
        places = []
        for epoch in zip(*[iter(lots)] * 3, strict=True):
            assert sorted(i for lot in epoch for i in lot) == [0, 1, 2]
            places.append(
                tuple(next(t for t, lot in enumerate(epoch) if i in lot) for i in range(3))
            )
        law = equally_likely(itertools.product(range(3), repeat=3))
        assert law_p_value(places, law) > SIGNIFICANCE
        assert independence_p_value(places) > SIGNIFICANCE
        assert law_p_value(places, equally_likely(itertools.permutations(range(3)))) < SIGNIFICANCE


class TestMicrobatches:
    """Groups of neighbours come together, and have the law that single examples have."""

    @pytest.mark.parametrize(
        "sampling", ["poisson", "fixed_size", "shuffle", "random_allocation", "with_replacement"]
    )
    def test_whole_groups_are_drawn(self, sampling):
        lots = drawn(make(sampling, 7, 4, microbatch_size=2), 200)
        groups = collections.Counter()
        for lot in lots:
            pairs = lot.reshape(-1, 2)
            assert len(pairs) == 2 or sampling in ("poisson", "random_allocation")
            np.testing.assert_array_equal(pairs[:, 0] % 2, 0)
            np.testing.assert_array_equal(pairs[:, 1], pairs[:, 0] + 1)  # 7 stands for no example
            groups.update(pairs[:, 0].tolist())
        assert groups.keys() == {0, 2, 4, 6} and min(groups.values()) > 50

    def test_the_law_is_that_of_groups(self):
        lots = [tuple(lot[::2].tolist()) for lot in drawn(make("poisson", 6, 2, microbatch_size=2))]
        assert law_p_value(lots, coins((0, 2, 4), 1 / 3)) > SIGNIFICANCE
        turns = drawn(make("cyclic_poisson", 12, 2, groups=2, microbatch_size=2))
        for turn in (0, 1):
            found = [tuple((lot[::2] // 2).tolist()) for lot in turns[turn::2]]
            assert law_p_value(found, coins(range(turn, 6, 2), 1 / 3)) > SIGNIFICANCE

    def test_absent_rows_weigh_nothing(self):
        lots = make("fixed_size", 7, 7 - 1, microbatch_size=2)
        for rows, _, weight in lots.as_dataset().take(20):
            assert rows.shape[0] == 6 and np.sum(weight) in (5, 6)

    def test_sizes_that_do_not_fit_are_refused(self):
        with pytest.raises(ValueError, match="divide"):
            make("poisson", 10, 5, microbatch_size=2)


class TestCyclicPoisson:
    def test_every_lot_is_a_poisson_sample_of_the_group_in_turn(self):
        """Six examples in two groups of three: a lot of nominal size 1 has probability 1/3."""
        lots = as_sets(drawn(make("cyclic_poisson", 6, 1, groups=2)))
        for turn in (0, 1):
            group = range(turn, 6, 2)
            assert law_p_value(lots[turn::2], coins(group, 1 / 3)) > SIGNIFICANCE
            for wrong in (1 / 3 * 2 / 3, 1 / 3 * 3 / 2, 1 / 6):
                assert law_p_value(lots[turn::2], coins(group, wrong)) < SIGNIFICANCE
        assert independence_p_value(lots) > SIGNIFICANCE
        assert independence_p_value(lots[::2]) > SIGNIFICANCE

    def test_the_last_examples_are_left_out_and_do_not_count(self):
        lots = make("cyclic_poisson", 53, 4, groups=5, sample_weight=np.arange(1, 54))
        assert (lots.num_examples, lots.groups, lots.steps_per_epoch) == (50, 5, 12)
        for _, y, weight in itertools.islice(lots.as_dataset().as_numpy_iterator(), 20):
            np.testing.assert_array_equal(weight[weight > 0], y[weight > 0] + 1)
            assert np.all(y < 50)

    def test_it_starts_at_any_turn(self):
        lots = make("cyclic_poisson", 50, 10, groups=5)
        for turn in (0, 1, 4):
            (first,) = drawn(lots, 1, turn=turn)
            np.testing.assert_array_equal(first, np.arange(turn, 50, 5))  # the whole group
            _, y, _ = next(lots.as_dataset(turn).as_numpy_iterator())
            np.testing.assert_array_equal(y, first)
        with pytest.raises(ValueError, match="turn"):
            lots.as_dataset(5)

    @pytest.mark.parametrize("groups", [0, 6, None])
    def test_groups_have_to_fit(self, groups):
        with pytest.raises(ValueError, match="groups"):
            make("cyclic_poisson", groups=groups)
        with pytest.raises(ValueError, match="groups"):
            make("poisson", groups=2)


class TestCyclic:
    def test_the_given_order_is_repeated(self):
        lots = make("cyclic", 23, 5)
        assert (lots.num_examples, lots.steps_per_epoch) == (23, 4)
        found = np.concatenate(drawn(lots, 8))
        assert found.tolist() == [*range(20)] * 2  # 20, 21 and 22 are left out

    def test_the_last_examples_are_kept_if_asked(self):
        kept = data.make_lots("cyclic", np.arange(23.0), np.arange(23), lot_size=5, keep_last=True)
        assert (kept.num_examples, kept.steps_per_epoch, kept.available_examples) == (25, 5, 23)
        lots = drawn(kept, 10)
        assert [len(lot) for lot in lots] == [5, 5, 5, 5, 3] * 2
        assert np.concatenate(lots).tolist() == [*range(23)] * 2

    def test_without_a_rest_keeping_it_changes_nothing(self):
        kept = data.make_lots("cyclic", np.arange(20.0), np.arange(20), lot_size=5, keep_last=True)
        assert (kept.num_examples, kept.steps_per_epoch) == (20, 4)


class TestShuffled:
    def test_every_epoch_is_a_new_permutation_and_all_are_equally_likely(self):
        found = np.concatenate(drawn(make("shuffle", 4, 1), 4 * DRAWS))
        epochs = [tuple(epoch) for epoch in found.reshape(-1, 4).tolist()]
        assert law_p_value(epochs, equally_likely(itertools.permutations(range(4)))) > SIGNIFICANCE
        assert independence_p_value(epochs) > SIGNIFICANCE

    def test_the_remainder_is_left_out_but_not_always_the_same(self):
        lots = drawn(make("shuffle", 23, 5), 200)
        assert all(lot.size == 5 for lot in lots)
        for start in range(0, 200, 4):
            assert np.unique(np.concatenate(lots[start : start + 4])).size == 20
        assert np.unique(np.concatenate(lots)).size == 23


def test_a_lot_without_replacement_may_be_everyone():
    for lot in drawn(make("fixed_size", 7, 7), 2):
        np.testing.assert_array_equal(np.sort(lot), np.arange(7))


@pytest.mark.parametrize("sampling", sorted(data.SCHEMES))
def test_a_class_draws_the_scheme_that_it_names(sampling):
    lots = make(sampling, groups=5 if sampling == "cyclic_poisson" else None)
    assert type(lots.scheme) is data.SCHEMES[sampling] and lots.sampling == sampling
    assert (lots.num_examples, lots.lot_size, lots.steps_per_epoch) == (50, 10, 5)
    assert not lots.nominal


def test_an_unknown_scheme_is_refused():
    with pytest.raises(ValueError, match="balls"):
        make("balls")
