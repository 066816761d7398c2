"""Batches that the user draws: padded to one size, and accounted without amplification."""

import functools
import itertools
import re

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from helpers import data, private, sgd, steps, weights

import tfdp
from tests.rounding import assert_close, terms_of
from tests.training.small import GRAPH, linear, small
from tests.training.test_feed import CLIP, after_lots, batched
from tfdp.accounting import BudgetExhausted
from tfdp.accounting.guarantee import format_epsilon
from tfdp.data import OncePerEpoch, make_lots
from tfdp.training import describe, training
from tfdp.training.batches import batches_of

DELTA = 1e-5


class Sequence(keras.utils.PyDataset):
    """Batches of 8 in order; the last one may be smaller."""

    def __init__(self, rows=20, length=3, **options):
        super().__init__(**options)
        self.x, self.y = data(rows)
        self.length, self.epochs = length, 0

    def __getitem__(self, i):
        return self.x[i * 8 : i * 8 + 8], self.y[i * 8 : i * 8 + 8]

    @property
    def num_batches(self):
        return self.length

    def on_epoch_begin(self):
        self.epochs += 1


class Loader:
    """What PyTorch's DataLoader is like: lists of batches, with a length, that can be begun anew."""

    def __len__(self):
        return 3

    def __iter__(self):
        return iter([[*batch] for batch in batches()])


def batches(rows=20):
    x, y = data(rows)
    return [(x[i : i + 8], y[i : i + 8]) for i in range(0, rows, 8)]


@functools.cache
def after_two_epochs():
    return after_lots(batches() * 2, 8)


class Stops(keras.callbacks.Callback):
    """Ends a training after its first step; what was planned counts."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True


OF_A_USER = {
    "dataset of unknown length": lambda: batched(20).filter(lambda *_: True),
    "PyDataset with workers": lambda: Sequence(workers=2),
    "loader": Loader,
    "generator": lambda: iter(batches() * 2),
}


@pytest.mark.parametrize("kind", OF_A_USER)
def test_batches_of_a_user_are_padded_and_accounted_without_amplification(kind):
    """Each sum of clipped gradients is divided by 8, however small the batch."""
    model, x = small(sgd(noise=0.0, clip=CLIP), compiled=GRAPH), OF_A_USER[kind]()
    epochs = 1 if kind == "generator" else 2
    model.fit(x, epochs=epochs, shuffle=False, verbose=0)
    assert_close(weights(model), after_two_epochs(), terms_of(model, 8, steps=6))
    (run,) = model.privacy.ledger.runs
    assert (run.sampling.name, run.sampling.lot_size, run.steps) == ("unknown", 8, 6)
    assert getattr(x, "epochs", 2) == 2


def counting():
    """A private model without noise, whose weight i counts how often example i of `one_hot` came."""
    network = keras.Sequential([keras.Input((20,)), keras.layers.Dense(1, use_bias=False)])
    network.set_weights([np.zeros((20, 1))])
    loss = {"loss": lambda y, outputs: -keras.ops.mean(outputs, axis=-1)}
    return small(sgd(noise=0.0, clip=10.0, rate=8.0), network, GRAPH | loss)


def one_hot():
    rows = np.eye(20, dtype="float32")
    return [(rows[i : i + 8], rows[i : i + 8, :1]) for i in range(0, 20, 8)]


def pipeline():
    return tf.data.Dataset.from_tensor_slices((np.eye(20), np.zeros((20, 1)))).batch(8)


def generated():
    return tf.data.Dataset.from_generator(one_hot, output_signature=SPEC)


def one_pass():
    passes = iter(one_hot())
    return tf.data.Dataset.from_generator(lambda: passes, output_signature=SPEC)


class OnePass:
    """Says its length, and cannot be begun anew."""

    def __init__(self):
        self.rest = iter(one_hot())

    def __len__(self):
        return 3

    def __iter__(self):
        return self.rest


def same(*batch):
    return batch


SPEC = tuple(tf.TensorSpec((None, size), tf.float32) for size in (20, 1))


@pytest.mark.parametrize(
    ("made", "passes"),
    [
        (lambda _: pipeline().cache().prefetch(2), 2),
        (lambda _: pipeline().map(same, num_parallel_calls=2).cache().map(same).prefetch(2), 2),
        (lambda path: pipeline().map(same).cache(f"{path}/file").map(same), 2),
        (lambda _: pipeline().shuffle(3), 2),
        (lambda _: pipeline().unbatch().shuffle(20).batch(8).map(same), 2),
        (lambda _: generated(), 2),
        (lambda _: one_pass(), 1),
    ],
)
def test_looking_at_the_first_batch_of_a_dataset_takes_none_away(made, passes, tmp_path):
    dataset = batches_of(made(tmp_path)).dataset
    lots = (lot for _ in range(2) for lot in dataset.as_numpy_iterator())
    seen = sum(x.T @ weight for x, _, weight in lots)
    np.testing.assert_array_equal(seen, np.full(20, passes))


@pytest.mark.parametrize(
    ("made", "passes"), [(generated, 2), (OnePass, 1), (lambda: iter(one_hot()), 1)]
)
def test_looking_at_the_first_batch_takes_none_away(made, passes):
    model = counting()
    model.fit(made(), epochs=2, verbose=0)
    assert steps(model) == int(model.optimizer.iterations) == 3 * passes
    assert_close(weights(model), np.full(20, passes), terms_of(model, 8, steps=6))


@pytest.mark.parametrize("options", [{}, GRAPH | {"steps_per_execution": 2}])
def test_batches_in_eager_steps_and_in_executions_of_several(options):
    model = small(sgd(noise=0.0, clip=CLIP), compiled=options)
    model.fit(Sequence(), epochs=2, shuffle=False, verbose=0)
    assert_close(weights(model), after_two_epochs(), terms_of(model, 8, steps=6))
    assert steps(model) == 6


def test_an_endless_source_ends_with_its_steps():
    model = small()
    model.fit(itertools.cycle(batches()), steps_per_epoch=1, epochs=2, verbose=0)
    model.fit(Sequence(24, None), steps_per_epoch=1, verbose=0)
    assert steps(model) == 3
    with pytest.raises(ValueError, match="steps_per_epoch"):
        model.fit(Sequence(24, None), verbose=0)


def test_data_that_ends_early_ends_training():
    model = private(model=linear())
    data_of_two = batched(16, drop_remainder=True).filter(lambda *_: True)
    model.fit(data_of_two, steps_per_epoch=5, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == steps(model) == 2


def test_a_training_of_unknown_length_is_described_as_it_goes_on(monkeypatch):
    for module in (describe, training):
        monkeypatch.setattr(module, "OPEN_ENDED", 2)
    model, known = (small(sgd(noise=2.0), compiled=GRAPH) for _ in range(2))
    model.fit(iter(batches(40)), verbose=0)
    known.fit(batched(40), verbose=0)
    assert steps(model) == 5
    assert model.privacy.spent(DELTA).epsilon == known.privacy.spent(DELTA).epsilon


def test_a_budget_holds_for_batches_of_unknown_length():
    options = {"steps_per_execution": 2, "run_eagerly": False}
    model = small(budget=tfdp.PrivacyBudget(8.0, DELTA), compiled=options)
    with pytest.raises(BudgetExhausted):
        model.fit(itertools.cycle(batches(24)), verbose=0)
    assert 0 < model.privacy.spent(DELTA).epsilon <= 8.0
    assert model.privacy.steps_left < 2


def test_a_larger_batch_than_the_first_is_refused_before_its_step():
    given = tf.data.Dataset.from_generator(
        lambda: iter([data(4), data(8)]), output_signature=batched().element_spec
    )
    for compiled in ({}, {"run_eagerly": False}):
        model = small(compiled=compiled)
        with pytest.raises(tf.errors.InvalidArgumentError, match="more rows than the first"):
            model.fit(given, verbose=0)
        assert model.privacy.steps_taken == int(model.optimizer.iterations) == 1


def test_batches_without_rows_or_shapes_are_refused():
    x, y = data(8)
    types = (tf.float32, tf.int64)
    unknown = tf.data.Dataset.from_generator(lambda: iter([(x, y)]), output_types=types)
    cases = [
        (tf.data.Dataset.from_tensor_slices((x, y)), "at least one batch"),
        (zip(x, y[:, None], strict=True), "at least one batch"),
        (unknown, "shape"),
        (iter([]), "at least one batch"),
        (iter([(tf.sparse.from_dense(x), y)]), "dense"),
        (iter([(scipy.sparse.csr_matrix(x), y)]), "dense"),
    ]
    for given, message in cases:
        model = small()
        with pytest.raises((ValueError, TypeError), match=message):
            model.fit(given, verbose=0)
        assert steps(model) == 0


@pytest.mark.parametrize("form", ["column", "one-hot", "dataset", "lots"])
def test_class_weights_are_those_of_keras(form):
    x, y = data(8)  # classes 0, 1 and 2
    forms = {"column": y[:, None], "one-hot": np.eye(3)[y]}
    loss = "categorical_crossentropy" if form == "one-hot" else "sparse_categorical_crossentropy"
    models = [small(sgd(noise=0.0, clip=1e3), compiled={"loss": loss}) for _ in range(2)]
    weight, factors = {0: 3.0, 1: 1.0, 2: 0.5}, np.array([3.0, 1.0, 0.5], "float32")[y]
    if form == "dataset":
        models[0].fit(tf.data.Dataset.from_tensors((x, y)), class_weight=weight, verbose=0)
        models[1].fit(tf.data.Dataset.from_tensors((x, y, factors)), verbose=0)
    elif form == "lots":
        lots = make_lots("cyclic", x, y, lot_size=8)
        models[0].fit(lots, class_weight=weight, verbose=0)
        weighted = lots.map(lambda row: (*row, tf.gather([3.0, 1.0, 0.5], row[1])))
        with pytest.raises(ValueError, match="cannot be combined"):
            models[1].fit(weighted, class_weight=weight, verbose=0)
        models[1].fit(weighted, verbose=0)
    else:
        options = {"batch_size": 8, "shuffle": False, "verbose": 0}
        models[0].fit(x, forms[form], class_weight=weight, **options)
        models[1].fit(x, forms[form], sample_weight=factors, **options)
    assert_close(*map(weights, models), terms=terms_of(models[0], 8, steps=3))


# -- what batches cost -------------------------------------------------------------------------------


def test_a_warning_states_the_epsilons_of_this_training_and_of_better_ones(caplog):
    x, y = data(96)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    model, options = small(sgd(noise=2.0)), {"callbacks": [Stops()], "verbose": 0}
    model.fit(dataset, epochs=2, **options)
    spent, said = model.privacy.spent(DELTA).epsilon, caplog.text
    caplog.clear()
    others = [small(sgd(noise=2.0)) for _ in range(2)]
    (call,) = re.findall(r"tfdp\.data\.make_lots\(.*?=\d+\)", said)
    others[0].fit(eval(call, {"tfdp": tfdp, "dataset": dataset}), epochs=2, **options)
    others[1].fit(OncePerEpoch(dataset), epochs=2, **options)
    for epsilon in (spent, *(other.privacy.spent(DELTA).epsilon for other in others)):
        assert format_epsilon(epsilon) in said
    assert "tfdp.data.make_lots" not in caplog.text  # lots and declared batches have no warning
    caplog.clear()
    dataset.class_names = ["a", "b", "c"]  # as Keras' datasets of directories have
    model.fit(dataset, **options)
    assert "images_from_directory" in caplog.text
    caplog.clear()
    model.fit(itertools.cycle(batches(8)), steps_per_epoch=12, **options)
    assert "fit(x, y, batch_size=...)" in caplog.text


def test_a_warning_says_that_the_length_is_missing(caplog):
    small().fit(iter(batches(8)), verbose=0)
    assert "steps_per_epoch" in caplog.text


def test_declared_epochs_count_an_example_once_an_epoch():
    model, known = (small(sgd(noise=4.0)) for _ in range(2))
    declared = OncePerEpoch(batched(8).shuffle(3))
    for epochs in (2, 1):  # one run
        model.fit(declared, epochs=epochs, verbose=0)
    known.fit(make_lots("shuffle", *data(8), lot_size=8), epochs=3, verbose=0)
    assert (steps(model), len(model.privacy.ledger.runs)) == (3, 1)
    assert model.privacy.spent(DELTA).epsilon == known.privacy.spent(DELTA).epsilon
    assert "You declared" in model.privacy.statement(delta=DELTA, full=True)


def test_an_epoch_that_was_broken_off_is_not_continued():
    model, declared = small(), OncePerEpoch(batched(16))
    model.fit(declared, callbacks=[Stops()], verbose=0)
    model.fit(declared, verbose=0)
    assert len(model.privacy.ledger.runs) == 2


class WrongLength(Loader):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length


def test_batches_of_repeated_examples_are_refused():
    """A batch over the end of a pass may have an example twice."""
    examples = batched(24).unbatch()
    with pytest.raises(ValueError, match=r"repeat\(\) after batch"):
        small().fit(examples.shuffle(24).repeat().batch(16), steps_per_epoch=3, verbose=0)
    model = small()
    model.fit(examples.shuffle(24).batch(8).repeat(), steps_per_epoch=3, verbose=0)
    assert steps(model) == 3


@pytest.mark.parametrize("length", [2, 4])
def test_a_declared_epoch_of_another_length_raises(length):
    model = small()
    with pytest.raises(tf.errors.FailedPreconditionError):
        model.fit(OncePerEpoch(WrongLength(length)), epochs=2, verbose=0)
    assert model.privacy.steps_taken <= 3


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (lambda: batched().repeat(), {}, "Remove `repeat`"),
        (lambda: batched(24).repeat(2), {}, "Remove `repeat`"),
        (lambda: batched().filter(lambda *_: True), {}, "number of batches"),
        (lambda: iter(batches()), {}, "number of batches"),
        (batched, {"steps_per_epoch": 2}, "steps_per_epoch"),
        (lambda: data()[0], {}, "your own batches"),
        (lambda: make_lots("poisson", *data(), lot_size=8).as_dataset(), {}, "your own batches"),
    ],
)
def test_epochs_that_cannot_be_counted_are_refused(given, options, message):
    model = small()
    with pytest.raises(ValueError, match=message):
        model.fit(OncePerEpoch(given()), verbose=0, **options)
    assert steps(model) == 0


def test_declared_epochs_are_not_resumed(tmp_path):
    backup = tfdp.callbacks.BackupAndRestore(tmp_path)
    with pytest.raises(ValueError, match="resume"):
        small().fit(OncePerEpoch(batched()), callbacks=[backup], verbose=0)
