"""From units to rows: views, people, functions of examples, and seeds that follow from the example."""

import collections
import itertools

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from helpers import Rows

from tests.gradients.engines.test_exact import dense, run
from tests.rounding import assert_close, terms_of
from tfdp import data
from tfdp.data.people import People, split_people

X = np.arange(40, dtype=np.float32)[:, None]


def lots_of(**options):
    return data.make_lots("fixed_size", X, np.arange(40), lot_size=8, **options)


def with_seed(example, seed):
    x, y = example
    return (tf.cast(seed, tf.float32), x), y


def take(lots, count=3, **options):
    return [*itertools.islice(lots.as_dataset(**options).as_numpy_iterator(), count)]


class TestSeeds:
    def test_they_follow_from_step_example_and_view(self):
        lots, order = lots_of(augmentations=2).map(with_seed), bytes(range(16))
        found = collections.defaultdict(set)
        for step, ((seeds, _), labels, weight) in enumerate(take(lots, 20, order=order)):
            assert weight.all() and (seeds >= 0).all()
            np.testing.assert_array_equal(labels[::2], labels[1::2])
            for view, (seed, label) in enumerate(zip(seeds, labels, strict=True)):
                found[step, int(label), view % 2].add(tuple(seed))
        assert {len(seeds) for seeds in found.values()} == {1}
        assert len({seed for seeds in found.values() for seed in seeds}) == 20 * 8 * 2

    def test_no_place_in_the_lot_and_no_seed_of_the_user_decides_them(self):
        def seeds_of(lots, **options):
            ((seeds, _), labels, _) = take(lots.map(with_seed), 1, **options)[0]
            return {int(label): tuple(seed) for label, seed in zip(labels, seeds, strict=True)}

        order = bytes(range(16))
        few, all_ = (
            seeds_of(data.make_lots(kind, X, np.arange(40), lot_size=size), order=order)
            for kind, size in (("fixed_size", 8), ("cyclic", 40))
        )
        assert few.items() <= all_.items()
        one, other = (seeds_of(lots_of(seed=3)) for _ in range(2))
        assert one.keys() == other.keys() and not one.items() & other.items()


class TestFunctions:
    @pytest.mark.parametrize("python", [False, True])
    def test_they_see_one_example(self, python):
        shapes = []

        def double(example):
            x, y = example
            shapes.append(x.shape)
            return 2.0 * x, y

        lots = lots_of(seed=1).map(double, python=python).map(double, python=python)
        for x, y, weight in take(lots):
            np.testing.assert_array_equal(x[:, 0], 4.0 * y)
            assert weight.all()
        assert {tuple(shape) for shape in shapes} == {(1,)}

    @pytest.mark.parametrize("before", [None, lambda example: example], ids=["records", "results"])
    @pytest.mark.parametrize("python", [False, True])
    @pytest.mark.parametrize(
        "odd", [np.uint16(7), np.float32(7), np.ones(2, np.uint8), 7, 7.5], ids=repr
    )
    def test_a_row_is_the_same_beside_rows_of_another_type_or_shape(self, odd, python, before):
        source = data.as_source(Rows([np.uint8(200), np.uint8(3), odd, np.uint8(5)]))
        source = source if before is None else source.map(before, python=True)
        source = source.map(lambda x: float(tf.as_dtype(x.dtype).max), python=python)
        found = source.rows(np.arange(4))[0].tolist()
        assert found == [source.rows(np.array([row]))[0].item() for row in range(4)]
        assert found[0] == found[1] == found[3] == 255

    def test_the_row_that_has_another_type_is_named(self):
        rows = Rows([0] * 7 + [0.5, 0])
        lots = data.make_lots("cyclic", rows, lot_size=9)
        with pytest.raises(tf.errors.OpError, match="Row 7 "):
            take(lots, 1)

    def test_draws_are_those_without_a_function(self):
        plain, mapped = lots_of(seed=1), lots_of(seed=1).map(lambda example: example)
        for (x, y, _), (mapped_x, mapped_y, _) in zip(take(plain), take(mapped), strict=True):
            np.testing.assert_array_equal(x, mapped_x)
            np.testing.assert_array_equal(y, mapped_y)

    def test_mapped_lots_never_draw_what_the_others_drew(self):
        lots = data.make_lots("poisson", X, np.arange(40), lot_size=20, seed=1)
        first = [y[w > 0].tolist() for _, y, w in take(lots)]
        assert [y[w > 0].tolist() for _, y, w in take(lots.map(lambda e: e))] != first

    def test_examples_of_different_sizes_become_equal(self):
        class Ragged:
            def __len__(self):
                return 10

            def __getitem__(self, index):
                return np.ones(index + 1, np.float32), index

        def padded(example):
            x, y = example
            return tf.pad(x, [[0, 10 - tf.shape(x)[0]]]), y

        with pytest.raises(ValueError, match=r"Row 9 .*shape"):
            data.as_source(Ragged()).rows(np.array([0, 9]))
        lots = data.make_lots("cyclic", Ragged(), lot_size=10).map(padded)
        ((x, y, _),) = take(lots, 1)
        np.testing.assert_array_equal(x.sum(axis=1), y + 1)
        source = data.as_source(Ragged())[:4].map(padded)
        model = keras.Sequential([keras.Input((10,)), keras.layers.Dense(1)])
        assert model.predict(data.SourceBatches(source, 3), verbose=0).shape == (4, 1)

    def test_what_cannot_be_traced_says_how(self):
        for function in (
            lambda example: (np.asarray(example[0].numpy()), example[1]),
            lambda x, y: (x / 255, y),
        ):
            with pytest.raises(Exception) as caught:
                lots_of().map(function).spec  # noqa: B018
            assert any("python=True" in note for note in caught.value.__notes__)
        with pytest.raises(TypeError, match="returned None"):
            lots_of().map(lambda example: None, python=True).spec  # noqa: B018

    @pytest.mark.parametrize("python", [False, True])
    def test_without_a_seed_they_are_called_for_each_view(self, python):
        rng = np.random.default_rng(0)

        def noisy(example):
            noise = rng.normal(size=1) if python else tf.random.normal([1])
            return example[0] + noise.astype("float32") if python else example[0] + noise, example[
                1
            ]

        lots = lots_of(augmentations=4).map(lambda example: example).map(noisy, python=python)
        ((x, _, _),) = take(lots, 1)
        assert len(np.unique(x)) == 8 * 4


IDS = np.array(["a", "b", "a", "c", "a", "b", "a", "a"])  # a has 5 examples, b 2 and c 1


class TestPeople:
    def test_each_set_of_a_persons_examples_is_equally_likely(self):
        people = People(IDS, 2)
        assert (people.count, people.num_rows) == (3, 8)
        found = []
        for number in range(2_000):
            rows, counts = people.examples(np.array([2, 0, 1]), number.to_bytes(16, "little"))
            assert counts.tolist() == [1, 2, 2]
            assert rows[0].tolist() == [3, -1] and sorted(rows[2].tolist()) == [1, 5]
            found.append(tuple(sorted(rows[1].tolist())))
        counts = collections.Counter(found)
        assert counts.keys() == {*itertools.combinations((0, 2, 4, 6, 7), 2)}
        assert scipy.stats.chisquare([*counts.values()]).pvalue > 1e-9

    def test_lots_are_of_people(self):
        x = np.arange(8.0)
        lots = data.make_lots(
            "poisson", x, lot_size=2, seed=1, privacy_ids=IDS, examples_per_person=2
        )
        assert (lots.num_examples, lots.steps_per_epoch, lots.views) == (3, 1, 2)
        for rows, _, weight in take(lots, 20):
            present = np.flatnonzero(weight)
            owners = collections.Counter(IDS[rows[present].astype(int)])
            assert all(count == {"a": 2, "b": 2, "c": 1}[who] for who, count in owners.items())
            for pair in weight.reshape(-1, 2):  # weights of a mean over those present
                assert pair.sum() in (0.0, 2.0)

    def test_all_examples_of_a_person_move_a_sum_by_one_clip_norm(self):
        """Neighbours differ in the rows of one person, which are anything else, or absent."""
        rng, model, clip = np.random.default_rng(0), dense(), 0.3
        x = rng.normal(size=(8, 6)).astype(np.float32)

        def sum_of(x, present=True):
            lots = data.make_lots(
                *("cyclic", x, np.arange(8) % 3), lot_size=3, privacy_ids=IDS, examples_per_person=3,
            )  # fmt: skip
            rows, y, weight = take(lots, 1, order=bytes(16))[0]
            if not present:
                weight = weight.reshape(3, 3) * [[0], [1], [1]]
            found = run(model, rows, y, weight.ravel().astype(np.float32), clip, views=3)
            assert np.asarray(found["present"]).tolist() == [present, True, True]
            return found["sum"]

        moved = np.where((IDS == "a")[:, None], 100 * rng.normal(size=x.shape), x)
        whole = sum_of(x)
        assert np.linalg.norm(whole - sum_of(x, present=False)) <= clip * (1 + 1e-5)
        difference = np.linalg.norm(whole - sum_of(moved.astype(np.float32)))
        assert 0.1 * clip < difference <= 2 * clip * (1 + 1e-5)
        assert_close(sum_of(x), whole, terms_of(model, 8))

    def test_ids_fit_the_data(self):
        for ids, per_person, message in (
            (IDS[:7], 1, "7 privacy_ids for 8"),
            (IDS, None, "examples_per_person is missing"),
            ("person", 1, "the text 'person'"),
            (IDS, 0, "examples_per_person"),
            (np.zeros(8), 1, "integer or text"),
            (np.array([2, np.nan, 1, np.nan, 2, 1, 3, 2], object), 1, "row 1 is nan"),
            ([*IDS[:7], None], 1, "row 7 is None"),
            (np.array(["2020-01-01"] * 8, "datetime64[D]"), 1, "integer or text"),
        ):
            with pytest.raises(ValueError, match=message):
                data.make_lots(
                    "poisson",
                    np.zeros(8),
                    lot_size=1,
                    privacy_ids=ids,
                    examples_per_person=per_person,
                )

    def test_ids_may_be_objects_of_one_type(self):
        numbers = np.array([np.int64(i) if i % 2 else i for i in (2, 1, 2, 3, 1, 2, 2, 2)], object)
        for ids in (numbers, IDS.astype(object), [b"a", b"b", b"a", b"c", b"a", b"b", b"a", b"a"]):
            assert People(ids, 1).count == 3

    def test_splits_go_by_person(self):
        with pytest.raises(ValueError, match="both sides"):
            split_people(IDS, 0.9)
        train, held_out = split_people(IDS, 0.3)
        assert sorted([*train, *held_out]) == [*range(8)]
        assert not {*IDS[train]} & {*IDS[held_out]} and len({*IDS[held_out]}) == 1
