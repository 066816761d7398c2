"""Metrics in training are those that Keras computes from the same examples, however a lot is padded."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import LOSS, data, sgd, steps
from keras import layers

import tfdp
from tests.rounding import FUNCTION, assert_close, terms_of
from tests.seeds import seed_keras
from tests.training.small import small, train
from tfdp.data import make_lots
from tfdp.layers import PublicBatchNormalization, PublicExamples


def absolute(y, y_pred):
    return tf.reduce_mean(tf.abs(y - y_pred))


def by_row(y, y_pred):
    return tf.reduce_mean(tf.abs(y - y_pred), axis=-1)


class Regression(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(2, kernel_initializer="ones")

    def call(self, x):
        return self.dense(x)


class AddsLoss(layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * keras.ops.mean(x * x))
        return x


class MetricInLoss(Regression):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.custom = keras.metrics.Mean(name="custom")
        self.adds = AddsLoss()

    def call(self, x):
        return self.dense(self.adds(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        self.custom.update_state(loss * 4)
        return loss


class OwnTracker(Regression):
    """The example in the documentation of `keras.Model.compute_loss`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.tracker = keras.metrics.Mean(name="loss")

    def compute_loss(self, x, y, y_pred, sample_weight, training=True):
        loss = keras.ops.mean((y_pred - y) ** 2)
        loss += keras.ops.sum(self.losses)
        self.tracker.update_state(loss)
        return loss

    def reset_metrics(self):
        self.tracker.reset_state()

    @property
    def metrics(self):
        return [self.tracker]


class OwnLogs(Regression):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.worst = keras.metrics.Sum(name="worst")

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        self.worst.update_state(tf.reduce_max(tf.abs(y - y_pred)))
        return logs | {"worst": self.worst.result(), "rows": tf.shape(x)[0]}


class MetricInLayer(layers.Layer):
    def __init__(self):
        super().__init__()
        self.mean = keras.metrics.Mean(name="activity")

    def call(self, x):
        self.mean.update_state(x)
        return x


class MetricInCall(Regression):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seen = MetricInLayer()

    def call(self, x):
        return self.seen(self.dense(x))


MODELS = {
    "both": (Regression, {"metrics": ["mae"], "weighted_metrics": ["mse", by_row]}),
    "no weights": (Regression, {"metrics": [keras.metrics.R2Score()]}),
    "in compute_loss": (MetricInLoss, {}),
    "own tracker": (OwnTracker, {"metrics": ["mae"]}),
    "own logs": (OwnLogs, {"metrics": ["mae"]}),
    "in a layer": (MetricInCall, {}),
}


def numbers(rows=12):
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, 3)).astype("float32"), rng.normal(size=(rows, 2)).astype(
        "float32"
    )


def fresh(options):
    """Metrics keep a state, so each model gets its own."""
    copy = {}
    for name, metrics in options.items():
        copy[name] = [type(m)() if isinstance(m, keras.metrics.Metric) else m for m in metrics]
    return copy


def expected(cls, options, x, y, batch_size):
    model = cls()
    model(x[:1])
    model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=True, **fresh(options))
    return model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0).history


def trained(cls, options, lots, engine="auto", **compiled):
    model = cls()
    model(numbers()[0][:1])
    tfdp.make_private(model, engine=engine)
    compiled = {"run_eagerly": True} | compiled | fresh(options)
    model.compile(sgd(noise=0.0, clip=1e6, rate=0.0), "mse", **compiled)
    return model.fit(lots, verbose=0).history


def equal(ours, theirs):
    assert set(ours) == set(theirs)
    for name, values in theirs.items():
        assert_close(ours[name], values, len(numbers()[0]) * 6 + 4 * FUNCTION, message=name)


WAYS = [
    *((name, "eager") for name in MODELS),
    ("in a layer", "graph"),
    *((name, "chunks") for name in ("both", "own logs", "in compute_loss")),
    pytest.param("in compute_loss", "xla", marks=pytest.mark.slow),
    pytest.param("both", "xla in chunks", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "mode"), WAYS)
def test_a_padded_lot(name, mode):
    x, y = numbers()
    options = {"row_multiple": 16, "seed": 3, "lot_size": 12}
    if "chunks" in mode:
        options["physical_batch_size"] = 4
    drawn = make_lots("poisson", x, y, **options).as_dataset().as_numpy_iterator()
    bx, by, weight = next(drawn)
    kept = weight != 0
    assert 0 < kept.sum() < len(kept)
    compiled = {"run_eagerly": mode in ("eager", "chunks"), "jit_compile": "xla" in mode}
    compiled["engine"] = "loop" if compiled["run_eagerly"] else "auto"
    ours = trained(*MODELS[name], make_lots("poisson", x, y, **options), **compiled)
    equal(ours, expected(*MODELS[name], bx[kept], by[kept], batch_size=len(bx)))


def test_sample_weights_are_for_weighted_metrics_only():
    x, y = numbers()
    weight = np.linspace(0.5, 2.0, len(x)).astype("float32")
    options = {"metrics": ["mae"], "weighted_metrics": ["mae", by_row]}
    plain = Regression()
    plain(x)
    plain.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=True, **options)
    theirs = plain.fit(x, y, sample_weight=weight, batch_size=12, shuffle=False, verbose=0).history
    lots = make_lots("cyclic", x, y, lot_size=12, sample_weight=weight)
    equal(trained(Regression, options, lots), theirs)


def test_a_lot_without_examples_leaves_metrics_as_they_are():
    x, y = numbers()
    batches = (np.stack([x[:6], x[6:]]), np.stack([y[:6], y[6:]]), np.eye(2, 1) * np.ones((2, 6)))
    lots = tf.data.Dataset.from_tensor_slices(batches)
    options = {"metrics": [absolute]}
    ours = trained(MetricInLoss, options, lots, run_eagerly=False)
    equal(ours, expected(MetricInLoss, options, x[:6], y[:6], batch_size=6))


@pytest.mark.parametrize("most", [1, 3])
def test_the_loss_of_people_is_a_mean_over_people(most):
    """However many of a person's examples there are, or could be."""
    x, y = data(8)
    model = small(sgd(rate=0.0))
    lots = make_lots("cyclic", x, y, lot_size=8, privacy_ids=np.arange(8), examples_per_person=most)
    found = model.fit(lots, verbose=0).history["loss"]
    assert_close(found[0], model.evaluate(x, y, verbose=0), terms_of(model, 8))


def test_what_metrics_have_seen_does_not_reach_the_gradients():
    """A metric holds sums of private data without noise; a gradient must not depend on them."""

    class Reads(Regression):
        def __init__(self):
            super().__init__()
            self.sums = keras.metrics.Sum(name="sums")

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            self.sums.update_state(y)
            factor = 1.0 + self.sums.result()
            return factor * super().compute_loss(x, y, y_pred, sample_weight, training)

    x, y = numbers()

    def weights_after(scale):
        # The outputs are sums of the inputs, so the first lot has no loss and moves no weight.
        first = scale * np.abs(x)
        sums = np.repeat(first.sum(axis=1, keepdims=True), 2, axis=1)
        lots = tf.data.Dataset.from_tensor_slices((np.stack([first, x]), np.stack([sums, y])))
        model = Reads()
        model(x[:1])
        tfdp.make_private(model, engine="loop")
        model.compile(sgd(noise=0.0, clip=1e6, rate=0.1), "mse", run_eagerly=True)
        model.fit(lots, verbose=0)
        assert_close(float(model.sums.result()), float(sums.sum() + y.sum()), 2 * x.size, each=True)
        return model.get_weights()

    for a, b in zip(weights_after(1.0), weights_after(9.0), strict=True):
        assert_close(a, b, 2 * (len(x) + 4 * (3 + 2)))


def two_outputs():
    inputs = keras.Input((3,))
    a, b = layers.Dense(1, name="a")(inputs), layers.Dense(2, name="b")(inputs)
    return keras.Model(inputs, {"a": a, "b": b})


def test_losses_of_outputs_are_in_the_logs():
    x, b = numbers()
    y = {"a": b[:, :1], "b": b}
    weight = np.linspace(0.0, 2.0, len(x)).astype("float32")
    losses = {
        "loss": {"a": "mse", "b": keras.losses.Huber()},
        "loss_weights": {"a": 0.5, "b": 2.0},
    }

    seed_keras(2)
    plain = two_outputs()
    ours = keras.models.clone_model(plain)
    ours.set_weights(plain.get_weights())
    plain.compile(keras.optimizers.SGD(0.1), run_eagerly=True, **losses)
    theirs = plain.fit(x, y, sample_weight=weight, batch_size=12, shuffle=False, verbose=0).history
    # Keras counts the row of weight zero among the rows of the batch.
    theirs = {name: [value * 12 / 11 for value in values] for name, values in theirs.items()}
    tfdp.make_private(ours, engine="loop", physical_batch_size=4)
    ours.compile(sgd(noise=0.0, clip=1e6, rate=0.1), run_eagerly=True, **losses)
    lots = make_lots("cyclic", x, y, lot_size=12, sample_weight=weight)
    history = ours.fit(lots, verbose=0).history
    assert {"a_loss", "b_loss"} <= set(history)
    equal(history, theirs)
    for u, v in zip(ours.get_weights(), plain.get_weights(), strict=True):
        assert_close(u, v, terms_of(ours, 12))


class OwnMetrics(keras.Model):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return super().compute_metrics(x, y, y_pred, sample_weight)


def masked_outputs(cls, statistics):
    """Tags of the steps of a row, where steps of zeros are masked, and one number for the row."""
    inputs = keras.Input((5, 3))
    tags = layers.Dense(2, name="tags")(layers.Masking()(inputs))
    network = keras.Sequential([keras.Input((5, 3)), PublicBatchNormalization()])
    public = np.random.default_rng(1).normal(size=(4, 5, 3)).astype("float32")
    number = layers.Flatten()(PublicExamples(network, public, statistics)(inputs))
    return cls(inputs, {"number": layers.Dense(1, name="number")(number), "tags": tags})


def masked_rows():
    """Returns (x, y, sample_weight); the first row has weight 0."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10, 5, 3)).astype("float32")
    x[np.arange(5) >= rng.integers(1, 6, size=(10, 1))] = 0.0
    y = {"tags": rng.integers(0, 2, size=(10, 5)), "number": rng.normal(size=(10, 1))}
    return x, y, np.linspace(0.0, 2.0, 10).astype("float32")


KINDS = {"tags": ["accuracy"], "number": ["mse"]}
MASKED = {
    "loss": {"tags": LOSS, "number": "mse"}, "metrics": KINDS, "weighted_metrics": KINDS,
}  # fmt: skip


@functools.cache
def of_keras(statistics):
    """Returns (weights, history) of a plain model."""
    x, y, weight = masked_rows()
    plain = masked_outputs(keras.Model, statistics)
    plain.compile(keras.optimizers.SGD(0.0), run_eagerly=True, **MASKED)
    kept = x[1:], {name: values[1:] for name, values in y.items()}
    # Keras multiplies the mask by weights [rows, 1].
    weight = dict.fromkeys(y, weight[1:, np.newaxis])
    history = plain.fit(*kept, batch_size=9, sample_weight=weight, shuffle=False, verbose=0)
    return plain.get_weights(), history


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (keras.Model, {"engine": "ghost"}),
        (keras.Model, {"engine": "vectorized", "chunk": 4}),
        (keras.Model, {"engine": "loop", "chunk": 4, "run_eagerly": True}),
        (keras.Model, {"statistics": "batch"}),
        (OwnMetrics, {"engine": "ghost", "chunk": 4}),
        pytest.param(keras.Model, {"run_eagerly": True}, marks=pytest.mark.slow),
        pytest.param(keras.Model, {"jit_compile": True, "chunk": 4}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_masked_tokens_are_left_out(cls, options):
    options = {"statistics": "example", "engine": "auto", "chunk": None} | options
    statistics, chunk, engine = (options.pop(n) for n in ("statistics", "chunk", "engine"))
    (x, y, weight), (weights, theirs) = masked_rows(), of_keras(statistics)
    ours = masked_outputs(cls, statistics)
    ours.set_weights(weights)
    tfdp.make_private(ours, engine=engine, physical_batch_size=chunk)
    ours.compile(sgd(noise=0.0, clip=1e6, rate=0.0), **MASKED, **options)
    lots = make_lots("cyclic", x, y, lot_size=10, sample_weight=weight)
    found = ours.fit(lots, verbose=0)
    equal(*({k: v for k, v in h.history.items() if "loss" not in k} for h in (found, theirs)))


def test_a_frozen_model_is_refused_and_spends_nothing():
    model = small()
    model.trainable = False
    with pytest.raises(ValueError, match="trainable weights"):
        train(model)
    assert steps(model) == 0 and int(model.optimizer.iterations.numpy()) == 0
    model.trainable = True
    train(model, batch_size=8)
    assert steps(model) == 1


def test_examples_without_a_finite_gradient_are_told_of(caplog):
    model, (x, y) = small(), data(8)
    train(model, batch_size=8)
    assert "not finite" not in caplog.text
    nan = np.where(np.arange(8)[:, None] == 3, np.nan, x)
    batches = tf.data.Dataset.from_tensor_slices((nan, y)).batch(8)
    model.fit(batches, verbose=0)
    assert "not finite" in caplog.text
    assert np.isfinite(model.get_weights()[0]).all()
