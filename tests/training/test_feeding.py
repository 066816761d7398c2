"""The data that `fit` gets become lots with a known sampling scheme, or are refused."""

import itertools

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from helpers import LOSS, clipped_sum, data, fit, plain, private, sgd, steps, weights

import tfdp
from tfdp.accounting import BudgetExhausted
from tfdp.data import make_lots
from tfdp.training import batches as batches_module
from tfdp.training import private_training
from tfdp.training.batches import class_weights


def foreign(rows=24, **kwargs):
    return tf.data.Dataset.from_tensor_slices(data(rows)).batch(8, **kwargs)


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (foreign(drop_remainder=True).repeat(), {}, "steps_per_epoch"),
        (foreign().take(0), {}, "at least one batch"),
        (iter([]), {}, "at least one batch"),
        (data()[0], {}, "compares outputs with targets"),
        (foreign(drop_remainder=True), {"y": data()[1]}, "'y'"),
        (foreign(), {"batch_size": 8}, "batch_size"),
        (tf.data.Dataset.from_tensors(tf.ragged.constant([[1.0]])), {}, "dense"),
        (make_lots("poisson", *data(), lot_size=8), {"class_weight": {0: 2.0}}, "class_weight"),
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


# -- batches that the user draws ---------------------------------------------------------------------


class Sequence(keras.utils.PyDataset):
    """Batches of 8 in order; the last one may be smaller."""

    def __init__(self, rows=20, length=3, **options):
        super().__init__(**options)
        self.x, self.y = data(rows)
        self.length, self.epochs = length, []

    def __getitem__(self, i):
        return self.x[i * 8 : i * 8 + 8], self.y[i * 8 : i * 8 + 8]

    @property
    def num_batches(self):
        return self.length

    def on_epoch_begin(self):
        self.epochs.append("begin")


class Loader:
    """What PyTorch's DataLoader is like: lists of batches, with a length, that can be begun anew."""

    def __len__(self):
        return 3

    def __iter__(self):
        return iter([[*batch] for batch in batches()])


def batches(rows=20):
    x, y = data(rows)
    return [(x[i : i + 8], y[i : i + 8]) for i in range(0, rows, 8)]


def by_hand(epochs):
    """Weights after sums of clipped gradients, each divided by 8, however small the batch."""
    reference = plain()
    reference.compile(loss=LOSS)
    shapes = [w.shape for w in reference.get_weights()]
    for x, y in batches() * epochs:
        moved = weights(reference) - 0.5 * clipped_sum(reference, x, y, 0.3) / 8
        parts = np.split(moved, np.cumsum([np.prod(s) for s in shapes])[:-1])
        reference.set_weights([p.reshape(s) for p, s in zip(parts, shapes, strict=True)])
    return weights(reference)


OF_A_USER = {
    "dataset": lambda: foreign(20),
    "dataset of unknown length": lambda: foreign(20).filter(lambda *_: True),
    "PyDataset": Sequence,
    "PyDataset with workers": lambda: Sequence(workers=2),
    "loader": Loader,
}


@pytest.mark.parametrize("several", [1, 2])
@pytest.mark.parametrize("kind", OF_A_USER)
def test_batches_of_a_user_are_padded_and_accounted_without_amplification(kind, several):
    x = OF_A_USER[kind]()
    model = private(sgd(noise=0.0, clip=0.3), compiled={"steps_per_execution": several})
    model.fit(x, epochs=2, shuffle=False, verbose=0)
    np.testing.assert_allclose(weights(model), by_hand(2), atol=1e-5)
    (run,) = model.privacy.ledger.runs
    assert (run.sampling_name, run.lot_size, run.steps) == ("unknown", 8, 6)
    assert getattr(x, "epochs", ["begin"] * 2) == ["begin"] * 2


def test_a_generator_serves_one_epoch():
    model = private(sgd(noise=0.0, clip=0.3))
    model.fit((batch for batch in batches()), verbose=0)
    np.testing.assert_allclose(weights(model), by_hand(1), atol=1e-5)
    assert steps(model) == 3


def test_an_endless_generator_ends_with_its_steps():
    model = private()
    model.fit(itertools.cycle(batches()), steps_per_epoch=4, epochs=2, verbose=0)
    assert steps(model) == 8
    model.fit(Sequence(24, None), steps_per_epoch=2, verbose=0)
    assert steps(model) == 10
    with pytest.raises(ValueError, match="steps_per_epoch"):
        model.fit(Sequence(24, None), verbose=0)


def test_a_loop_of_ones_own_takes_the_same_batches():
    for kind in ("dataset of unknown length", "PyDataset", "loader"):
        model = private(sgd(noise=0.0, clip=0.3))
        logs = list(model.privacy.steps(OF_A_USER[kind](), epochs=2, shuffle=False))
        assert len(logs) == steps(model) == 6
        np.testing.assert_allclose(weights(model), by_hand(2), atol=1e-5)


def test_a_training_of_unknown_length_is_described_as_it_goes_on(monkeypatch):
    monkeypatch.setattr(private_training, "OPEN_ENDED", 2)
    model = private(sgd(noise=2.0))
    model.fit((batch for batch in batches(60)), verbose=0)
    assert [run.steps for run in model.privacy.ledger.runs] == [8]
    known = private(sgd(noise=2.0))
    known.fit(foreign(60), verbose=0)
    assert model.privacy.spent(1e-5).epsilon == known.privacy.spent(1e-5).epsilon


def test_a_budget_holds_for_batches_of_unknown_length():
    model = private(budget=tfdp.PrivacyBudget(8.0, 1e-5), compiled={"steps_per_execution": 2})
    with pytest.raises(BudgetExhausted):
        model.fit(itertools.cycle(batches(24)), verbose=0)
    assert 0 < model.privacy.spent(1e-5).epsilon <= 8.0
    assert model.privacy.steps_left < 2


def test_executions_that_end_with_the_data_leave_their_steps_in_the_budget():
    fitting = private(sgd(noise=4.0))
    # 6 steps will be taken, and 2 more have to be allowed to see that the data have ended.
    fitting.fit(foreign(64), verbose=0)
    budget = tfdp.PrivacyBudget(fitting.privacy.spent(1e-5).epsilon * (1 + 1e-9), 1e-5)
    model = private(sgd(noise=4.0), budget=budget, compiled={"steps_per_execution": 2})
    model.fit(foreign().filter(lambda *_: True), epochs=2, verbose=0)
    assert steps(model) == 6


def test_a_larger_batch_than_the_first_is_refused_before_its_step():
    model = private()
    before = weights(model)
    with pytest.raises(
        ValueError, match=r"^A batch has more rows than the first one, which has 4,"
    ):
        model.fit(
            tf.data.Dataset.from_generator(
                lambda: iter([data(4), data(8)]), output_signature=foreign().element_spec
            ),
            verbose=0,
        )
    assert steps(model) == 1
    assert not np.array_equal(weights(model), before)


def test_batches_without_rows_or_shapes_say_what_to_do():
    x, y = data(8)
    batches = [(x, y)]
    unknown = tf.data.Dataset.from_generator(
        lambda: iter(batches), output_types=(tf.float32, tf.int64)
    )
    cases = [
        (tf.data.Dataset.from_tensor_slices((x, y)), "single examples.*dataset.batch"),
        (tf.data.Dataset.from_tensor_slices(y), "single examples.*dataset.batch"),
        (zip(x, y[:, None], strict=True), "single examples.*yield whole batches"),
        (unknown, "unknown shape.*`output_signature`"),
    ]
    for given, message in cases:
        model = private()
        with pytest.raises(ValueError, match=message):
            model.fit(given, verbose=0)
        assert steps(model) == 0


def test_what_batches_cost_is_said_once(caplog):
    batches_module._say_what_is_lost.cache_clear()
    with caplog.at_level("WARNING"):
        for _ in range(2):
            private().fit(foreign(), verbose=0)
    (said,) = [r for r in caplog.records if "amplification" in r.getMessage()]
    assert "make_lots" in said.getMessage()


def test_class_weights_of_batches_are_those_of_arrays():
    results = []
    for x in (foreign(24), Sequence(24)):
        model = private(sgd(noise=0.0, clip=1e3))
        model.fit(x, class_weight={0: 2.0, 7: 3.0}, shuffle=False, verbose=0)
        results.append(weights(model))
    model = private(sgd(noise=0.0, clip=1e3))
    fit(model, class_weight={0: 2.0, 7: 3.0})
    for found in results:
        np.testing.assert_allclose(found, weights(model), atol=1e-5)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1), "one-hot", "float"])
def test_class_weights_are_those_of_keras(shape):
    y = data()[1]  # classes 0, 1 and 2
    forms = {"one-hot": np.eye(3)[y], "float": y + 1e-7}
    y_true = forms[shape] if isinstance(shape, str) else y.reshape(shape)
    factors = class_weights(y_true, {0: 3.0, 2: 0.5}).numpy()
    np.testing.assert_array_equal(factors, np.array([3.0, 1.0, 0.5])[y])


# -- what fit takes, as Keras does -------------------------------------------------------------------


def test_few_examples_are_one_lot():
    for rows in (1, 3, 24):
        model = private()
        model.fit(*data(rows), verbose=0)
        (run,) = model.privacy.ledger.runs
        assert (run.lot_size, run.num_examples, run.steps) == (rows, rows, 1)
    model = private()
    model.fit(*data(24), batch_size=100, verbose=0)
    assert model.privacy.ledger.runs[0].lot_size == 24
    with pytest.raises(ValueError, match="batch_size"):
        model.fit(*data(24), batch_size=0, verbose=0)


def test_steps_per_epoch_decides_the_size_of_lots_where_nothing_else_does():
    model = private()
    model.fit(*data(24), steps_per_epoch=5, epochs=2, verbose=0)
    (run,) = model.privacy.ledger.runs
    assert (run.lot_size, run.steps) == (5, 10)


def test_a_cap_on_the_steps_of_an_epoch_is_kept():
    keras.config.set_max_steps_per_epoch(2)
    try:
        model = private(compiled={"steps_per_execution": 4})
        fit(model)
    finally:
        keras.config.set_max_steps_per_epoch(None)
    assert steps(model) == 2


class Seen(keras.callbacks.Callback):
    """Counts the batches of validation."""

    count = 0

    def on_test_batch_end(self, batch, logs=None):
        self.count += 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"validation_data": data(10)}, 2),
        ({"validation_data": data(10), "validation_batch_size": 5}, 2),
        ({"validation_data": data(10), "validation_batch_size": 1}, 10),
        ({"validation_data": data(10), "validation_batch_size": 1, "validation_steps": 4}, 4),
        ({"validation_split": 0.5}, 2),
        ({"validation_data": foreign(10)}, 2),
        ({"validation_data": Sequence(24)}, 3),
    ],
)
def test_validation_is_that_of_keras(options, expected):
    seen = [Seen(), Seen()]
    x, y = data(20)
    private_model, plain_model = private(), plain()
    plain_model.compile("sgd", LOSS, metrics=["accuracy"])
    for model, callback in zip((private_model, plain_model), seen, strict=True):
        history = model.fit(x, y, batch_size=8, verbose=0, callbacks=[callback], **options).history
        assert {"val_loss", "val_accuracy"} <= set(history)
    assert [callback.count for callback in seen] == [expected, expected]


def test_a_split_leaves_examples_on_both_sides():
    with pytest.raises(ValueError, match="both sides"):
        private().fit(*data(3), validation_split=0.9, verbose=0)


def test_numbers_are_in_the_precision_of_keras():
    x, y = data(8)
    results = []
    for kind in (np.float32, np.float64, np.float16):
        column = y[:, None].astype(kind)
        x = x.astype(np.float16).astype(kind)  # the same numbers in each precision
        lots = make_lots("cyclic", x, column, lot_size=8, sample_weight=np.ones(8, kind))
        assert {spec.dtype for spec in lots.as_dataset().element_spec} == {tf.float32}
        by_fit, by_batch = private(sgd(noise=0.0)), private(sgd(noise=0.0))
        by_fit.fit(x, column, batch_size=8, shuffle=False, verbose=0)
        by_batch.train_on_batch(x, column, sample_weight=np.ones(8, kind))
        results += [weights(by_fit), weights(by_batch)]
    for found in results[1:]:
        np.testing.assert_allclose(found, results[0], atol=1e-6)
    kept = make_lots("cyclic", y, y, lot_size=8).as_dataset().element_spec
    assert {kept[0].dtype, kept[1].dtype} == {tf.as_dtype(y.dtype)}  # integers stay


def test_frames_of_pandas_are_arrays():
    pandas = pytest.importorskip("pandas")
    x, y = data()
    results = []
    for inputs, targets in ((x, y), (pandas.DataFrame(x.astype("float64")), pandas.Series(y))):
        model = private(sgd(noise=0.0))
        model.fit(inputs, targets, batch_size=8, shuffle=False, validation_split=0.2, verbose=0)
        results.append(weights(model))
    np.testing.assert_allclose(*results, atol=1e-6)


class WithLoss(keras.layers.Layer):
    """Adds its own loss, so that no targets are needed."""

    def build(self, shape):
        self.dense = keras.layers.Dense(2)
        self.dense.build(shape)

    def call(self, x):
        self.add_loss(keras.ops.mean(keras.ops.square(self.dense(x) - 1.0)))
        return self.dense(x)


def without_targets():
    keras.utils.set_random_seed(0)
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), WithLoss()]))
    model.compile(sgd(noise=0.0, clip=0.3))
    return model


@pytest.mark.parametrize(
    "train",
    [
        lambda m, x: m.fit(x, batch_size=8, shuffle=False, verbose=0),
        lambda m, x: m.fit(make_lots("cyclic", x, lot_size=8), verbose=0),
        lambda m, x: m.fit(tf.data.Dataset.from_tensor_slices(x).batch(8), verbose=0),
        lambda m, x: m.fit((x[i : i + 8] for i in range(0, 24, 8)), verbose=0),
        lambda m, x: [m.train_on_batch(x[i : i + 8]) for i in range(0, 24, 8)],
    ],
    ids=["arrays", "lots", "dataset", "generator", "batches"],
)
def test_a_model_with_a_loss_of_its_own_needs_no_targets(train):
    x = data()[0]
    model, reference = without_targets(), without_targets()
    train(model, x)
    shapes = [w.shape for w in reference.get_weights()]
    for start in range(0, 24, 8):
        total = 0.0
        for row in range(start, start + 8):
            with tf.GradientTape() as tape:
                reference(x[row : row + 1], training=True)
                loss = tf.add_n(reference.losses)
            gradients = tape.gradient(loss, [v.value for v in reference.trainable_variables])
            flat = np.concatenate([g.numpy().ravel() for g in gradients])
            total = total + flat * min(1.0, 0.3 / np.linalg.norm(flat))
        parts = np.split(weights(reference) - 0.5 * total / 8, [np.prod(shapes[0])])
        reference.set_weights([p.reshape(s) for p, s in zip(parts, shapes, strict=True)])
    np.testing.assert_allclose(weights(model), weights(reference), atol=1e-5)
    assert steps(model) == 3


class Sum(keras.layers.Layer):
    """Adds a second input where there is one."""

    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(3)

    def build(self, *_):
        self.dense.build((None, 4))

    def call(self, x, other=None):
        return self.dense(x) if other is None else self.dense(x) + self.dense(other)

    def compute_output_shape(self, *_):
        return (None, 3)


@pytest.mark.parametrize("given", [False, True])
def test_optional_inputs_may_be_absent(given):
    x, y = data()

    def made():
        keras.utils.set_random_seed(0)
        a, b = keras.Input((4,)), keras.Input((4,), optional=True)
        return keras.Model([a, b], Sum()(a, b))

    inputs = [x, 2 * x if given else None]
    reference = made()
    reference.compile(keras.optimizers.SGD(0.5), LOSS)
    reference.fit(inputs, y, batch_size=8, shuffle=False, verbose=0)
    lots = make_lots("cyclic", inputs, y, lot_size=8)
    generator = (
        ([part if part is None else part[i : i + 8] for part in inputs], y[i : i + 8])
        for i in range(0, 24, 8)
    )
    for several, source in ((1, (inputs, y)), (2, (lots,)), (1, (generator,))):
        model = private(sgd(noise=0.0, clip=1e3), made(), {"steps_per_execution": several})
        options = {"batch_size": 8, "shuffle": False} if len(source) == 2 else {}
        model.fit(*source, verbose=0, **options)
        np.testing.assert_allclose(weights(model), weights(reference), atol=1e-5)
    model = private(sgd(noise=0.0, clip=1e3), made())
    for i in range(0, 24, 8):
        model.train_on_batch([p if p is None else p[i : i + 8] for p in inputs], y[i : i + 8])
    np.testing.assert_allclose(weights(model), weights(reference), atol=1e-5)


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


@pytest.mark.parametrize("sparse", [scipy.sparse.csr_matrix, tf.sparse.from_dense])
def test_sparse_batches_of_a_generator_are_refused_with_a_sentence(sparse):
    x, y = data(8)
    model = private()
    with pytest.raises(ValueError, match="dense tensors"):
        model.fit(iter([(sparse(x), y)]), verbose=0)
    assert steps(model) == 0


@pytest.mark.parametrize(
    "convert",
    [scipy.sparse.csr_matrix, tf.sparse.from_dense, tf.RaggedTensor.from_tensor],
    ids=["scipy", "sparse", "ragged"],
)
def test_arrays_that_are_not_dense_are_refused_with_a_sentence(convert):
    x, y = data(8)
    with pytest.raises(ValueError, match="Expected dense arrays"):
        private().fit(convert(x), y, verbose=0)
