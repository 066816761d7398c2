"""Lots follow their sampling scheme, are complete, padded by absent examples, and never repeat."""

import itertools
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tfdp import data

# A correct sampler fails one of these tests once in a billion runs.
SIGNIFICANCE = 1e-9


def make(sampling="poisson", num_examples=50, lot_size=10, **options):
    ids = np.arange(num_examples, dtype=np.int32)
    options = groups(sampling) | options
    return data.make_lots(sampling, ids.astype(np.float32), ids, lot_size=lot_size, **options)


def groups(sampling):
    return {"groups": 5} if sampling == "cyclic_poisson" else {}


def take_indices(lots, count):
    return list(itertools.islice(lots.indices().as_numpy_iterator(), count))


def take(lots, count):
    return list(itertools.islice(lots.as_dataset().as_numpy_iterator(), count))


def binomial_size_p_value(sizes, num_examples, q):
    """Chi-square p-value of lot sizes against Binomial(N, q), tails pooled into bins of >= 10."""
    sizes = np.asarray(sizes)
    expected = len(sizes) * scipy.stats.binom.pmf(np.arange(num_examples + 1), num_examples, q)
    observed = np.bincount(sizes, minlength=num_examples + 1)
    low = int(np.searchsorted(np.cumsum(expected), 10))
    high = num_examples - int(np.searchsorted(np.cumsum(expected[::-1]), 10))

    def pool(counts):
        return np.concatenate(
            [[counts[: low + 1].sum()], counts[low + 1 : high], [counts[high:].sum()]]
        )

    return scipy.stats.chisquare(pool(observed), pool(expected)).pvalue


@pytest.fixture(scope="module")
def draws():
    return take_indices(make("poisson", num_examples=50, lot_size=10), 20_000)


class TestPoisson:
    def test_sizes_are_binomial(self, draws):
        assert binomial_size_p_value([d.size for d in draws], 50, 0.2) > SIGNIFICANCE

    @pytest.mark.parametrize("sampling", ["cyclic", "shuffle", "with_replacement", "fixed_size"])
    def test_the_size_test_rejects_samplers_of_fixed_size(self, sampling):
        draws = take_indices(make(sampling, num_examples=50, lot_size=10), 2_000)
        assert binomial_size_p_value([d.size for d in draws], 50, 0.2) < SIGNIFICANCE

    @pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
    def test_the_size_test_rejects_another_probability(self, draws, factor):
        assert binomial_size_p_value([d.size for d in draws], 50, 0.2 * factor) < SIGNIFICANCE

    def test_every_example_is_included_equally_often(self, draws):
        counts = np.bincount(np.concatenate(draws), minlength=50)
        z = (counts - 20_000 * 0.2) / np.sqrt(20_000 * 0.2 * 0.8)
        assert scipy.stats.chi2.sf(np.sum(z**2), 50) > SIGNIFICANCE

    def test_pairs_of_examples_are_independent(self, draws):
        member = np.zeros((len(draws), 50))
        for row, drawn in zip(member, draws, strict=True):
            row[drawn] = 1
        correlation = np.corrcoef(member, rowvar=False)[np.triu_indices(50, 1)]
        # There are 1,225 correlations, each about N(0, 1/n). Fixed lots of 10 would give -1/49.
        limit = scipy.stats.norm.isf(SIGNIFICANCE / 2450)
        assert np.abs(correlation).max() * np.sqrt(len(draws)) < limit

    def test_successive_lots_are_independent(self, draws):
        sizes = np.array([d.size for d in draws])
        correlation = np.corrcoef(sizes[1:], sizes[:-1])[0, 1]
        assert abs(correlation) * np.sqrt(len(sizes)) < scipy.stats.norm.isf(SIGNIFICANCE / 2)

    def test_no_example_is_drawn_twice_in_a_lot(self, draws):
        assert all(np.unique(d).size == d.size for d in draws)

    @pytest.mark.parametrize("lot_size", [1, 4, 15, 16, 1_999, 3_900, 4_095])
    def test_chances_are_exact_where_the_first_bits_of_a_coin_do_not_decide(self, lot_size):
        # The first bits count in 16ths of a lot; without the other bits, all lot sizes but 16 fail.
        lots = make("poisson", num_examples=4_096, lot_size=lot_size, seed=5)
        sizes = lots.indices().map(tf.size).take(1_500)
        total = sum(sizes.as_numpy_iterator())
        q = lot_size / 4_096
        spread = np.sqrt(1_500 * 4_096 * q * (1 - q))
        assert abs(total - 1_500 * lot_size) < 5 * spread

    def test_probability_one_draws_everyone(self):
        for drawn in take_indices(make("poisson", num_examples=7, lot_size=7), 5):
            np.testing.assert_array_equal(drawn, np.arange(7))

    def test_empty_lots_are_lots(self):
        lots = take(make("poisson", num_examples=5, lot_size=1), 200)
        weights = [weight.sum() for _, _, weight in lots]
        # P(empty) = 0.8**5 = 0.33
        assert 20 < np.sum(np.equal(weights, 0)) < 120
        assert all(x.shape[0] == lots[0][0].shape[0] for x, _, _ in lots)

    def test_padded_size_is_a_high_quantile(self):
        lots = make("poisson", num_examples=60_000, lot_size=256, physical_batch_size=64)
        assert lots.padded_size == 384
        assert lots.padded_size % lots.physical_batch_size == 0
        assert scipy.stats.binom.sf(lots.padded_size, 60_000, 256 / 60_000) < 1e-9

    def test_overflow_keeps_every_drawn_example(self):
        lots = make("poisson", num_examples=50, lot_size=25, physical_batch_size=4, seed=3)
        vars(lots)["padded_size"] = 20  # far below the usual size
        twin = make("poisson", num_examples=50, lot_size=25, physical_batch_size=4, seed=3)
        pairs = zip(take(lots, 100), take_indices(twin, 100), strict=True)
        grown = 0
        for (_, y, weight), drawn in pairs:
            np.testing.assert_array_equal(y[weight > 0], drawn)
            assert y.shape[0] % 4 == 0
            assert y.shape[0] == max(20, -(-drawn.size // 4) * 4)
            grown += y.shape[0] > 20
        assert grown > 50


@pytest.fixture(scope="module")
def turns():
    return take_indices(make("cyclic_poisson", lot_size=4), 20_000)


class TestCyclicPoisson:
    """50 examples in 5 groups of 10. Lots of nominal size 4 have sampling probability 0.4."""

    def test_groups_take_turns(self, turns):
        for step, drawn in enumerate(turns[:200]):
            assert np.all(drawn % 5 == step % 5)
        assert all(np.unique(d).size == d.size for d in turns)

    def test_sizes_are_binomial(self, turns):
        sizes = [d.size for d in turns]
        assert binomial_size_p_value(sizes, 10, 0.4) > SIGNIFICANCE
        for wrong in (0.4 * 2 / 3, 0.4 * 3 / 2, 4 / 50):
            assert binomial_size_p_value(sizes, 10, wrong) < SIGNIFICANCE

    def test_every_example_is_included_equally_often(self, turns):
        counts = np.bincount(np.concatenate(turns), minlength=50)
        z = (counts - 4_000 * 0.4) / np.sqrt(4_000 * 0.4 * 0.6)
        assert scipy.stats.chi2.sf(np.sum(z**2), 50) > SIGNIFICANCE

    def test_examples_and_rounds_are_independent(self, turns):
        member = np.zeros((4_000, 50))  # whether the example is in its group's lot of a round
        for step, drawn in enumerate(turns):
            member[step // 5, drawn] = 1
        both = np.hstack([member[1:], member[:-1]])
        correlation = np.corrcoef(both, rowvar=False)[np.triu_indices(100, 1)]
        limit = scipy.stats.norm.isf(SIGNIFICANCE / (2 * len(correlation)))
        assert np.abs(correlation).max() * np.sqrt(len(both)) < limit

    def test_the_last_examples_are_left_out_and_do_not_count(self):
        lots = make("cyclic_poisson", num_examples=53, lot_size=4)
        assert (lots.num_examples, lots.groups, lots.steps_per_epoch) == (50, 5, 12)
        drawn = np.unique(np.concatenate(take_indices(lots, 400)))
        np.testing.assert_array_equal(drawn, np.arange(50))
        weights = make("cyclic_poisson", num_examples=53, lot_size=4, sample_weight=np.arange(53))
        for _, y, weight in take(weights, 50):
            np.testing.assert_array_equal(weight[weight > 0], y[weight > 0])

    def test_it_starts_at_any_turn(self):
        lots = make("cyclic_poisson", lot_size=10)
        for turn in range(5):
            first = next(lots.indices(turn).as_numpy_iterator())
            np.testing.assert_array_equal(first, np.arange(turn, 50, 5))  # the whole group
            _, y, _ = next(lots.as_dataset(turn).as_numpy_iterator())
            np.testing.assert_array_equal(y, first)
        for turn in (-1, 5):
            with pytest.raises(ValueError, match=r"Expected turn .*from 0 to 4"):
                lots.as_dataset(turn)

    def test_one_group_is_poisson(self):
        grouped = make("cyclic_poisson", groups=1, seed=5)
        plain = make("poisson", seed=5)
        assert grouped.padded_size == plain.padded_size
        for a, b in zip(take_indices(grouped, 50), take_indices(plain, 50), strict=True):
            np.testing.assert_array_equal(a, b)

    def test_padded_size_is_a_high_quantile(self):
        lots = make(
            "cyclic_poisson", num_examples=60_000, lot_size=256, groups=16, physical_batch_size=1
        )
        tail = scipy.stats.binom(60_000 // 16, 256 * 16 / 60_000).sf
        assert tail(lots.padded_size) <= 1e-9 < tail(lots.padded_size - 1)


def set_p_value(draws, num_examples):
    """Chi-square p-value for the uniformity of lots over all sets of their size."""
    size = draws[0].size
    number = {s: i for i, s in enumerate(itertools.combinations(range(num_examples), size))}
    sets = [number[tuple(np.sort(drawn))] for drawn in draws]
    return scipy.stats.chisquare(np.bincount(sets, minlength=len(number))).pvalue


@pytest.fixture(scope="module")
def sets():
    return take_indices(make("fixed_size", num_examples=7, lot_size=3), 20_000)


class TestWithoutReplacement:
    def test_examples_of_a_lot_are_different(self, sets):
        assert all(drawn.dtype == np.int64 and np.unique(drawn).size == 3 for drawn in sets)

    def test_every_set_of_examples_is_equally_likely(self, sets):
        assert set_p_value(sets, 7) > SIGNIFICANCE

    def test_the_test_of_sets_rejects_a_skewed_sampler(self):
        rng = np.random.default_rng(0)
        chances = np.r_[np.full(6, 0.145), 0.13]
        skewed = [rng.choice(7, 3, replace=False, p=chances) for _ in range(20_000)]
        assert set_p_value(skewed, 7) < SIGNIFICANCE
        # Here, examples are equally frequent, but neighbours stay together.
        blocks = [(rng.integers(7) + np.arange(3)) % 7 for _ in range(20_000)]
        assert set_p_value(blocks, 7) < SIGNIFICANCE

    def test_every_example_takes_every_place(self, sets):
        for place in range(3):
            counts = np.bincount([drawn[place] for drawn in sets], minlength=7)
            assert scipy.stats.chisquare(counts).pvalue > SIGNIFICANCE

    def test_successive_lots_are_independent(self, sets):
        """Two lots share a hypergeometric number of examples; lots of one epoch share none."""
        for distance in (1, 2, 5):
            common = [
                np.intersect1d(a, b).size for a, b in zip(sets, sets[distance:], strict=False)
            ]
            # The pairs of lots are disjoint, so that the numbers are independent.
            observed = np.bincount(common[:: 2 * distance], minlength=4)
            expected = observed.sum() * scipy.stats.hypergeom(7, 3, 3).pmf(range(4))
            assert scipy.stats.chisquare(observed, expected).pvalue > SIGNIFICANCE
        shuffled = take_indices(make("shuffle", num_examples=6, lot_size=3), 2_000)
        common = [np.intersect1d(a, b).size for a, b in itertools.pairwise(shuffled)]
        expected = 1_999 * scipy.stats.hypergeom(6, 3, 3).pmf(range(4))
        found = scipy.stats.chisquare(np.bincount(common, minlength=4), expected).pvalue
        assert found < SIGNIFICANCE

    def test_a_lot_may_be_everyone(self):
        for drawn in take_indices(make("fixed_size", num_examples=7, lot_size=7), 3):
            np.testing.assert_array_equal(np.sort(drawn), np.arange(7))


class TestNominalExamples:
    def test_the_probability_is_that_of_the_nominal_number(self):
        for available in (30, 50, 80):
            lots = make("poisson", num_examples=available, lot_size=10, nominal_examples=50)
            assert (lots.nominal, lots.num_examples, lots.available_examples) == (
                True,
                50,
                available,
            )
            assert (lots.lot_size, lots.steps_per_epoch) == (10, 5)
            draws = take_indices(lots, 4_000)
            sizes = [d.size for d in draws]
            assert binomial_size_p_value(sizes, available, 0.2) > SIGNIFICANCE
            if available != 50:
                wrong = binomial_size_p_value(sizes, available, 10 / available)
                assert wrong < SIGNIFICANCE
            counts = np.bincount(np.concatenate(draws), minlength=available)
            assert counts.size == available
            z = (counts - 4_000 * 0.2) / np.sqrt(4_000 * 0.2 * 0.8)
            assert scipy.stats.chi2.sf(np.sum(z**2), available) > SIGNIFICANCE

    @pytest.mark.parametrize("available", [30, 80])
    def test_lots_hold_their_examples_and_are_padded(self, available):
        lots = make("poisson", num_examples=available, nominal_examples=50, physical_batch_size=4)
        tail = scipy.stats.binom(available, 0.2).sf
        assert tail(lots.padded_size) <= 1e-9 < tail(lots.padded_size - 4)
        assert lots.inputs.shape == (available,)
        for x, y, weight in take(lots, 50):
            real = weight > 0
            np.testing.assert_array_equal(x[real], y[real])
            assert np.unique(y[real]).size == real.sum()
            assert not x[~real].any()

    def test_probability_one_and_few_examples(self):
        lots = make("poisson", num_examples=3, lot_size=7, nominal_examples=7)
        for _, y, weight in take(lots, 3):
            np.testing.assert_array_equal(y[weight > 0], np.arange(3))
        assert lots.steps_per_epoch == 1
        rare = make("poisson", num_examples=1, lot_size=1, nominal_examples=10**12)
        assert rare.padded_size >= 1
        assert not any(weight.any() for _, _, weight in take(rare, 20))

    def test_without_it_the_examples_are_counted(self):
        for sampling in data.SAMPLINGS:
            lots = make(sampling)
            assert (lots.nominal, lots.num_examples, lots.available_examples) == (False, 50, 50)
        same = make("poisson", nominal_examples=50, seed=4)
        assert same.nominal
        for a, b in zip(
            take_indices(same, 20), take_indices(make("poisson", seed=4), 20), strict=True
        ):
            np.testing.assert_array_equal(a, b)

    @pytest.mark.parametrize("nominal", [0, -1, 1.5, True, float("nan")])
    def test_refusals(self, nominal):
        with pytest.raises(
            ValueError, match=r"Expected nominal_examples .*without looking at the data"
        ):
            make("poisson", nominal_examples=nominal)

    def test_lots_are_at_most_the_nominal_number(self):
        with pytest.raises(
            ValueError, match=r"lot_size .*from 1 to 9\. .*nominal number of examples"
        ):
            make("poisson", nominal_examples=9)

    @pytest.mark.parametrize("sampling", sorted(set(data.SAMPLINGS) - {"poisson"}))
    def test_it_belongs_to_one_scheme(self, sampling):
        with pytest.raises(ValueError, match=r"`nominal_examples`.*'poisson'"):
            make(sampling, nominal_examples=50)


class TestForks:
    def test_a_fork_may_not_draw(self):
        lots = make("poisson")
        assert lots.process_id == os.getpid()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:  # the child must not use TensorFlow, which does not survive a fork
            status = b"no error"
            try:
                lots.as_dataset()
            except RuntimeError as error:
                status = str(error).encode()
            finally:
                os.write(write, status)
                os._exit(0)
        os.waitpid(child, 0)
        message = os.read(read, 2_000).decode()
        os.close(read)
        os.close(write)
        assert f"process {lots.process_id} in process {child}" in message
        assert "make_lots after the fork" in message
        lots.as_dataset()  # the parent may still draw

    @pytest.mark.parametrize("sampling", sorted(data.SAMPLINGS))
    def test_another_process_may_not_draw(self, sampling, monkeypatch):
        lots = make(sampling)
        monkeypatch.setattr(os, "getpid", lambda: lots.process_id + 1)
        for draw in (lots.as_dataset, lots.indices):
            with pytest.raises(RuntimeError, match=r"Expected lots that this process made"):
                draw()


class TestFixedSize:
    def test_cyclic_keeps_the_last_examples_if_asked(self):
        lots = make("cyclic", num_examples=23, lot_size=5)
        kept = data.CyclicLots(np.arange(23.0), np.arange(23), 5, keep_last=True)
        assert (lots.num_examples, lots.steps_per_epoch) == (23, 4)
        assert (kept.num_examples, kept.steps_per_epoch, kept.available_examples) == (25, 5, 23)
        draws = take_indices(kept, 10)
        assert [len(draw) for draw in draws] == [5, 5, 5, 5, 3] * 2
        assert np.concatenate(draws).tolist() == [*range(23)] * 2
        *_, (x, _, weight) = kept.as_dataset().take(5)
        assert weight.numpy().tolist() == [1.0] * 3 + [0.0] * (len(weight) - 3)
        assert x.numpy()[:3].tolist() == [20.0, 21.0, 22.0]

    def test_cyclic_without_a_rest_is_the_same_either_way(self):
        kept = data.CyclicLots(np.arange(20.0), np.arange(20), 5, keep_last=True)
        assert (kept.num_examples, kept.steps_per_epoch) == (20, 4)
        assert [len(draw) for draw in take_indices(kept, 5)] == [5] * 5

    def test_cyclic_repeats_the_given_order(self):
        draws = take_indices(make("cyclic", num_examples=23, lot_size=5), 8)
        first, second = np.concatenate(draws[:4]), np.concatenate(draws[4:])
        np.testing.assert_array_equal(first, np.arange(20))  # 20, 21 and 22 are left out
        np.testing.assert_array_equal(second, first)

    def test_shuffle_covers_each_example_once_per_epoch(self):
        draws = take_indices(make("shuffle", num_examples=20, lot_size=5), 12)
        epochs = [np.concatenate(draws[i : i + 4]) for i in (0, 4, 8)]
        for epoch in epochs:
            np.testing.assert_array_equal(np.sort(epoch), np.arange(20))
        assert not np.array_equal(epochs[0], epochs[1])
        assert not np.array_equal(epochs[1], epochs[2])

    def test_shuffle_leaves_out_the_remainder_but_not_always_the_same(self):
        draws = take_indices(make("shuffle", num_examples=23, lot_size=5), 400)
        assert all(d.size == 5 for d in draws)
        assert np.unique(np.concatenate(draws)).size == 23

    def test_shuffle_puts_every_example_everywhere(self):
        draws = take_indices(make("shuffle", num_examples=8, lot_size=2), 4 * 2_000)
        table = np.zeros((8, 4))
        for step, drawn in enumerate(draws):
            table[drawn, step % 4] += 1
        # Every epoch has each example once, so 7/8 of the statistic has 7 * 3 degrees of freedom.
        statistic = scipy.stats.chisquare(table, axis=None).statistic
        assert scipy.stats.chi2.sf(7 / 8 * statistic, 7 * 3) > SIGNIFICANCE

    def test_with_replacement_repeats_within_a_lot_and_is_uniform(self):
        draws = take_indices(make("with_replacement", num_examples=10, lot_size=10), 2_000)
        assert all(d.size == 10 for d in draws)
        # P(no repetition) = 10! / 10**10 = 0.0004
        assert np.mean([np.unique(d).size < 10 for d in draws]) > 0.98
        counts = np.bincount(np.concatenate(draws), minlength=10)
        assert scipy.stats.chisquare(counts).pvalue > SIGNIFICANCE

    @pytest.mark.parametrize("sampling", ["cyclic", "shuffle", "with_replacement", "fixed_size"])
    def test_fills_up_to_whole_physical_batches(self, sampling):
        lots = make(sampling, num_examples=50, lot_size=10, physical_batch_size=4)
        (_, _, weight) = take(lots, 1)[0]
        assert (lots.physical_batch_size, lots.padded_size) == (4, 12)
        np.testing.assert_array_equal(weight, [1] * 10 + [0] * 2)

    @pytest.mark.parametrize("sampling", ["cyclic", "shuffle", "with_replacement", "fixed_size"])
    def test_no_padding_without_a_physical_batch_size(self, sampling):
        lots = make(sampling, num_examples=50, lot_size=10)
        assert (lots.physical_batch_size, lots.padded_size) == (10, 10)


@pytest.mark.parametrize("sampling", sorted(data.SAMPLINGS))
class TestDataset:
    def test_knows_its_lots(self, sampling):
        lots = make(sampling)
        dataset = lots.as_dataset()
        assert dataset.tfdp_lots is lots
        assert lots.sampling == sampling
        assert (lots.num_examples, lots.lot_size, lots.steps_per_epoch) == (50, 10, 5)
        assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY

    def test_element_spec_and_padding(self, sampling):
        x = np.random.default_rng(0).uniform(1, 2, (50, 4, 3)).astype(np.float32)
        y = np.arange(1, 51)
        lots = data.make_lots(
            sampling, x, y, lot_size=10, physical_batch_size=16, **groups(sampling)
        )
        dataset = lots.as_dataset()
        x_spec, y_spec, weight_spec = dataset.element_spec
        assert x_spec == tf.TensorSpec((None, 4, 3), tf.float32)
        assert y_spec == tf.TensorSpec((None,), tf.int64)
        assert weight_spec == tf.TensorSpec((None,), tf.float32)
        for rows, labels, weight in itertools.islice(dataset.as_numpy_iterator(), 20):
            assert len(rows) == len(labels) == len(weight) == lots.padded_size
            real = weight > 0
            assert np.all(np.diff(real.astype(int)) <= 0)  # padding comes last
            np.testing.assert_array_equal(rows[real], x[labels[real] - 1])
            assert not rows[~real].any()
            assert not labels[~real].any()

    def test_sample_weights_travel_with_their_examples(self, sampling):
        ids = np.arange(50)
        weights = ids.astype(np.float32) / 10  # example 0 is absent altogether
        lots = data.make_lots(
            sampling, ids, ids, lot_size=10, physical_batch_size=16, sample_weight=weights,
            **groups(sampling),
        )  # fmt: skip
        for _, y, weight in take(lots, 10):
            np.testing.assert_allclose(weight, y / 10, rtol=1e-6)

    def test_nested_arrays(self, sampling):
        ids = np.arange(50)
        x = {"a": ids, "b": [ids.astype(np.float64)[:, None], ids % 2 == 0]}
        lots = data.make_lots(sampling, x, (ids, -ids), lot_size=10, **groups(sampling))
        inputs, targets, weight = take(lots, 1)[0]
        real = weight > 0
        np.testing.assert_array_equal(inputs["a"], targets[0])
        np.testing.assert_array_equal(inputs["b"][0][:, 0], targets[0])
        np.testing.assert_array_equal(inputs["b"][1][real], targets[0][real] % 2 == 0)
        np.testing.assert_array_equal(targets[1], -targets[0])

    def test_a_second_iterator_does_not_replay(self, sampling):
        if sampling == "cyclic":
            pytest.skip("cyclic lots are always the same")
        for seed in (None, 1):
            dataset = make(sampling, lot_size=8, seed=seed).as_dataset()
            first, second = (
                [y.tolist() for _, y, _ in itertools.islice(dataset.as_numpy_iterator(), 5)]
                for _ in range(2)
            )
            assert first != second

    def test_every_iterator_starts_a_new_epoch(self, sampling):
        if sampling not in ("cyclic", "shuffle"):
            pytest.skip("no epochs")
        dataset = make(sampling).as_dataset()
        next(dataset.as_numpy_iterator())  # leave the iterator within an epoch
        epoch = [y for _, y, _ in itertools.islice(dataset.as_numpy_iterator(), 5)]
        np.testing.assert_array_equal(np.sort(np.concatenate(epoch)), np.arange(50))

    def test_a_seed_reproduces_every_iterator(self, sampling):
        runs = []
        for _ in range(2):
            lots = make(sampling, seed=7)
            assert lots.seeded
            dataset = lots.as_dataset()
            runs.append(
                [
                    y.tolist()
                    for _ in range(2)
                    for _, y, _ in itertools.islice(dataset.as_numpy_iterator(), 5)
                ]
            )
        assert runs[0] == runs[1]

    def test_global_seeds_do_not_reach_the_draws(self, sampling):
        if sampling == "cyclic":
            pytest.skip("nothing is random")
        runs = []
        for _ in range(2):
            keras.utils.set_random_seed(0)
            np.random.seed(0)
            lots = make(sampling, lot_size=8)
            assert not lots.seeded
            runs.append([y.tolist() for _, y, _ in take(lots, 5)])
        assert runs[0] != runs[1]

    def test_keras_fits_it(self, sampling):
        lots = make(sampling)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(loss="mse", optimizer="sgd")
        model.fit(
            lots.as_dataset().map(lambda x, y, w: (x[:, None] / 50, y / 50, w)),
            epochs=2,
            steps_per_epoch=lots.steps_per_epoch,
            verbose=0,
        )


@pytest.mark.slow
def test_a_live_iterator_does_not_keep_the_process():
    """With a Python generator, a prefetching iterator sometimes hangs the process at exit."""
    program = (
        "import numpy as np; from tfdp import data;"
        "x = np.zeros((2000, 500), 'float32');"
        "i = iter(data.make_lots('poisson', x, x[:, 0], lot_size=500).as_dataset()); next(i)"
    )
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


def test_classes_are_registered_under_their_names():
    ids = np.arange(10)
    for kind, sampling in (
        (data.PoissonLots, "poisson"),
        (data.CyclicLots, "cyclic"),
        (data.ShuffledLots, "shuffle"),
        (data.WithReplacementLots, "with_replacement"),
        (data.FixedSizeLots, "fixed_size"),
        (data.CyclicPoissonLots, "cyclic_poisson"),
    ):
        options = {"groups": 2} if sampling == "cyclic_poisson" else {}
        lots = kind(ids, ids, 5, physical_batch_size=2, **options)
        assert data.SAMPLINGS[sampling] is kind
        assert lots.sampling == sampling
        assert repr(lots).startswith(type(lots).__name__)


def test_a_fingerprint_tells_data_and_order_apart():
    ids = np.arange(10)
    prints = {
        data.CyclicLots(x, y, 5, sample_weight=weight).fingerprint()
        for x, y, weight in (
            (ids, ids, None),
            (ids[::-1], ids, None),
            (ids, ids[::-1], None),
            (ids.astype(float), ids, None),
            (ids, ids, np.arange(10)),
        )
    }
    assert len(prints) == 5
    assert data.PoissonLots(ids.copy(), ids, 2).fingerprint() in prints


class TestRefusals:
    def test_unknown_sampling(self):
        with pytest.raises(ValueError, match=r"sampling.*'poisson'.*'cyclic'.*'balls'"):
            make("balls")

    @pytest.mark.parametrize("lot_size", [0, -1, 51, 2.5, True, float("nan")])
    def test_lot_size(self, lot_size):
        with pytest.raises(ValueError, match="Expected lot_size to be a whole number from 1 to 50"):
            make(lot_size=lot_size)

    @pytest.mark.parametrize("groups", [0, -1, 1.5, True, 6])
    def test_groups(self, groups):
        with pytest.raises(ValueError, match="Expected groups"):
            make("cyclic_poisson", groups=groups)

    @pytest.mark.parametrize(("sampling", "groups"), [("cyclic_poisson", None), ("poisson", 2)])
    def test_groups_belong_to_one_scheme(self, sampling, groups):
        with pytest.raises(ValueError, match="`groups`"):
            make(sampling, groups=groups)

    @pytest.mark.parametrize("physical_batch_size", [0, -4, 1.5, float("nan")])
    def test_physical_batch_size(self, physical_batch_size):
        with pytest.raises(ValueError, match="Expected physical_batch_size to be a whole number"):
            make(physical_batch_size=physical_batch_size)

    @pytest.mark.parametrize("seed", [-1, 0.5, "a"])
    def test_seed(self, seed):
        with pytest.raises(ValueError, match="Expected seed to be a whole number"):
            make(seed=seed)

    def test_mismatched_lengths(self):
        with pytest.raises(ValueError, match=r"same first dimension.*4.*5"):
            data.PoissonLots(np.zeros((4, 2)), np.zeros(5), 2)

    @pytest.mark.parametrize("x", [np.zeros((0, 2)), np.float32(1)])
    def test_no_examples(self, x):
        with pytest.raises(ValueError, match="at least one example"):
            data.PoissonLots(x, np.zeros(0), 1)

    def test_text(self):
        with pytest.raises(ValueError, match=r"arrays of numbers.*hash_tokens"):
            data.PoissonLots(np.array(["a", "b"]), np.zeros(2), 1)

    @pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
    def test_sample_weight_values(self, bad):
        with pytest.raises(ValueError, match=r"`sample_weight`.*finite"):
            data.PoissonLots(np.zeros(2), np.zeros(2), 1, sample_weight=[1.0, bad])

    def test_sample_weight_shape(self):
        with pytest.raises(ValueError, match=r"`sample_weight`.*\(2,\)"):
            data.PoissonLots(np.zeros(2), np.zeros(2), 1, sample_weight=np.ones((3, 1)))

    @pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
    def test_weights_of_tokens_and_outputs_are_finite_and_not_negative(self, bad):
        weights = np.ones((4, 3))
        weights[2, 1] = bad
        for sample_weight in (weights, {"a": np.ones(4), "b": weights}):
            with pytest.raises(ValueError, match="finite weights"):
                data.PoissonLots(np.zeros(4), np.zeros(4), 1, sample_weight=sample_weight)


def test_weights_of_tokens_and_outputs_are_padded_with_zeros():
    x, y = np.arange(10.0), {"a": np.arange(10), "b": np.arange(10)}
    weights = {"a": np.ones((10, 3)), "b": None}
    lots = data.make_lots(
        "cyclic_poisson", x, y, lot_size=2, groups=2, sample_weight=weights, row_multiple=8
    )
    for x_lot, y_lot, found in lots.as_dataset().take(5):
        present = np.flatnonzero(found["b"])
        assert found["a"].shape == (8, 3)
        np.testing.assert_array_equal(found["a"].numpy().any(axis=1), found["b"].numpy() == 1.0)
        np.testing.assert_array_equal(x_lot.numpy()[present], y_lot["b"].numpy()[present])


def test_inputs_and_targets_may_be_absent():
    lots = data.make_lots("poisson", {"a": np.zeros((10, 2)), "b": None}, lot_size=5)
    (lot,) = lots.as_dataset().take(1)
    assert lot[0]["b"] is None and lot[1] is None and lot[2].shape == lot[0]["a"].shape[:1]
    assert lots.inputs["b"] is None and lots.fingerprint() == lots.fingerprint()
    with pytest.raises(ValueError, match="at least one array"):
        data.make_lots("poisson", None, np.zeros(3), lot_size=1)
