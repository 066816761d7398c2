"""Draws have exactly their laws: brute force over all outcomes of small cases."""

import collections
import itertools
import math

import numpy as np
import pytest
import scipy.stats

from tfdp.data import draws, words
from tfdp.data.draws import Allocation, Binomial, distinct, order
from tfdp.data.permutation import KeyedPermutation, LotSizes, siphash

SIGNIFICANCE = 1e-9
WORDS = words.Words.of_seed(5)
TIMES = 3_000


def p_value(found, law):
    counts = collections.Counter(found)
    assert counts.keys() <= law.keys()
    expected = [len(found) * chance for chance in law.values()]
    return scipy.stats.chisquare([counts[outcome] for outcome in law], expected).pvalue


def equally_likely(outcomes):
    outcomes = [*outcomes]
    return dict.fromkeys(outcomes, 1 / len(outcomes))


def many(draw):
    return [draw(WORDS.bits(1, position)) for position in range(TIMES)]


def test_words_are_those_of_philox():
    """An implementation in integers; the same in every version of NumPy."""

    def block(counter, key):
        c, k, full = list(counter), list(key), (1 << 64) - 1
        for _ in range(10):
            a, b = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
            c = [b >> 64 ^ c[1] ^ k[0], b & full, a >> 64 ^ c[3] ^ k[1], a & full]
            k = [(k[0] + 0x9E3779B97F4A7C15) & full, (k[1] + 0xBB67AE8584CAA73B) & full]
        return c

    secret = bytes(range(16))
    key = np.frombuffer(secret, "<u8").tolist()
    found = words.Words(secret).bits(stream=3, position=2, purpose=words.ORDER).words(6)
    expected = [w for n in (1, 2) for w in block([n, 2, 3, words.ORDER], key)]
    assert found.tolist() == expected[:6]
    assert WORDS.bits(1, 0).words(2).tolist() != WORDS.bits(0, 1).words(2).tolist()


@pytest.mark.parametrize(("trials", "odds"), [(4, (1, 3)), (3, (2, 3)), (40, (1, 40))])
def test_counts_are_binomial(trials, odds):
    chance = odds[0] / odds[1]
    # Counts that are too seldom for a chi-squared test are put together.
    law = scipy.stats.binom(trials, chance)
    most = next(k for k in range(trials + 1) if law.sf(k) < 2e-3)
    expected = {k: law.pmf(k) for k in range(most)} | {most: law.sf(most - 1)}
    found = [min(count, most) for count in many(Binomial(trials, odds).draw)]
    assert p_value(found, expected) > SIGNIFICANCE
    for factor in (2 / 3, 3 / 2):
        assert p_value(found, equally_likely(expected)) < SIGNIFICANCE
        wrong = many(Binomial(trials, (int(6 * odds[0] * factor), 6 * odds[1])).draw)
        assert p_value([min(count, most) for count in wrong], expected) < SIGNIFICANCE


def test_a_count_has_its_law_in_all_bits():
    """The chances of a count that has to be exact: those of a word in an interval."""
    table, law = Binomial(10**8, (3, 10**8)), scipy.stats.binom(10**8, 3e-8)
    for chance in (0.5, 1e-3, 1e-9, 1e-15):
        assert table.exceeded_with(chance) == int(law.isf(chance))
    assert [Binomial(5, odds).draw(WORDS.bits(2, 0)) for odds in ((1, 1), (0, 7))] == [5, 0]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_set_is_equally_likely(count):
    law = equally_likely(itertools.combinations(range(5), count))
    found = [tuple(lot.tolist()) for lot in many(lambda bits: distinct(bits, count, 5))]
    assert p_value(found, law) > SIGNIFICANCE


def test_every_order_is_equally_likely():
    found = many(lambda bits: tuple(order(bits, 4).tolist()))
    assert p_value(found, equally_likely(itertools.permutations(range(4)))) > SIGNIFICANCE


def test_equal_bits_are_ordered_by_further_words():
    class Tied(words.Bits):
        first = True

        def words(self, count):
            found = super().words(count)
            if self.first:
                self.first = False
                return found & np.uint64(1 << 63)
            return found

    def tied(bits):
        return tuple(order(Tied(bits._generator), 4).tolist())

    assert p_value(many(tied), equally_likely(itertools.permutations(range(4)))) > SIGNIFICANCE


def test_every_allocation_is_equally_likely():
    def lots_of(bits):
        made = Allocation(bits, 4, 2)
        return tuple(tuple(made.lot(number).tolist()) for number in range(2))

    found = many(lots_of)
    assert {tuple(sorted(a + b)) for a, b in found} == {(0, 1, 2, 3)}
    law = equally_likely(itertools.product((True, False), repeat=4))
    assert p_value([tuple(i in a for i in range(4)) for a, _ in found], law) > SIGNIFICANCE


def test_the_sizes_of_lots_are_multinomial():
    def sizes_of(epoch):
        made = LotSizes(WORDS, 1, epoch, 4, 3)
        places = [made.lot(number) for number in range(3)]
        counts = [count for _, count in places]
        assert [before for before, _ in places] == [0, counts[0], counts[0] + counts[1]]
        return tuple(count for _, count in places)

    found = [sizes_of(epoch) for epoch in range(TIMES)]
    outcomes = [s for s in itertools.product(range(5), repeat=3) if sum(s) == 4]
    law = {s: math.factorial(4) / math.prod(map(math.factorial, s)) / 81 for s in outcomes}
    assert p_value(found, law) > SIGNIFICANCE
    assert p_value(found, equally_likely(outcomes)) < SIGNIFICANCE


def test_hashes_are_those_of_the_reference():
    """The vectors of 8 and 16 bytes in SipHash's reference implementation."""
    key, message = bytes(range(16)), np.frombuffer(bytes(range(16)), "<u8")
    assert int(siphash(key, message[0])) == 0x93F5F5799A932462
    assert int(siphash(key, *message)) == 0x3F2ACC7F57C29BDB


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16, 17, 1_000])
def test_a_keyed_permutation_has_every_element_once(count):
    one, other = (KeyedPermutation(secret, count) for secret in (bytes(16), bytes(range(16))))
    assert sorted(one.at(np.arange(count)).tolist()) == [*range(count)]
    assert count < 100 or np.mean(one.at(np.arange(count)) == other.at(np.arange(count))) < 0.02


def test_a_keyed_permutation_puts_elements_anywhere():
    keys = [WORDS.secret(1, number) for number in range(TIMES)]
    found = [tuple(KeyedPermutation(key, 4).at(np.arange(4)).tolist()) for key in keys]
    assert p_value(found, equally_likely(itertools.permutations(range(4)))) > SIGNIFICANCE


def test_lots_of_a_hundred_million_need_no_more_than_themselves():
    from tfdp.data.schemes import SCHEMES

    for sampling in ("poisson", "fixed_size", "with_replacement", "cyclic"):
        scheme = SCHEMES[sampling](available=10**8, lot_size=1_000)
        lot = scheme.draw(WORDS, 1, 7)
        assert 800 < len(lot) < 1_200 and lot.min() >= 0 and lot.max() < 10**8


def test_beyond_the_largest_shuffle_orders_are_keyed(monkeypatch):
    """The lots of an epoch have every unit once, whichever lot is asked for first."""
    from tfdp.data.schemes import SCHEMES

    monkeypatch.setattr("tfdp.data.schemes.MOST_SHUFFLED", 10)
    for sampling in ("shuffle", "random_allocation"):
        scheme = SCHEMES[sampling](available=30, lot_size=5)
        last_first = [scheme.draw(WORDS, 1, step).tolist() for step in reversed(range(6, 12))]
        assert sorted(i for lot in last_first for i in lot) == [*range(30)]
        assert scheme.draw(WORDS, 1, 0).tolist() != scheme.draw(WORDS, 1, 6).tolist()


def test_the_accounting_knows_where_orders_become_keyed():
    from tfdp.accounting.sampling import RandomAllocation

    assert RandomAllocation.largest_random_order == draws.MOST_SHUFFLED
