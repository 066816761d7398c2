"""The data that `fit` gets become lots with a known sampling scheme, or are refused."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import LOSS, clipped_sum, data, fit, plain, private, sgd, steps, weights

import tfdp
from tfdp.data import make_lots


def foreign(rows=24, **kwargs):
    return tf.data.Dataset.from_tensor_slices(data(rows)).batch(8, **kwargs)


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (foreign(), {}, "drop_remainder"),
        (foreign(drop_remainder=True).repeat(), {}, "steps_per_epoch"),
        (iter([data()]), {}, "how its batches are drawn"),
        (data()[0], {}, "how its batches are drawn"),
        (foreign(drop_remainder=True), {"class_weight": {0: 2.0}}, "class_weight"),
        (make_lots("poisson", *data(), lot_size=8), {"batch_size": 4}, "batch_size"),
    ],
)
def test_data_whose_sampling_cannot_be_accounted_is_refused(x, options, message):
    model = private()
    with pytest.raises(ValueError, match=message):
        model.fit(x, verbose=0, **options)
    assert steps(model) == 0


@pytest.mark.parametrize(
    ("feed", "sampling", "num_examples"),
    [
        (lambda m: m.fit(*data(), batch_size=8, verbose=0), "poisson", 24),
        (lambda m: fit(m), "cyclic", 24),
        (lambda m: m.fit(make_lots("shuffle", *data(), lot_size=8), verbose=0), "shuffle", 24),
        (
            lambda m: m.fit(
                make_lots("with_replacement", *data(), lot_size=8).as_dataset(), verbose=0
            ),
            "with_replacement",
            24,
        ),
        (lambda m: m.fit(foreign(drop_remainder=True), verbose=0), "unknown", 24),
        (lambda m: fit(m, rows=30, validation_split=0.2), "cyclic", 24),
        (lambda m: [m.train_on_batch(*data(8)) for _ in range(3)], "unknown", 8),
    ],
)
def test_the_accounting_is_of_what_ran(feed, sampling, num_examples):
    model = private()
    before = weights(model)
    feed(model)
    assert not np.array_equal(weights(model), before)
    (run,) = model.privacy.ledger.runs
    assert (run.sampling_name, run.num_examples, run.lot_size, run.steps) == (
        sampling,
        num_examples,
        8,
        3,
    )
    assert not run.insecure_seed


def test_groups_take_turns_through_epochs_and_fits():
    x, y = data()
    model, reference = private(sgd(noise=0.0, clip=0.3)), plain()
    reference.compile(loss=LOSS)
    lots = make_lots("cyclic_poisson", x, y, lot_size=8, groups=3)  # sampling probability 1
    model.fit(lots, epochs=2, steps_per_epoch=2, verbose=0)
    model.fit(lots, steps_per_epoch=3, verbose=0)
    expected = weights(reference)
    shapes = [w.shape for w in reference.get_weights()]
    for turn in (0, 1, 2, 0, 1, 2, 0):
        expected = expected - 0.5 * clipped_sum(reference, x[turn::3], y[turn::3], 0.3) / 8
        parts = np.split(expected, np.cumsum([np.prod(s) for s in shapes])[:-1])
        reference.set_weights([p.reshape(s) for p, s in zip(parts, shapes, strict=True)])
    np.testing.assert_allclose(weights(model), expected, atol=1e-5)
    (run,) = model.privacy.ledger.runs
    assert (run.sampling_name, run.groups, run.steps, run.participations) == (
        "cyclic_poisson",
        3,
        7,
        3,
    )
    assert run.sampling_probability == 1.0
    # New lots divide the examples into new groups, so an example could be drawn again too soon.
    model.fit(make_lots("cyclic_poisson", x, y, lot_size=8, groups=3), verbose=0)
    assert [run.steps for run in model.privacy.ledger.runs] == [7, 3]


def test_examples_that_are_in_no_group_do_not_count():
    model = private()
    model.fit(make_lots("cyclic_poisson", *data(26), lot_size=4, groups=3), verbose=0)
    (run,) = model.privacy.ledger.runs
    assert (run.num_examples, run.steps, run.sampling_probability) == (24, 6, 0.5)


def test_a_foreign_dataset_trains_for_several_epochs():
    model = private()
    model.fit(foreign(drop_remainder=True), epochs=3, verbose=0)
    assert steps(model) == 9


def test_class_and_sample_weights_multiply():
    _, y = data(8)
    one = private(sgd(noise=0.0, clip=1e3))
    fit(one, rows=8, class_weight={0: 2.0, 1: 0.0}, sample_weight=np.arange(8.0))
    two = private(sgd(noise=0.0, clip=1e3))
    fit(two, rows=8, sample_weight=np.arange(8.0) * np.array([2.0, 0.0, 1.0])[y])
    np.testing.assert_allclose(weights(one), weights(two), atol=1e-6)


def test_lots_bring_their_physical_batch_size():
    results = []
    for size, expected in ((None, None), (4, 4)):
        model = private(sgd(noise=0.0))
        model.fit(make_lots("cyclic", *data(), lot_size=8, physical_batch_size=size), verbose=0)
        assert model._session.plan.physical_batch_size == expected
        results.append(weights(model))
    np.testing.assert_allclose(*results, atol=1e-6)


def test_a_users_seed_reproduces_lots_and_other_fits_draw_others():
    def train():
        model = private(sgd(noise=0.0), seed=5)
        model.fit(*data(), batch_size=8, verbose=0)
        return model

    one, two = train(), train()
    np.testing.assert_array_equal(weights(one), weights(two))
    assert one.privacy.ledger.runs[0].insecure_seed
    feeder = one._privacy.feeder
    resumed = tfdp.make_private(two, seed=5)._privacy.feeder
    assert len({feeder._next_seed(one), feeder._next_seed(one), resumed._next_seed(two)}) == 3


def test_an_epoch_in_fixed_order_has_all_examples_and_ends_with_a_partial_lot():
    x, y = data(20)
    model, reference = private(sgd(noise=0.0, clip=0.3)), plain()
    reference.compile(loss=LOSS)
    model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    expected = weights(reference)
    shapes = [w.shape for w in reference.get_weights()]
    for first in (0, 8, 16, 0, 8, 16):
        rows = slice(first, first + 8)
        # The divisor stays the public lot size in the lot of four examples.
        expected = expected - 0.5 * clipped_sum(reference, x[rows], y[rows], 0.3) / 8
        parts = np.split(expected, np.cumsum([np.prod(s) for s in shapes])[:-1])
        reference.set_weights([p.reshape(s) for p, s in zip(parts, shapes, strict=True)])
    np.testing.assert_allclose(weights(model), expected, atol=1e-5)
    (run,) = model.privacy.ledger.runs
    assert (run.num_examples, run.lot_size, run.steps) == (24, 8, 6)  # four absent examples
    # Every example takes part twice, as in two epochs of 24 examples.
    whole = private(sgd(noise=1.0))
    fit(whole, epochs=2)
    partial = private(sgd(noise=1.0))
    fit(partial, epochs=2, rows=20)
    assert partial.privacy.spent(delta=1e-5).epsilon == whole.privacy.spent(delta=1e-5).epsilon


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("asked", "taken"), [(2, 2), (3, 3), (4, 3), (None, {True: 2, False: 3})])
def test_an_epoch_of_arrays_is_at_most_one_pass_as_in_keras(shuffle, asked, taken):
    model = private()
    fit(model, epochs=2, rows=20, steps_per_epoch=asked, shuffle=shuffle)
    assert steps(model) == 2 * (taken[shuffle] if asked is None else taken)
