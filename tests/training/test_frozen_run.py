"""A step takes what is accounted from the session's run; later changes have no effect."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import LOSS, data, fit, plain, private, sgd, si_dpsgd, steps, weights
from keras import layers

import tfdp
from tfdp.accounting import Strategy, proven
from tfdp.data import make_lots
from tfdp.gradients import bounds
from tfdp.layers import PublicBatchNormalization, PublicExamples
from tfdp.optimizers import MECHANISMS

DELTA = 1e-5
SETTINGS = {
    "matrix": {"strategy": Strategy(name="banded_toeplitz", coefficients=(1.0, 0.5))},
    "discrete_sgd": {"noise": "gaussian", "denoise": False},
    "sgld": {"num_examples": 10**12},
}
# Attributes of the optimizers that enter the accounting.
COMMON = ("l2_norm_clip", "noise_multiplier", "num_microbatches", "clipping")
OWN = {
    "si_dpsgd": ("learning_rate", "momentum", "nesterov", "guarantee", "release"),
    "matrix": ("strategy",),
    "discrete_sgd": ("family", "encode", "private_codebook"),
    "dp_dropout": ("composition",),
    "sgld": ("composition",),
}


def optimizer(mechanism, noise=1.0, **kwargs):
    make = MECHANISMS[mechanism](keras.optimizers.SGD)
    settings = {"learning_rate": 0.5, "l2_norm_clip": 1.0, "noise_multiplier": noise}
    return make(**settings | SETTINGS.get(mechanism, {}) | kwargs)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_is_accounted_cannot_be_assigned(mechanism, moment):
    made = optimizer(mechanism)
    if moment == "after":
        fit(private(made))
    for name in (*COMMON, *OWN.get(mechanism, ())):
        value = getattr(made, name)
        with pytest.raises((AttributeError, ValueError), match=r"[Ee]xpected"):
            setattr(made, name, 0.125)
        assert getattr(made, name) is value or getattr(made, name) == value


def test_the_message_says_how_to_begin_another_run():
    with pytest.raises(AttributeError, match=r"model\.compile\(DPKerasSGDOptimizer\(noise_mult"):
        sgd().noise_multiplier = 0.1


def test_the_learning_rate_of_dpsgd_stays_assignable():
    model = private()
    fit(model)
    model.optimizer.learning_rate = 0.01
    fit(model)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01)
    assert steps(model) == 6


@pytest.mark.parametrize("compiled", [{"run_eagerly": True}, {}, {"jit_compile": True}])
def test_noise_comes_from_the_run_even_where_private_attributes_are_changed(compiled):
    class Lowers(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            for name in ("noise_multiplier", "l2_norm_clip"):
                vars(self.model.optimizer)[f"_accounted_{name}"] = 1e-9

    x, y = data(8)
    moved = []
    for callbacks in ([], [Lowers()]):
        keras.utils.set_random_seed(0)
        model = private(sgd(noise=1e3, seed=1), compiled=compiled)
        before = weights(model)
        model.fit(x, y, batch_size=8, shuffle=False, epochs=2, verbose=0, callbacks=callbacks)
        moved.append(weights(model) - before)
    np.testing.assert_allclose(moved[0], moved[1], rtol=1e-4)


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
        model = private(si_dpsgd(rate=schedule, seed=1, noise=5.0), plain())
        fit(model, rows=8, epochs=3, callbacks=callbacks)
        (run,) = model.privacy.ledger.runs
        assert run.learning_rates == (np.float32(0.1),) * 3
        results.append(weights(model))
    np.testing.assert_array_equal(results[0], results[1])


def test_another_optimizer_in_the_middle_of_a_fit_is_refused():
    class Swaps(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 1:
                self.model.optimizer = sgd(noise=0.0)
                self.model.optimizer.build(self.model.trainable_variables)

    model = private(compiled={"run_eagerly": True})
    with pytest.raises(RuntimeError, match="in the middle of a training"):
        fit(model, callbacks=[Swaps()])


def test_other_trainable_weights_in_the_middle_of_a_fit_are_refused():
    class Freezes(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.layers[0].trainable = batch == 0

    model = private(compiled={"run_eagerly": True})
    with pytest.raises(RuntimeError, match="in the middle of a training"):
        fit(model, callbacks=[Freezes()])


# -- what an engine bounds -----------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [{"run_eagerly": True}, {}])
def test_an_engine_that_bounds_less_than_is_assumed_is_refused(compiled, monkeypatch):
    monkeypatch.setattr(bounds.GlobalL2Clip, "relative_sensitivity", lambda *_: 1.1)
    model = private(compiled=compiled)
    before = weights(model)
    with pytest.raises(RuntimeError, match=r"by 1.1 clip norms.*assumes 1"):
        fit(model)
    np.testing.assert_array_equal(weights(model), before)
    assert steps(model) == 0


@pytest.mark.parametrize(
    ("arguments", "factor"),
    [
        ({}, 1),
        ({"clipping": "each_layer"}, 2**0.5),
        ({"clipping": "per_layer"}, 1),
        ({"num_microbatches": 4}, 2),
        ({"clipping": "adaptive"}, 1),
        ({"clipping": "each_layer", "num_microbatches": 4}, 8**0.5),
    ],
)
def test_what_is_declared_is_what_is_assumed(arguments, factor, monkeypatch):
    declared = []
    check = tfdp.session.Session.check_sensitivity
    monkeypatch.setattr(
        tfdp.session.Session,
        "check_sensitivity",
        lambda self, value: (declared.append(value), check(self, value)),
    )
    fit(private(sgd(**arguments)))
    assert declared[0] == pytest.approx(factor)


def normalized_by_the_lot():
    network = keras.Sequential(
        [keras.Input((4,)), layers.Dense(5), PublicBatchNormalization(), layers.Dense(3)]
    )
    public = np.random.default_rng(5).normal(size=(6, 4)).astype("float32")
    examples = PublicExamples(network, public, "batch")
    return keras.Sequential([keras.Input((4,)), examples])


@pytest.mark.parametrize("compiled", [{"run_eagerly": True}, {}, {"jit_compile": True}])
def test_lots_of_more_rows_than_the_run_knows_change_nothing(compiled, monkeypatch):
    model = private(model=normalized_by_the_lot(), compiled=compiled)
    model.fit(make_lots("cyclic", *data(8), lot_size=8), verbose=0)
    assert model.privacy.current_run.batch_statistics
    x, y = data(16, seed=4)
    # The plan declares smaller lots than the lot that arrives.
    import tfdp.training.private_training as training

    plan = training.Plan
    monkeypatch.setattr(training, "Plan", lambda **kw: plan(**kw | {"lot_size": 8}))
    before = weights(model)
    try:
        model.train_on_batch(x, y)
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        assert "more examples" in str(error)
    np.testing.assert_array_equal(weights(model), before)
    assert steps(model) == 1


# -- SI-DPSGD ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_means_are_float64_and_one_example_moves_them_by_its_share(momentum):
    rows, rate = 20_000, 1e-3
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 100)).astype("float32")
    y = (3 * rng.normal(size=(rows, 32))).astype("float32")
    means = []
    for present in (1.0, 0.0):
        keras.utils.set_random_seed(1)
        weight = np.ones(rows, "float32")
        weight[0] = present
        made = si_dpsgd(rate=rate, noise=0.0, momentum=momentum)
        model = private(
            made,
            keras.Sequential([keras.Input((100,)), layers.Dense(32)]),
            {"loss": "mse", "metrics": None},
        )
        lots = make_lots("cyclic", x, y, lot_size=rows, sample_weight=weight)
        model.fit(lots, verbose=0)
        means.append(np.concatenate([m.numpy().ravel() for m in made._hidden.means]))
    assert means[0].dtype == np.float64
    distance = np.linalg.norm(means[0] - means[1]) / (rate / rows)
    # The sum of 20,000 gradients in float32 is rounded, too. Float32 means gave a distance of 2.66.
    assert distance == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16"])
def test_coarse_weights_are_refused(policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = private(si_dpsgd(), plain())
        if policy == "mixed_bfloat16":  # this policy has float32 weights
            fit(model)
        else:
            with pytest.raises(ValueError, match="Expected float32 or float64 weights"):
                fit(model)
    finally:
        keras.config.set_dtype_policy("float32")


def test_rounding_is_counted_and_a_tiny_rate_is_not_proven():
    model = private(si_dpsgd(noise=20.0))
    fit(model)
    run = model.privacy.current_run
    assert run.num_weights == 5 * 5 + 6 * 3 and run.largest_start > 0
    exact = proven(run.with_(num_weights=None), DELTA).epsilon
    assert exact < proven(run, DELTA).epsilon < exact * (1 + 1e-6)
    tiny = proven(run.with_(learning_rates=1e-13), DELTA)
    assert tiny.epsilon == np.inf and "larger learning rate" in tiny.reason


# -- processes ---------------------------------------------------------------------------------------


def test_a_forked_process_draws_other_noise_in_a_run_of_its_own(monkeypatch):
    model = private(sgd(noise=1e3))
    fit(model)
    key = model.optimizer._secrets.noise._key
    monkeypatch.setattr(os, "getpid", lambda: -1)
    fit(model)
    assert model.optimizer._secrets.noise._key != key
    assert [run.steps for run in model.privacy.ledger.runs] == [3, 3]


def test_a_fork_in_the_middle_of_a_fit_is_refused(monkeypatch):
    class Forks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            monkeypatch.setattr(os, "getpid", lambda: -1)

    model = private()
    with pytest.raises(RuntimeError, match="forked in the middle"):
        fit(model, callbacks=[Forks()])
    monkeypatch.undo()
    assert steps(model) == 1


# -- the scale of the noise ----------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_scale_that_a_step_reports_is_that_of_its_noise(mechanism):
    """Compares the scale that a step reports with the noise that a step without signal adds."""
    wide = keras.Sequential([keras.Input((4,)), layers.Dense(400), layers.Dense(3)])
    model = private(optimizer(mechanism, 2.0, l2_norm_clip=0.5), wide)
    scales = []
    update = model.optimizer.update

    def watched(*arguments):
        scale = update(*arguments)
        scales.append(float(scale))
        return scale

    model.optimizer.update = watched
    model.compile(model.optimizer, loss=LOSS, run_eagerly=True)
    fit(model, rows=8, epochs=3)
    assert len(scales) == 3
    first = scales[0]
    assert first == pytest.approx(1.0, rel=1e-5)  # z C, in the first step of every mechanism
    later = 1.25**0.5 if mechanism == "matrix" else 1.0
    assert scales[1] == pytest.approx(later, rel=1e-5)


# -- noise that differs from step to step ------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "compiled"),
    [
        *((mechanism, {}) for mechanism in MECHANISMS if mechanism != "matrix"),
        ("dpsgd", {"run_eagerly": True}),
        ("dpsgd", {"jit_compile": True}),
        ("si_dpsgd", {"jit_compile": True}),
    ],
)
def test_every_step_has_the_noise_of_its_place_in_the_table(mechanism, compiled):
    table = (3.0, 1.0, 2.0)

    class Scales(keras.callbacks.Callback):
        seen = ()

        def on_train_batch_end(self, batch, logs=None):
            drawn = self.model.privacy.diagnostics(reset=True)["noise_to_signal"]
            self.seen += (drawn,)

    wide = keras.Sequential([keras.Input((4,)), layers.Dense(400), layers.Dense(3)])
    ratios = []
    for noise in (table, 1.0):
        keras.utils.set_random_seed(0)
        scales = Scales()
        model = private(optimizer(mechanism, noise, learning_rate=1e-6), wide, compiled)
        fit(model, rows=8, epochs=3, callbacks=[scales])
        ratios.append(np.array(scales.seen))
    # At so small a learning rate the signal hardly changes.
    np.testing.assert_allclose(ratios[0] / ratios[1], table, rtol=0.05)
    assert model.privacy.ledger.runs[-1].noise_multiplier == 1.0


def test_a_table_ends_its_run_and_is_saved(tmp_path):
    model = private(sgd(noise=[4.0, 5.0, 6.0, 7.0]))
    fit(model)
    assert model.privacy.ledger.runs[0].noise_multiplier == (4.0, 5.0, 6.0, 7.0)
    model.save(tmp_path / "a.keras")
    assert keras.models.load_model(tmp_path / "a.keras").optimizer.noise_multiplier == (4, 5, 6, 7)
    with pytest.raises(ValueError, match="4 values"):
        fit(model, epochs=2)
    model = private(sgd(noise=[4.0, 5.0]))
    for _ in range(2):
        model.train_on_batch(*data(8))
    with pytest.raises(ValueError, match="2 values"):
        model.train_on_batch(*data(8))
    assert steps(model) == 2


def test_tables_are_refused_where_they_have_no_meaning():
    with pytest.raises(ValueError, match="adaptive"):
        sgd(noise=[1.0, 2.0], clipping="adaptive")
    with pytest.raises(ValueError, match="noise_multiplier"):
        sgd(noise=[1.0, -2.0])
    with pytest.raises(ValueError, match="Toeplitz"):
        fit(private(optimizer("matrix", (1.0, 2.0, 3.0))))
