"""Lots are complete, padded by absent examples, secret, and never repeated by accident."""

import copy
import itertools
import os
import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests.rounding import FUNCTION, assert_close
from tfdp import data


def make(sampling="poisson", num_examples=50, lot_size=8, **options):
    ids = np.arange(num_examples, dtype=np.int32)
    options = {"groups": 3 if sampling == "cyclic_poisson" else None} | options
    return data.make_lots(sampling, ids.astype(np.float32), ids, lot_size=lot_size, **options)


def take(dataset, count):
    return list(itertools.islice(dataset.as_numpy_iterator(), count))


def labels(dataset, count=5):
    return [y.tolist() for _, y, _ in take(dataset, count)]


every_sampling = pytest.mark.parametrize("sampling", sorted(data.SCHEMES))
some_samplings = pytest.mark.parametrize("sampling", ["poisson", "cyclic", "cyclic_poisson"])
every_random_sampling = pytest.mark.parametrize("sampling", sorted({*data.SCHEMES} - {"cyclic"}))


class TestRows:
    @every_sampling
    def test_absent_rows_come_last_are_copies_and_weigh_nothing(self, sampling):
        x = np.random.default_rng(0).uniform(1, 2, (50, 4, 3)).astype(np.float32)
        groups = 5 if sampling == "cyclic_poisson" else None
        lots = data.make_lots(
            sampling, x, np.arange(1, 51), lot_size=10, physical_batch_size=16, groups=groups
        )
        dataset = lots.as_dataset()
        assert dataset.tfdp_lots is lots
        assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
        assert dataset.element_spec == (
            tf.TensorSpec((None, 4, 3), tf.float32),
            tf.TensorSpec((None,), tf.int64),
            tf.TensorSpec((None,), tf.float32),
        )
        for rows, ids, weight in take(dataset, 5):
            assert len(rows) == len(ids) == len(weight) == lots.padded_size
            real = weight > 0
            assert np.all(np.diff(real.astype(int)) <= 0)
            np.testing.assert_array_equal(rows[real], x[ids[real] - 1])
            copied = rows[0] if real.any() else x[0]  # a model can compute with every row
            assert (rows[~real] == copied).all()
            assert sampling in ("poisson", "random_allocation") or real.sum() == 10
            assert sampling == "with_replacement" or np.unique(ids[real]).size == real.sum()

    @pytest.mark.parametrize("sampling", ["cyclic", "fixed_size"])
    def test_lots_of_fixed_size_are_filled_up_to_whole_physical_batches(self, sampling):
        lots = make(sampling, lot_size=9, physical_batch_size=4)
        ((_, _, weight),) = take(lots.as_dataset(), 1)
        assert (lots.physical_batch_size, lots.padded_size) == (4, 12)
        np.testing.assert_array_equal(weight, [1] * 9 + [0] * 3)
        assert make(sampling, lot_size=9).padded_size == 9  # without a physical batch size

    def test_a_partial_last_lot_is_padded(self):
        kept = data.make_lots("cyclic", np.arange(23.0), np.arange(23), lot_size=5, keep_last=True)
        x, _, weight = take(kept.as_dataset(), 5)[-1]
        assert weight.tolist() == [1, 1, 1] + [0] * (len(weight) - 3)
        assert x[:3].tolist() == [20, 21, 22]

    def test_an_overflowing_lot_keeps_every_drawn_example(self, monkeypatch):
        monkeypatch.setattr("tfdp.data.schemes.OVERFLOW_PROBABILITY", 0.9)
        options = {"lot_size": 25, "physical_batch_size": 4, "seed": 3}
        lots, twin = make("poisson", **options), make("poisson", **options)
        grown = 0
        pairs = zip(take(lots.as_dataset(), 50), take(twin.indices(), 50), strict=True)
        for (_, y, weight), drawn in pairs:
            np.testing.assert_array_equal(y[weight > 0], drawn)
            assert len(y) == max(lots.padded_size, -(-drawn.size // 4) * 4)
            grown += len(y) > lots.padded_size
        assert grown > 10

    def test_empty_lots_are_lots(self):
        weights = [
            weight for _, _, weight in take(make(num_examples=5, lot_size=1).as_dataset(), 60)
        ]
        assert 2 < sum(not weight.any() for weight in weights) < 50  # P(empty) = 0.8**5 = 0.33
        assert len({len(weight) for weight in weights}) == 1

    @pytest.mark.parametrize(
        ("sampling", "options", "law"),
        [
            ("poisson", {}, (60_000, 256 / 60_000)),
            ("poisson", {"nominal_examples": 50_000}, (60_000, 256 / 50_000)),
            ("cyclic_poisson", {"groups": 16}, (60_000 // 16, 256 * 16 / 60_000)),
        ],
    )
    def test_the_padded_size_is_seldom_exceeded(self, sampling, options, law):
        lots = make(sampling, 60_000, 256, physical_batch_size=1, **options)
        tail = scipy.stats.binom(*law).sf
        assert tail(lots.padded_size) <= 1e-9 < tail(lots.padded_size - 1)

    def test_a_row_multiple_makes_lots_of_different_sizes(self):
        lots = make("poisson", row_multiple=4)
        for _, _, weight in take(lots.as_dataset(), 10):
            assert len(weight) == max(4, -(-int(weight.sum()) // 4) * 4)


class TestContent:
    @some_samplings
    def test_sample_weights_travel_with_their_examples(self, sampling):
        weights = np.arange(50, dtype=np.float32) / 10  # example 0 is absent altogether
        lots = make(sampling, physical_batch_size=16, sample_weight=weights)
        for _, y, weight in take(lots.as_dataset(), 10):
            present = weight > 0
            assert_close(weight[present], y[present] / 10, FUNCTION)

    def test_weights_of_tokens_and_outputs_are_padded_with_zeros(self):
        x, y = np.arange(10.0), {"a": np.arange(10), "b": np.arange(10)}
        weights = {"a": np.ones((10, 3)), "b": None}
        lots = data.make_lots("poisson", x, y, lot_size=2, sample_weight=weights, row_multiple=8)
        for x_lot, y_lot, found in take(lots.as_dataset(), 5):
            present = np.flatnonzero(found["b"])
            assert found["a"].shape == (8, 3)
            np.testing.assert_array_equal(found["a"].any(axis=1), found["b"] == 1.0)
            np.testing.assert_array_equal(x_lot[present], y_lot["b"][present])

    def test_nested_arrays(self):
        ids = np.arange(50)
        x = {"a": ids, "b": [ids.astype(np.float64)[:, None], ids % 2 == 0]}
        lots = data.make_lots("cyclic", x, (ids, -ids), lot_size=10)
        ((inputs, targets, _),) = take(lots.as_dataset(), 1)
        np.testing.assert_array_equal(inputs["a"], np.arange(10))
        np.testing.assert_array_equal(inputs["b"][0][:, 0], np.arange(10))
        np.testing.assert_array_equal(targets[1], -targets[0])

    def test_inputs_and_targets_may_be_absent(self):
        lots = data.make_lots("poisson", {"a": np.zeros((10, 2)), "b": None}, lot_size=5)
        (lot,) = lots.as_dataset().take(1)
        assert lot[0]["b"] is None and lot[1] is None and lot[2].shape == lot[0]["a"].shape[:1]
        assert lots.in_memory()[0]["b"] is None
        with pytest.raises(ValueError, match="at least one array"):
            data.make_lots("poisson", None, np.zeros(3), lot_size=1)

    def test_a_fingerprint_tells_data_and_order_apart(self):
        ids = np.arange(10)
        prints = {
            data.make_lots("cyclic", x, y, lot_size=5, sample_weight=weight).fingerprint()
            for x, y, weight in (
                (ids, ids, None),
                (ids[::-1], ids, None),
                (ids, ids[::-1], None),
                (ids.astype(float), ids, None),
                (ids, ids, np.arange(10)),
            )
        }
        assert len(prints) == 5
        assert data.make_lots("poisson", ids.copy(), ids, lot_size=2).fingerprint() in prints


class TestSecrecy:
    @every_sampling
    def test_lots_are_neither_copied_nor_changed(self, sampling):
        lots = make(sampling)
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="secret"):
                copied(lots)
        for name in ("lot_size", "num_examples", "groups", "seeded", "sampling"):
            with pytest.raises(AttributeError, match="no setter"):
                setattr(lots, name, getattr(lots, name))

    @pytest.mark.parametrize("sampling", ["poisson", "shuffle", "fixed_size"])
    def test_a_second_iterator_does_not_repeat_the_first(self, sampling):
        dataset = make(sampling, seed=1).as_dataset()
        assert labels(dataset) != labels(dataset)

    @pytest.mark.parametrize("sampling", ["poisson", "shuffle", "cyclic_poisson"])
    def test_a_seed_reproduces_every_iterator(self, sampling):
        first, again, other = (make(sampling, seed=seed) for seed in (7, 7, 8))
        assert first.seeded
        found = [[labels(d), labels(d)] for d in (v.as_dataset() for v in (first, again, other))]
        assert found[0] == found[1] != found[2]

    @pytest.mark.parametrize("sampling", ["poisson", "shuffle", "fixed_size"])
    def test_global_seeds_do_not_reach_the_draws(self, sampling):
        found = []
        for _ in range(2):
            keras.utils.set_random_seed(0)
            lots = make(sampling)
            assert not lots.seeded
            found.append(labels(lots.as_dataset()))
        assert found[0] != found[1]

    @pytest.mark.parametrize("sampling", ["cyclic", "shuffle"])
    def test_every_iterator_starts_a_new_epoch(self, sampling):
        dataset = make(sampling, lot_size=10).as_dataset()
        next(dataset.as_numpy_iterator())  # leave the iterator within an epoch
        np.testing.assert_array_equal(np.sort(np.concatenate(labels(dataset))), np.arange(50))

    @every_random_sampling
    def test_an_order_can_be_resumed_at_any_lot(self, sampling):
        lots = make(sampling)
        order = lots.new_order()
        found = labels(lots.as_dataset(order=order), 8)
        assert labels(make(sampling).as_dataset(order=order, start=3)) == found[3:]
        assert labels(lots.as_dataset(order=lots.new_order()), 8) != found

    def test_another_process_may_not_draw(self, monkeypatch):
        lots = make()
        monkeypatch.setattr(os, "getpid", lambda: lots.process_id + 1)
        for draw in (lots.as_dataset, lots.indices):
            with pytest.raises(RuntimeError, match="fork"):
                draw()

    @pytest.mark.slow
    def test_a_live_iterator_does_not_keep_the_process(self):
        """With a Python generator, a prefetching iterator sometimes hangs the process at exit."""
        program = (
            "import numpy as np; from tfdp import data;"
            "x = np.zeros((2000, 500), 'float32');"
            "i = iter(data.make_lots('poisson', x, x[:, 0], lot_size=500).as_dataset()); next(i)"
        )
        subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("lot_size", [0, 51, 2.5, True, float("nan")]),
            ("physical_batch_size", [0, 1.5]),
            ("seed", [-1, "a"]),
            ("nominal_examples", [0, 1.5, float("nan")]),
        ],
    )
    def test_numbers(self, name, values):
        for value in values:
            with pytest.raises(ValueError, match=name):
                make(**{name: value})

    @pytest.mark.parametrize(
        ("x", "y", "match"),
        [
            (np.zeros((4, 2)), np.zeros(5), "first dimension"),
            (np.zeros((0, 2)), np.zeros(0), "at least one example"),
            (np.float32(1), np.zeros(0), "at least one example"),
            (np.array([None, "b"]), np.zeros(2), "numbers, or of texts"),
        ],
    )
    def test_arrays(self, x, y, match):
        with pytest.raises(ValueError, match=match):
            data.make_lots("poisson", x, y, lot_size=1)

    def test_sample_weights(self):
        weights = np.ones((4, 3))
        for bad in (-1.0, np.nan, np.inf):
            weights[2, 1] = bad
            for sample_weight in (weights[:, 1], weights, {"a": np.ones(4), "b": weights}):
                with pytest.raises(ValueError, match="finite sample weights"):
                    data.make_lots(
                        "poisson", np.zeros(4), np.zeros(4), lot_size=1, sample_weight=sample_weight
                    )
        with pytest.raises(ValueError, match=r"\(4,\)"):
            data.make_lots(
                "poisson", np.zeros(4), np.zeros(4), lot_size=1, sample_weight=np.ones((3, 1))
            )


@pytest.mark.parametrize("dtype", [str, object])
def test_texts_are_drawn_and_copied_for_absent_examples(dtype):
    texts = np.array(["a", "longer", "é"], dtype)
    lots = data.make_lots("poisson", texts, np.arange(3), lot_size=1, seed=1)
    for x, y, _ in take(lots.as_dataset(), 5):
        found = [text.decode() for text in x]
        assert found == [texts[i] for i in y]
    again = data.make_lots(
        "poisson", np.array(["a", "longer", "é"], dtype), np.arange(3), lot_size=1, seed=2
    )
    other = data.make_lots(
        "poisson", np.array(["b", "longer", "é"], dtype), np.arange(3), lot_size=1, seed=2
    )
    assert lots.fingerprint() == again.fingerprint() != other.fingerprint()
