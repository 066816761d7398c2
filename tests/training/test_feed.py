"""The data that `fit` gets become lots with a known sampling scheme, or are refused."""

import functools

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from helpers import LOSS, Rows, clipped_sum, data, sgd, steps, weights

import tfdp
from tests.rounding import assert_close, terms_of
from tests.seeds import seed_keras
from tests.training.small import GRAPH, linear, small
from tfdp.data import SCHEMES, Lots, make_lots
from tfdp.data.arrays import as_arrays
from tfdp.training.feed import feed_of

CLIP = 0.3


def batched(rows=24, **kwargs):
    return tf.data.Dataset.from_tensor_slices(data(rows)).batch(8, **kwargs)


def after_lots(lots, size):
    """Weights of `linear` after one clipped step for each lot of rows (x, y), divided by `size`."""
    reference = linear()
    reference.compile(loss=LOSS)
    shapes = [w.shape for w in reference.get_weights()]
    for x, y in lots:
        moved = weights(reference) - 0.5 * clipped_sum(reference, x, y, CLIP) / size
        parts = np.split(moved, np.cumsum([np.prod(s) for s in shapes])[:-1])
        reference.set_weights([p.reshape(s) for p, s in zip(parts, shapes, strict=True)])
    return weights(reference)


class OwnLots(Lots):
    """Lots of which nobody knows how they are drawn."""

    def __init__(self):
        pass

    def _draw(self, *_):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (batched(drop_remainder=True).repeat(), {}, "steps_per_epoch"),
        (batched().take(0), {}, "at least one batch"),
        (data()[0], {}, "targets"),
        (batched(drop_remainder=True), {"y": data()[1]}, "y can only"),
        (batched(), {"batch_size": 8}, "batch_size"),
        (make_lots("poisson", *data(), lot_size=8), {"batch_size": 4}, "batch_size"),
        (OwnLots(), {}, "Nothing is known"),
        (scipy.sparse.csr_matrix(data(8)[0]), {"y": data(8)[1]}, "dense"),
        (data(3)[0], {"y": data(3)[1], "validation_split": 0.9}, "one side empty"),
        (
            data(8)[0],
            {"y": data(8)[1], "class_weight": {0: 1.0}, "sample_weight": np.ones(8)},
            "cannot be combined",
        ),
        (data(8)[0], {"y": data(8)[1], "class_weight": "balanced"}, "dictionary"),
        (data(8)[0], {"y": data(8)[1], "batch_size": 0}, "batch_size"),
    ],
)
def test_data_whose_sampling_cannot_be_accounted_is_refused(x, options, message):
    model = small()
    with pytest.raises(ValueError, match=message):
        model.fit(x, verbose=0, **options)
    assert steps(model) == 0


@pytest.mark.parametrize("feed", ["arrays", "batch", "names"])
def test_tokens_that_an_embedding_does_not_have_are_refused(feed):
    x, words = keras.Input((4,), name="x"), keras.Input((2,), dtype="int32", name="words")
    table = keras.layers.Flatten()(keras.layers.Embedding(9, 2, name="table")(words))
    logits = keras.layers.Dense(3)(keras.layers.Concatenate()([x, table]))
    model = small(model=keras.Model([x, words], logits))
    (numbers, labels), tokens = data(), np.full((24, 2), 8)

    def trained():
        if feed == "batch":
            model.train_on_batch([numbers, tokens], labels)
        elif feed == "names":  # not in the order of the inputs
            model.fit({"words": tokens, "x": 9 + numbers}, labels, batch_size=24, verbose=0)
        else:
            model.fit([numbers, tokens], labels, batch_size=24, shuffle=False, verbose=0)

    trained()
    for bad in (9, -1):
        tokens[5, 1] = bad
        with pytest.raises(ValueError, match=f"'table'.* {bad}"):
            trained()


@pytest.mark.parametrize(
    ("feed", "sampling", "num_examples"),
    [
        (lambda m: m.fit(*data(16), batch_size=8, verbose=0), "poisson", 16),
        (lambda m: m.fit(*data(16), batch_size=8, shuffle=False, verbose=0), "cyclic", 16),
        (
            lambda m: m.fit(
                make_lots("with_replacement", *data(16), lot_size=8).as_dataset(), verbose=0
            ),
            "with_replacement",
            16,
        ),
        (lambda m: m.fit(batched(16, drop_remainder=True), verbose=0), "unknown", 16),
        (
            lambda m: m.fit(*data(20), batch_size=8, validation_split=0.2, verbose=0),
            "poisson",
            16,
        ),
        (lambda m: [m.train_on_batch(*data(8)) for _ in range(2)], "unknown", 8),
    ],
)
def test_the_accounting_is_of_what_ran(feed, sampling, num_examples):
    model = small()
    before = weights(model)
    feed(model)
    assert not np.array_equal(weights(model), before)
    (run,) = model.privacy.ledger.runs
    found = (run.sampling.name, run.sampling.num_examples, run.sampling.lot_size, run.steps)
    assert found == (sampling, num_examples, 8, 2) and not run.insecure_seed


def test_groups_take_turns_through_epochs_and_fits():
    x, y = data()
    model = small(sgd(noise=0.0, clip=CLIP), compiled=GRAPH)
    lots = make_lots("cyclic_poisson", x, y, lot_size=8, groups=3)  # sampling probability 1
    model.fit(lots, epochs=2, steps_per_epoch=1, verbose=0)
    model.fit(lots, steps_per_epoch=2, verbose=0)
    turns = [(x[turn::3], y[turn::3]) for turn in (0, 1, 2, 0)]
    assert_close(weights(model), after_lots(turns, 8), terms_of(model, 8, steps=4))
    (run,) = model.privacy.ledger.runs
    assert (run.sampling.groups, run.steps, run.sampling.participations(run.steps)) == (3, 4, 2)
    assert run.sampling.probability == 1.0
    # New lots divide the examples into new groups, so an example could be drawn again too soon.
    model.fit(make_lots("cyclic_poisson", x, y, lot_size=8, groups=3), verbose=0)
    assert [run.steps for run in model.privacy.ledger.runs] == [4, 3]


def test_examples_that_are_in_no_group_do_not_count():
    model = small()
    model.fit(
        make_lots("cyclic_poisson", *data(7), lot_size=1, groups=3), steps_per_epoch=1, verbose=0
    )
    (run,) = model.privacy.ledger.runs
    assert (run.sampling.num_examples, run.steps, run.sampling.probability) == (6, 1, 0.5)


def test_an_epoch_in_fixed_order_has_all_examples_and_ends_with_a_partial_lot():
    x, y = data(6)
    model = small(sgd(noise=0.0, clip=CLIP))
    model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    lots = [(x[first : first + 4], y[first : first + 4]) for first in (0, 4)] * 2
    # The divisor stays the public lot size in the lot of two examples.
    assert_close(weights(model), after_lots(lots, 4), terms_of(model, 4, steps=4))
    (run,) = model.privacy.ledger.runs
    assert (run.sampling.num_examples, run.sampling.lot_size) == (8, 4)
    assert run.steps == 4  # two absent examples


def test_shuffled_epochs_are_random_allocation():
    model, (x, y) = small(), data(20)
    model.fit(x, y, batch_size=10, shuffle="epoch", verbose=0)
    (run,) = model.privacy.ledger.runs
    assert (run.sampling.name, run.steps) == ("random_allocation", 2)
    with pytest.raises(ValueError, match="epoch"):
        model.fit(x, y, batch_size=5, shuffle="batch", verbose=0)


def test_microbatches_of_several_examples_are_groups_of_neighbours():
    model, (x, y), first = small(sgd(num_microbatches=2)), data(24), {"steps_per_epoch": 1}
    model.fit(x, y, batch_size=8, verbose=0, **first)
    (run,) = model.privacy.ledger.runs
    assert (run.sampling.name, run.contribution.microbatch_size) == ("poisson", 4)
    lots = model.privacy.account.session.lots
    for indices in lots.indices().take(10):
        assert indices.numpy().reshape(-1, 4)[:, 0].tolist() in [
            [i for i in range(0, 24, 4) if i in indices.numpy()]
        ]
    with pytest.raises(ValueError, match="microbatch_size=4"):
        model.fit(make_lots("poisson", x, y, lot_size=8), verbose=0)
    model.fit(make_lots("poisson", x, y, lot_size=8, microbatch_size=4), verbose=0, **first)


def test_a_users_seed_reproduces_lots_and_other_fits_draw_others():
    class Sees(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            losses.append(logs["loss"])

    def lots_of(model):
        losses.clear()
        model.fit(*data(), batch_size=12, steps_per_epoch=1, verbose=0, callbacks=[Sees()])
        return [*losses]

    losses = []
    # No step moves the weights, so the losses show which examples were drawn.
    one, two = (small(sgd(noise=0.0, rate=0.0), seed=5) for _ in range(2))
    first = lots_of(one)
    assert lots_of(two) == first
    assert one.privacy.ledger.runs[0].insecure_seed
    assert lots_of(one) != first
    assert lots_of(tfdp.make_private(two, seed=5, engine="loop")) != first


@pytest.mark.parametrize("sampling", SCHEMES)
def test_a_users_seed_proves_nothing_where_the_proof_needs_secret_lots(sampling):
    more = {"groups": 2} if sampling == "cyclic_poisson" else {}
    for seed in (None, 1):
        feed = feed_of(make_lots(sampling, *data(), lot_size=8, seed=seed, **more))
        public = sampling in ("cyclic", "shuffle")
        assert feed.insecure_seed == (seed is not None and not public)


# -- what fit takes, as Keras does -------------------------------------------------------------------


def test_the_size_of_lots_where_it_is_not_given():
    for rows, options, found in (
        (1, {}, (1, 1)),
        (24, {"batch_size": 100}, (24, 1)),
        (11, {"steps_per_epoch": 2}, (6, 2)),
    ):
        model = small()
        model.fit(*data(rows), verbose=0, **options)
        (run,) = model.privacy.ledger.runs
        assert (run.sampling.lot_size, run.steps) == found


@pytest.mark.parametrize(("asked", "shuffle", "taken"), [(2, True, 2), (4, False, 3)])
def test_an_epoch_of_arrays_is_at_most_one_pass_as_in_keras(asked, shuffle, taken):
    model = small()
    model.fit(*data(20), batch_size=8, steps_per_epoch=asked, shuffle=shuffle, verbose=0)
    assert steps(model) == taken


def test_a_cap_on_the_steps_of_an_epoch_is_kept():
    keras.config.set_max_steps_per_epoch(2)
    try:
        model = small(compiled={"steps_per_execution": 4})
        model.fit(*data(), batch_size=8, verbose=0)
    finally:
        keras.config.set_max_steps_per_epoch(None)
    assert steps(model) == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"validation_data": data(10), "validation_batch_size": 1, "validation_steps": 4}, 4),
        ({"validation_split": 0.5}, 2),
        ({"validation_data": batched(10)}, 2),
    ],
)
def test_validation_is_that_of_keras(options, expected):
    seen = []
    counts = keras.callbacks.LambdaCallback()
    counts.on_test_batch_end = lambda batch, logs=None: seen.append(batch)
    history = small().fit(
        *data(20), batch_size=8, steps_per_epoch=1, verbose=0, callbacks=[counts], **options
    ).history  # fmt: skip
    assert "val_loss" in history and len(seen) == expected


def test_numbers_are_in_the_precision_of_keras():
    x, y = data(8)
    results = []
    for kind in (np.float32, np.float64, np.float16):
        column = y[:, None].astype(kind)
        x = x.astype(np.float16).astype(kind)  # the same numbers in each precision
        lots = make_lots("cyclic", x, column, lot_size=8, sample_weight=np.ones(8, kind))
        assert {spec.dtype for spec in lots.as_dataset().element_spec} == {tf.float32}
        model = small(sgd(noise=0.0))
        model.train_on_batch(x, column, sample_weight=np.ones(8, kind))
        results.append(weights(model))
    for found in results[1:]:
        assert_close(found, results[0], terms_of(model, 8))
    kept = make_lots("cyclic", y, y, lot_size=8).as_dataset().element_spec
    assert {kept[0].dtype, kept[1].dtype} == {tf.as_dtype(y.dtype)}  # integers stay


def test_frames_are_arrays():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    numbers = np.array([[1.5, 1.0, 1.0], [2.5, 0.0, 2.0]])
    columns = {"a": [1.5, 2.5], "b": [True, False]}
    whole = pandas.array([1, 2], dtype="Int64")
    for frame in (
        pandas.DataFrame(columns | {"c": whole}),
        polars.DataFrame(columns | {"c": [1, 2]}),
    ):
        found = as_arrays(frame, "x")
        assert found.dtype.kind == "f" and np.array_equal(found, numbers)
    assert as_arrays(pandas.Series([1.0, 2.0]), "x").shape == (2, 1)  # as in Keras
    assert as_arrays(polars.Series([1.0, 2.0]), "x").shape == (2,)
    missing = pandas.DataFrame({"a": [1.0, 2.0], "b": pandas.array([1, None], dtype="Int64")})
    with pytest.raises(ValueError, match="missing values in column b"):
        as_arrays(missing, "x")


@pytest.mark.parametrize("kind", [str, object])
def test_texts_are_no_targets_of_a_loss_of_keras(kind):
    model, (x, _) = small(), data(20)
    with pytest.raises(ValueError, match="Received texts"):
        model.fit(x, np.array(["yes", "no"] * 10, kind), verbose=0)


@pytest.mark.parametrize("argument", ["x", "y", "validation_data"])
def test_numbers_that_are_not_finite_are_refused_with_their_row(argument):
    x, y = data(8)
    given = {"x": x, "y": y.astype("float32"), "validation_data": x.copy()}
    given[argument][5] = np.nan
    given["validation_data"] = (given["validation_data"], y)
    model = small()
    with pytest.raises(ValueError, match=f"`{argument}`.* row 5"):
        model.fit(**given, verbose=0)
    if argument != "validation_data":
        lots = tfdp.data.make_lots("poisson", given["x"], given["y"], lot_size=4)
        with pytest.raises(ValueError, match=f"`{argument}`.* row 5"):
            model.fit(lots, verbose=0)
    assert steps(model) == 0


TEXTS = ["good", "bad", "good one", "bad one"]


@pytest.mark.parametrize(
    "options", [{"validation_data": (TEXTS, [1, 0, 1, 0])}, {"validation_split": 0.5}]
)
def test_texts_validate_as_they_train(options):
    words = keras.layers.TextVectorization(vocabulary=["good", "bad"], output_mode="multi_hot")
    network = keras.Sequential([keras.Input((), dtype="string"), words, keras.layers.Dense(3)])
    model = small(model=network, public_preprocessing=True)
    history = model.fit(TEXTS, [1, 0, 1, 0], batch_size=4, verbose=0, **options).history
    assert np.isfinite(history["val_loss"]).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda x, y: (np.array(["a"] * 8), y), "text"),
        (lambda x, y: (x[:, :3], y), "fit the model"),
        (lambda x, y: x, "no targets"),
        (lambda x, y: (x, y + 5), "label"),
        (lambda x, y: tf.data.Dataset.from_tensor_slices((x[:, :3], y)).batch(4), "fit the model"),
        (lambda x, y: Rows([{"x": row, "y": 0} for row in x]), "no targets"),
    ],
)
def test_validation_data_that_do_not_fit_are_refused_before_the_first_step(given, message):
    model = small()
    with pytest.raises(ValueError, match=message):
        model.fit(*data(8), validation_data=given(*data(8)), verbose=0)
    assert steps(model) == 0


@pytest.mark.parametrize("name", ["validation_batch_size", "validation_steps", "validation_freq"])
def test_arguments_that_keras_uses_after_an_epoch_are_checked_before_it(name):
    model = small()
    with pytest.raises(ValueError, match=name):
        model.fit(*data(8), validation_data=data(8), verbose=0, **{name: 0})
    assert steps(model) == 0


class WithLoss(keras.layers.Layer):
    """Adds its own loss, so that no targets are needed."""

    def build(self, shape):
        self.dense = keras.layers.Dense(2)
        self.dense.build(shape)

    def call(self, x):
        self.add_loss(keras.ops.mean(keras.ops.square(self.dense(x) - 1.0)))
        return self.dense(x)


@functools.cache
def after_lots_without_targets():
    model = without_targets()
    model.fit(make_lots("cyclic", data(8)[0], lot_size=4), verbose=0)
    return weights(model)


def without_targets():
    seed_keras(0)
    network = keras.Sequential([keras.Input((4,)), WithLoss()])
    model = tfdp.make_private(network, engine="loop")
    model.compile(sgd(noise=0.0, clip=CLIP), run_eagerly=True)
    return model


@pytest.mark.parametrize(
    "train",
    [
        lambda m, x: m.fit(tf.data.Dataset.from_tensor_slices(x).batch(4), verbose=0),
        lambda m, x: m.fit((x[i : i + 4] for i in range(0, 8, 4)), verbose=0),
        lambda m, x: [m.train_on_batch(x[i : i + 4]) for i in range(0, 8, 4)],
    ],
    ids=["dataset", "generator", "batches"],
)
def test_a_model_with_a_loss_of_its_own_needs_no_targets(train):
    model, by_lots = without_targets(), after_lots_without_targets()
    before = weights(model)
    train(model, data(8)[0])
    assert steps(model) == 2 and np.any(weights(model) != before)
    assert_close(weights(model), by_lots, terms_of(model, 4, steps=2, length=4))


class Sum(keras.layers.Dense):
    """Adds a second input where there is one."""

    def call(self, x, other=None):
        return super().call(x if other is None else x + other)


def test_optional_inputs_may_be_absent():
    x, y = data(8)
    results = []
    for inputs in ([x, None], x):
        seed_keras(0)
        tensors = [keras.Input((4,)), keras.Input((4,), optional=True)]
        network = keras.Model(tensors, Sum(3)(*tensors)) if isinstance(inputs, list) else linear()
        model = small(sgd(noise=0.0), network)
        model.layers[-1].set_weights([np.eye(4, 3), np.zeros(3)])
        model.fit(inputs, y, batch_size=8, shuffle=False, verbose=0)
        results.append(weights(model))
    assert_close(*results, terms=terms_of(model, 8))
