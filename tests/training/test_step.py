"""A step takes what is accounted from the session's run; later changes have no effect."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import data, sgd, si_dpsgd, steps, weights
from keras import layers

import tfdp
from tests.rounding import assert_close, terms_of
from tests.seeds import seed_keras
from tests.training.small import GRAPH, small, train
from tfdp.accounting.sampling import Unknown
from tfdp.data import make_lots
from tfdp.gradients import bounds
from tfdp.layers import PrivateBatchNormalization, PublicBatchNormalization, PublicExamples
from tfdp.optimizers import MECHANISMS
from tfdp.session import Session, assumed_sensitivity
from tfdp.training import private_training

DELTA = 1e-5


def optimizer_of(mechanism, **settings):
    settings |= {
        "matrix": {"bands": 2, "steps": 4},
        "discrete_sgd": {"noise": "gaussian", "denoise": False},
        "sgld": {"num_examples": 100},
    }.get(mechanism, {})
    return MECHANISMS[mechanism](keras.optimizers.SGD)(
        learning_rate=0.5, l2_norm_clip=1.0, noise_multiplier=1.0, **settings
    )


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_is_accounted_cannot_be_assigned(mechanism):
    made = optimizer_of(mechanism)
    own = {
        "si_dpsgd": ["momentum", "nesterov", "learning_rate", "guarantee", "release"],
        "matrix": ["strategy"],
        "discrete_sgd": ["family", "encode", "private_codebook"],
    }.get(mechanism, [])
    noise = ("l2_norm_clip", "noise_multiplier", "num_microbatches", "clipping")
    for name in (*noise, "adaptive_clipping", *own):
        value = getattr(made, name)
        with pytest.raises((AttributeError, ValueError), match=r"assign|[Ee]xpected"):
            setattr(made, name, 0.125)
        assert getattr(made, name) is value or getattr(made, name) == value


def test_rates_that_a_callback_moves_change_nothing():
    class Watched(keras.optimizers.schedules.LearningRateSchedule):
        def __init__(self):
            self.factor = tf.Variable(1.0, trainable=False)

        def __call__(self, step):
            return 0.1 * self.factor

        def get_config(self):
            return {}

    class Down(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            schedule.factor.assign(1e-6**epoch)

    results = []
    for callbacks in ([], [Down()]):
        schedule = Watched()
        model = small(si_dpsgd(rate=schedule, seed=1, noise=5.0))
        train(model, epochs=2, batch_size=8, callbacks=callbacks)
        (run,) = model.privacy.ledger.runs
        assert run.mechanism.learning_rates == (np.float32(0.1),) * 2
        results.append(weights(model))
    np.testing.assert_array_equal(results[0], results[1])


def swap_optimizer(model):
    model.optimizer = sgd(noise=0.0)
    model.optimizer.build(model.trainable_variables)


def freeze_bias(model):
    model.layers[0].bias.trainable = False


@pytest.mark.parametrize("change", [swap_optimizer, freeze_bias])
def test_another_optimizer_or_other_weights_in_the_middle_are_refused(change):
    class Changes(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 1:
                change(self.model)

    with pytest.raises(RuntimeError, match="changed during a training"):
        train(small(), callbacks=[Changes()])


# -- what an engine bounds ---------------------------------------------------------------------------


def test_an_engine_that_bounds_less_than_is_assumed_is_refused(monkeypatch):
    monkeypatch.setattr(bounds.GlobalL2Clip, "relative_sensitivity", lambda *_: 1.1)
    model = small()
    before = weights(model)
    with pytest.raises(RuntimeError, match=r"1\.1"):
        train(model)
    np.testing.assert_array_equal(weights(model), before)
    assert steps(model) == 0


def normalized_by_the_lot():
    seed_keras(0)
    network = keras.Sequential([keras.Input((4,)), PublicBatchNormalization(), layers.Dense(3)])
    public = np.random.default_rng(5).normal(size=(3, 4)).astype("float32")
    examples = PublicExamples(network, public, "batch")
    return keras.Sequential([keras.Input((4,)), examples])


@pytest.mark.parametrize(
    ("arguments", "factor"),
    [
        ({"clipping": "each_layer"}, 2**0.5),
        ({"num_microbatches": 4}, 2),
        ({"clipping": "adaptive"}, 1),
        ({"clipping": "each_layer", "num_microbatches": 4}, 8**0.5),
    ],
)
@pytest.mark.parametrize("mixes", [False, True])
def test_what_is_declared_is_what_is_assumed(arguments, factor, mixes, monkeypatch):
    declared, check = [], Session.check_sensitivity

    def noted(session, value):
        declared.append(value)
        check(session, value)

    monkeypatch.setattr(Session, "check_sensitivity", noted)
    network = keras.Sequential([keras.Input((4,)), layers.Dense(2), layers.Dense(3)])
    if mixes:  # all terms move: 7 others by 2 and one by 1, or 4 by 2
        network, factor = normalized_by_the_lot(), factor * (15 if factor < 2 else 4)
    model = small(sgd(**arguments), network)
    model.train_on_batch(*data(8))
    assert declared == [pytest.approx(factor)]
    assert assumed_sensitivity(model.privacy.current_run) == pytest.approx(factor)


@pytest.mark.parametrize(
    "compiled", [GRAPH, pytest.param(GRAPH | {"jit_compile": True}, marks=pytest.mark.slow)]
)
def test_rows_beyond_the_largest_lot_change_nothing(compiled, monkeypatch):
    """The feed declares smaller lots than the lot that arrives, as a faulty source might."""
    feed, smaller, found = private_training.Feed, Unknown(num_examples=8, lot_size=4), []
    monkeypatch.setattr(private_training, "Feed", lambda _, **kw: feed(smaller, **kw))
    for rows in (8, 4):
        for network in (normalized_by_the_lot(), None):
            model = small(sgd(noise=0.0), network, compiled if rows == 8 else {})
            model.train_on_batch(*(leaf[:rows] for leaf in data(8, seed=4)))
            found.append(weights(model))
    for more, exact in zip(found[:2], found[2:], strict=True):
        assert_close(more, exact, terms_of(model, 8))


# -- several views of an example ---------------------------------------------------------------------


def lots_of_views(monkeypatch, views, microbatch_size=1):
    """From now on, the rows of a batch are views of examples."""
    feed = private_training.Feed
    lots = types.SimpleNamespace(
        microbatch_size=microbatch_size, views=views, examples_per_person=None, sharded=False
    )

    def of_views(sampling, **settings):
        size = sampling.lot_size // views
        return feed(Unknown(num_examples=size, lot_size=size), lots=lots, **settings)

    monkeypatch.setattr(private_training, "Feed", of_views)


def normalized(layer):
    return keras.Sequential([keras.Input((4,)), layer, layers.Dense(3)])


def public_examples():
    public = np.random.default_rng(5).normal(size=(3, 4)).astype("float32")
    return PublicExamples(normalized(PublicBatchNormalization()), public)


VIEWED = {name: (lambda name=name: optimizer_of(name, seed=1), None) for name in MECHANISMS} | {
    "adaptive clipping": (lambda: sgd(seed=1, clipping="adaptive"), None),
    "clipping each layer": (lambda: sgd(seed=1, clipping="each_layer"), None),
    "microbatches": (lambda: sgd(seed=1, num_microbatches=4), None),
    "public statistics": (lambda: sgd(seed=1), public_examples),
    "private statistics": (lambda: sgd(seed=1), lambda: PrivateBatchNormalization()),
    "statistics of the lot": (
        lambda: sgd(seed=1),
        lambda: PrivateBatchNormalization(statistics="batch"),
    ),
}


# Steps of these mechanisms get the same sums as those of DP-SGD.
ALIKE = ("si_dpsgd", "matrix", "sgld", "dp_dropout")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] if c in ALIKE else []) for c in VIEWED]
)
def test_equal_views_count_as_one_example(case, monkeypatch):
    """Whatever the mechanism, clipping and normalization."""
    (optimizer, layer), (x, y), found = VIEWED[case], data(8), []
    for views in (1, 2):
        seed_keras(0)
        model = small(optimizer(), None if layer is None else normalized(layer()))
        with monkeypatch.context() as patch:
            lots_of_views(patch, views, model.optimizer.microbatch_size(8))
            model.train_on_batch(np.repeat(x, views, 0), np.repeat(y, views, 0))
        run = model.privacy.current_run
        assert (run.sampling.lot_size, run.contribution.views) == (8, views)
        found.append(weights(model))
    assert_close(found[1], found[0], terms_of(model, 16))


def test_physical_batches_that_cut_views_are_refused(monkeypatch):
    lots_of_views(monkeypatch, 2)
    model = small(physical_batch_size=3)
    with pytest.raises(ValueError, match="views 2"):
        model.train_on_batch(*data(8))
    assert not model.privacy.ledger.runs


# -- SI-DPSGD ----------------------------------------------------------------------------------------


def test_means_are_float64_and_one_example_moves_them_by_its_share():
    rows, rate = 4_000, 1e-3
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 50)).astype("float32")
    y = (3 * rng.normal(size=(rows, 32))).astype("float32")
    means = []
    for present in (1.0, 0.0):
        seed_keras(1)
        weight = np.ones(rows, "float32")
        weight[0] = present
        made = si_dpsgd(rate=rate, noise=0.0, momentum=0.9)
        network = keras.Sequential([keras.Input((50,)), layers.Dense(32)])
        model = small(made, network, {"loss": "mse"}, engine="auto")  # a loop would be long
        lots = make_lots("cyclic", x, y, lot_size=rows, sample_weight=weight)
        model.fit(lots, verbose=0)
        means.append(np.concatenate([m.numpy().ravel() for m in made._hidden.means]))
    assert means[0].dtype == np.float64
    distance = np.linalg.norm(means[0] - means[1]) / (rate / rows)
    assert distance == pytest.approx(1.0, abs=0.01)  # float32 means are far beyond this


def test_coarse_weights_are_refused():
    network = keras.Sequential([keras.Input((4,)), layers.Dense(3, dtype="bfloat16")])
    with pytest.raises(ValueError, match="float32"):
        train(small(si_dpsgd(), network))
    mixed = keras.Sequential([keras.Input((4,)), layers.Dense(3, dtype="mixed_bfloat16")])
    train(small(si_dpsgd(), mixed), batch_size=8)


# -- noise that differs from step to step ------------------------------------------------------------


def test_every_step_has_the_noise_of_its_place_in_the_table():
    class Moves(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(weights(self.model))

    wide = keras.Sequential([keras.Input((4,)), layers.Dense(1000)])
    # The noise is a million times as large as the gradients.
    model = small(sgd(noise=[3e6, 1e6, 2e6], clip=1e-6, rate=1.0), wide, GRAPH)
    seen = [weights(model)]
    train(model, epochs=3, batch_size=8, callbacks=[Moves()])
    moved = np.std(np.diff(seen, axis=0), axis=1) * 8  # the lot size
    np.testing.assert_allclose(moved, [3.0, 1.0, 2.0], rtol=0.06)
    assert model.privacy.ledger.runs[0].mechanism.noise_multiplier == (3e6, 1e6, 2e6)


def test_a_table_ends_its_run_and_is_saved(tmp_path):
    model = small(sgd(noise=[4.0, 5.0, 6.0]))
    train(model, epochs=2, batch_size=8)
    assert model.privacy.ledger.runs[0].mechanism.noise_multiplier == (4.0, 5.0, 6.0)
    model.save(tmp_path / "a.keras")
    assert keras.models.load_model(tmp_path / "a.keras").optimizer.noise_multiplier == (4, 5, 6)
    with pytest.raises(ValueError, match="3 values"):
        train(model, epochs=2)
    assert steps(model) == 2


def test_no_step_runs_beyond_its_table():
    model = small(sgd(noise=[4.0, 5.0]))
    for _ in range(2):
        model.train_on_batch(*data(8))
    with pytest.raises(ValueError, match="2 values"):
        model.train_on_batch(*data(8))
    with pytest.raises(tfdp.accounting.BudgetExhausted, match="2 steps"):
        model.privacy.account.session.entry.authorize(1)
    assert steps(model) == 2


def test_tables_are_refused_where_they_have_no_meaning():
    with pytest.raises(ValueError, match="adaptive"):
        sgd(noise=[1.0, 2.0], clipping="adaptive")
    with pytest.raises(ValueError, match="noise_multiplier"):
        sgd(noise=[1.0, -2.0])


# -- random layers -----------------------------------------------------------------------------------


class Noisy(layers.Layer):
    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def call(self, x):
        return x + self.draw(keras.ops.shape(x))


RANDOM = {
    "Dropout": lambda: layers.Dropout(0.5, seed=3),
    "keras.random": lambda: Noisy(keras.random.normal),
    "tf.random": lambda: Noisy(lambda shape: tf.random.normal(shape, seed=5)),
}


@pytest.mark.parametrize(
    ("name", "compiled", "seed"),
    [
        *((name, {}, None) for name in RANDOM),
        *((name, GRAPH if name == "tf.random" else {}, 1) for name in RANDOM),
        ("tf.random", GRAPH, None),
    ],
)
def test_what_random_layers_draw_is_as_secret_as_the_noise(name, compiled, seed):
    """Who knew it would see by the places of others that an example is there."""
    drawn = []
    for _ in range(2):
        keras.utils.set_random_seed(7)
        inner = [keras.Input((4,)), RANDOM[name](), layers.Dense(1, use_bias=False)]
        optimizer = sgd(noise=0.0, clip=99.0, seed=seed)
        loss = {"loss": lambda y, y_pred: y_pred}
        model = small(optimizer, keras.Sequential(inner), loss | compiled)
        for _ in range(2):
            before = weights(model)
            model.train_on_batch(np.ones((8, 4), "float32"), np.zeros((8, 1)))
            drawn.append(weights(model) - before)
    first, second, again, _ = drawn
    assert not np.allclose(first, second)
    assert np.allclose(first, again) == (seed is not None)


def test_every_step_draws_from_other_seeds():
    """All replicas have those of the step; their rows have other places."""
    model = small(sgd())
    train(model, batch_size=8)
    session, shifts = model.privacy.account.session, set()
    for _ in range(3):
        shifts.add(tuple(session.seed_shift().numpy()))
        session.begin_step()
    assert len(shifts) == 3
