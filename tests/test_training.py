"""Private training: what trains, what is refused, and that every step is counted before it counts."""

import itertools
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import LOSS, data, fit, plain, private, sgd, si_dpsgd, weights
from keras import layers

import tfdp
from tfdp.accounting import BudgetExhausted, Run, proven
from tfdp.data import make_lots

DELTA = 1e-5


def steps(model):
    return sum(run.steps for run in model.ledger.runs)


def whole(model, count, **kwargs):
    """`count` lots that are the whole data."""
    return fit(model, rows=8, steps_per_epoch=count, **kwargs)


def budget_for(allowed):
    """A budget that pays for exactly so many steps of `whole(private())`."""
    run = Run(
        mechanism="dpsgd",
        num_examples=8,
        lot_size=8,
        steps=allowed,
        sampling="cyclic",
        noise_multiplier=1.0,
        l2_norm_clip=1.0,
    )
    return tfdp.PrivacyBudget(proven(run, DELTA).epsilon * 1.0001, DELTA)


# -- refusals ------------------------------------------------------------------------------------


def test_a_plain_model_does_not_train_with_a_private_optimizer():
    model = plain()
    model.compile(sgd(), loss=LOSS)
    before = weights(model)
    with pytest.raises(RuntimeError, match="make_private"):
        model.fit(*data(), verbose=0)
    np.testing.assert_array_equal(weights(model), before)


@pytest.mark.parametrize("optimizer", ["sgd", keras.optimizers.Adam()])
def test_a_private_model_does_not_train_with_a_plain_optimizer(optimizer):
    with pytest.raises(ValueError, match="needs a private optimizer"):
        private(optimizer)
    model = private()
    model.optimizer = keras.optimizers.SGD()
    with pytest.raises(ValueError, match="needs a private optimizer"):
        fit(model)


@pytest.mark.parametrize("build_first", [False, True])
def test_batch_normalization_is_refused_by_name(build_first):
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(3), layers.BatchNormalization(name="bn")]
    )
    if build_first:
        with pytest.raises(ValueError, match=r"'bn' \(BatchNormalization\).*LayerNormalization"):
            tfdp.make_private(model)
    model = tfdp.DPSequential([keras.Input((4,)), *model.layers])
    model.compile(sgd(), loss=LOSS)
    with pytest.raises(ValueError, match=r"'bn' \(BatchNormalization\)"):
        fit(model)


def test_an_unbuilt_model_is_refused():
    with pytest.raises(ValueError, match="not built"):
        fit(private(model=keras.Sequential([layers.Dense(3)])))


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


def test_bad_arguments():
    with pytest.raises(ValueError, match="out of range"):
        private().fit(data()[0], np.full(24, 3), verbose=0)
    with pytest.raises(ValueError, match="engine"):
        private(engine="fast")
    with pytest.raises(ValueError, match="physical_batch_size"):
        private(physical_batch_size=0)
    with pytest.raises(ValueError, match="multiple of the microbatch size 4"):
        fit(private(sgd(num_microbatches=2), physical_batch_size=3))
    with pytest.raises(ValueError, match="seed"):
        private(seed=-1)
    with pytest.raises(TypeError, match=r"keras.Model"):
        tfdp.make_private(layers.Dense(3))
    with pytest.raises(ValueError, match="weights every metric"):
        private(compiled={"metrics": ["accuracy"], "weighted_metrics": ["accuracy"]})


@pytest.fixture
def float16():
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy("float32")


def test_float16_is_refused(float16):
    with pytest.raises(ValueError, match="float16"):
        private()


def test_loss_scaling_is_refused():
    with pytest.raises(ValueError, match="needs a private optimizer"):
        private(keras.optimizers.LossScaleOptimizer(sgd()))


REPLICAS = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from helpers import fit, private
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = private()
fit(model)
"""


@pytest.mark.slow
def test_several_replicas_are_refused():
    done = subprocess.run(
        [sys.executable, "-c", REPLICAS],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode != 0 and "runs on one replica" in done.stderr, done.stderr


def test_metrics_that_would_count_padding_are_refused():
    model = plain()
    model.compile(sgd(), loss=LOSS, metrics=["accuracy"])
    with pytest.raises(ValueError, match="compiled before it was made private"):
        fit(tfdp.make_private(model))


# -- what trains, and as what --------------------------------------------------------------------


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
    (run,) = model.ledger.runs
    assert (run.sampling, run.num_examples, run.lot_size, run.steps) == (
        sampling,
        num_examples,
        8,
        3,
    )
    assert not run.seeded


def test_a_foreign_dataset_trains_for_several_epochs():
    model = private()
    model.fit(foreign(drop_remainder=True), epochs=3, verbose=0)
    assert steps(model) == 9


@pytest.mark.slow
def test_all_ways_of_running_give_the_same():
    results = {}
    for name, options in {
        "function": {},
        "eager": {"run_eagerly": True},
        "xla": {"jit_compile": True},
        "several": {"steps_per_execution": 3},
    }.items():
        model = private(sgd(noise=0.0), compiled=options)
        history = fit(model, epochs=2).history
        results[name] = np.append(weights(model), [history["loss"], history["accuracy"]])
        assert steps(model) == 6
    for name in ("physical", "vectorized"):
        options = {"physical_batch_size": 3} if name == "physical" else {"engine": name}
        model = private(sgd(noise=0.0), **options)
        history = fit(model, epochs=2).history
        results[name] = np.append(weights(model), [history["loss"], history["accuracy"]])
    for name, result in results.items():
        np.testing.assert_allclose(result, results["function"], atol=1e-5, err_msg=name)


def test_class_and_sample_weights_multiply():
    _, y = data(8)
    one = private(sgd(noise=0.0, clip=1e3))
    fit(one, rows=8, class_weight={0: 2.0, 1: 0.0}, sample_weight=np.arange(8.0))
    two = private(sgd(noise=0.0, clip=1e3))
    fit(two, rows=8, sample_weight=np.arange(8.0) * np.array([2.0, 0.0, 1.0])[y])
    np.testing.assert_allclose(weights(one), weights(two), atol=1e-6)


@pytest.mark.parametrize("physical_batch_size", [None, 5])
def test_metrics_see_no_padding(physical_batch_size):
    x, y = data()
    model = private(sgd(rate=0.0, noise=0.0), physical_batch_size=physical_batch_size)
    lots = make_lots("poisson", x, y, lot_size=8, physical_batch_size=physical_batch_size, seed=3)
    logs = model.fit(lots, verbose=0).history
    again = make_lots("poisson", x, y, lot_size=8, physical_batch_size=physical_batch_size, seed=3)
    drawn = [(bx[w > 0], by[w > 0]) for bx, by, w in again.as_dataset().take(3).as_numpy_iterator()]
    bx, by = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    logits = model.predict(bx, verbose=0)
    assert logs["accuracy"][0] == pytest.approx(np.mean(logits.argmax(1) == by))
    assert logs["loss"][0] == pytest.approx(float(LOSS(by, logits)), rel=1e-5)


def test_logs_of_several_outputs_and_penalties_agree_with_evaluate():
    x = keras.Input((4,))
    hidden = layers.Dense(4, kernel_regularizer=keras.regularizers.L2(0.5))(x)
    outputs = {"a": layers.Dense(3, name="a")(hidden), "b": layers.Dense(1, name="b")(hidden)}
    losses = {"a": LOSS, "b": "mse"}
    compiled = {"loss": losses, "metrics": {"a": ["accuracy"], "b": ["mae"]}}
    model = private(sgd(rate=0.0), model=keras.Model(x, outputs), compiled=compiled)
    inputs, labels = data(8)
    targets = {"a": labels, "b": inputs[:, :1]}
    logs = model.fit(inputs, targets, batch_size=8, shuffle=False, verbose=0).history
    expected = model.evaluate(inputs, targets, verbose=0, return_dict=True)
    assert set(logs) == {"loss", "a_accuracy", "b_mae"}
    assert {k: v[0] for k, v in logs.items()} == pytest.approx(
        {k: expected[k] for k in logs}, rel=1e-5
    )


def test_lots_bring_their_physical_batch_size():
    results = []
    for size, expected in ((None, None), (4, 4)):
        model = private(sgd(noise=0.0))
        model.fit(make_lots("cyclic", *data(), lot_size=8, physical_batch_size=size), verbose=0)
        assert model._entry.plan.physical_batch_size == expected
        results.append(weights(model))
    np.testing.assert_allclose(*results, atol=1e-6)


def test_keras_callbacks_and_validation_data_work(tmp_path):
    model = private()
    history = fit(
        model,
        epochs=4,
        validation_data=data(10, seed=1),
        callbacks=[
            keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=1e9),
            keras.callbacks.TensorBoard(tmp_path),
            keras.callbacks.ReduceLROnPlateau("val_loss"),
        ],
    ).history
    assert len(history["val_loss"]) == 2  # stopped early
    assert steps(model) == 6 == model.steps_taken
    assert list(tmp_path.rglob("*tfevents*"))


def test_a_users_seed_reproduces_lots_and_other_fits_draw_others():
    def train():
        model = private(sgd(noise=0.0), seed=5)
        model.fit(*data(), batch_size=8, verbose=0)
        return model

    one, two = train(), train()
    np.testing.assert_array_equal(weights(one), weights(two))
    assert one.ledger.runs[0].seeded
    feeder = one._privacy.feeder
    resumed = tfdp.make_private(two, seed=5)._privacy.feeder
    assert len({feeder._next_seed(one), feeder._next_seed(one), resumed._next_seed(two)}) == 3


# -- the ledger ----------------------------------------------------------------------------------


def test_whole_fits_go_on_in_one_entry_and_interrupted_epochs_open_another():
    lots = make_lots("cyclic", *data(), lot_size=8)
    model = private()
    model.fit(lots, epochs=2, verbose=0)
    model.fit(lots, verbose=0)
    assert [run.steps for run in model.ledger.runs] == [9]
    model.fit(lots, epochs=1, steps_per_epoch=2, verbose=0)
    assert [run.steps for run in model.ledger.runs] == [11]
    model.fit(lots, verbose=0)  # begins at the first lot again, in the middle of an epoch
    assert [run.steps for run in model.ledger.runs] == [11, 3]
    model.fit(make_lots("cyclic", *data(), lot_size=8), verbose=0)  # maybe another order
    assert [run.steps for run in model.ledger.runs] == [11, 3, 3]


def test_an_exception_in_the_middle_leaves_a_true_count():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                raise KeyboardInterrupt

    model = private()
    with pytest.raises(KeyboardInterrupt):
        fit(model, callbacks=[Stop()])
    assert steps(model) == 2
    fit(model)
    assert steps(model) == 5


def test_compiling_again_forgets_nothing():
    model = private()
    fit(model)
    for change in ("compile", "assign"):
        spent = steps(model)
        if change == "compile":
            model.compile(sgd(noise=2.0), loss=LOSS)
        else:
            model.optimizer = sgd(noise=3.0)
        assert steps(model) == spent
        fit(model)
        assert steps(model) == spent + 3
    assert {run.noise_multiplier for run in model.ledger.runs} == {1.0, 2.0, 3.0}


def test_a_checkpoint_without_its_ledger_is_refused(tmp_path):
    first = private()
    fit(first)
    saved = tf.train.Checkpoint(model=first, optimizer=first.optimizer).save(str(tmp_path / "a"))
    second = private()
    second.optimizer.build(second.trainable_variables)
    tf.train.Checkpoint(model=second, optimizer=second.optimizer).restore(saved).expect_partial()
    with pytest.raises(ValueError, match="ledger knows of 0"):
        fit(second)
    second.ledger.merge(first.ledger)
    fit(second)
    assert steps(second) == 6


def test_a_change_of_trainable_layers_is_traced_again():
    model = private(sgd(noise=0.0))
    fit(model)
    model.layers[0].trainable = False
    kernel = model.layers[0].kernel.numpy()
    last = model.layers[1].kernel.numpy()
    fit(model)
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), kernel)
    assert not np.array_equal(model.layers[1].kernel.numpy(), last)


# -- the budget ----------------------------------------------------------------------------------


def test_fit_stops_at_the_budget_and_says_so():
    model = private(budget=budget_for(4))
    with pytest.raises(BudgetExhausted, match=r"proven epsilon .* allows 4 steps.*4 were taken"):
        whole(model, 9)
    before = weights(model)
    assert steps(model) == 4 and model.steps_left == 0
    for again in (lambda: whole(model, 1), lambda: model.train_on_batch(*data(8))):
        with pytest.raises(BudgetExhausted):
            again()
    np.testing.assert_array_equal(weights(model), before)
    assert steps(model) == 4
    assert model.privacy_spent(DELTA).epsilon <= budget_for(4).epsilon


@pytest.mark.parametrize("options", [{"jit_compile": True}, {"run_eagerly": True}])
def test_the_budget_holds_however_the_step_runs(options):
    model = private(budget=budget_for(2), compiled=options)
    with pytest.raises(BudgetExhausted):
        whole(model, 3)
    assert steps(model) == 2


def test_the_budget_holds_within_an_execution_of_several_steps():
    model = private(budget=budget_for(4), compiled={"steps_per_execution": 3})
    with pytest.raises(BudgetExhausted):
        whole(model, 6)
    assert steps(model) == 3  # the second execution would have taken six


def test_a_budget_that_is_given_later_counts_what_was_spent():
    model = private()
    whole(model, 3)
    model.configure_privacy(budget=budget_for(4))
    with pytest.raises(BudgetExhausted):
        whole(model, 3)
    assert steps(model) == 4
    other = private()
    other.ledger.merge(model.ledger)
    other.configure_privacy(budget=budget_for(4))
    with pytest.raises(BudgetExhausted):
        whole(other, 1)
    assert steps(other) == 4


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_loop_of_ones_own_cannot_go_beyond_the_budget(jit_compile):
    model = private()
    x, y = data(8)
    model.train_on_batch(x, y)
    run = model.current_run.with_(steps=3)
    model.configure_privacy(budget=tfdp.PrivacyBudget(proven(run, DELTA).epsilon * 1.0001, DELTA))
    step = tf.function(lambda: model.train_step((x, y)), jit_compile=jit_compile)
    seen = [weights(model)]
    for _ in range(5):
        try:
            step()
        except tf.errors.InvalidArgumentError as error:
            assert "budget is exhausted" in str(error)
        seen.append(weights(model))
    moved = [not np.array_equal(a, b) for a, b in itertools.pairwise(seen)]
    assert moved == [True, True, False, False, False]
    assert steps(model) == 3


def test_a_function_traced_for_a_closed_entry_does_nothing():
    model = private()
    x, y = data(8)
    model.train_on_batch(x, y)
    step = tf.function(lambda: model.train_step((x, y)))
    step()
    fit(model)
    before = weights(model)
    with pytest.raises(tf.errors.InvalidArgumentError):
        step()
    np.testing.assert_array_equal(weights(model), before)
    assert [run.steps for run in model.ledger.runs] == [2, 3]


def test_train_step_does_not_run_under_the_sampling_of_a_fit():
    model = private()
    with pytest.raises(RuntimeError, match="how lots are drawn"):
        model.train_step(data(8))
    fit(model)
    with pytest.raises(RuntimeError, match="how lots are drawn"):
        model.train_step(data(8))
    assert steps(model) == 3


def test_a_restored_ledger_counts_against_the_budget_of_the_fit_that_restores_it(tmp_path):
    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)

    whole(private(), 3, callbacks=[backup()])
    model = private(budget=budget_for(4))
    with pytest.raises(BudgetExhausted):
        whole(model, 3, epochs=2, callbacks=[backup()])
    assert steps(model) == 4


def test_train_on_batch_has_no_end(monkeypatch):
    monkeypatch.setattr("tfdp.private_training.OPEN_ENDED", 2)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.9)
    model = private(si_dpsgd(rate=schedule))
    for _ in range(5):
        model.train_on_batch(*data(8))
    (run,) = model.ledger.runs
    assert run.steps == 5
    np.testing.assert_allclose(run.schedule("learning_rates"), 0.5 * 0.9 ** np.arange(5), rtol=1e-6)


# -- classes -------------------------------------------------------------------------------------


def test_functional_and_subclassed_dp_models_live_together():
    x = keras.Input((4,))
    functional = tfdp.DPModel(x, layers.Dense(3)(x))

    class Mine(tfdp.DPModel):
        def __init__(self):
            super().__init__()
            self.out = layers.Dense(3)

        def call(self, x):
            return self.out(x)

    mine = Mine()
    mine(np.zeros((1, 4)))
    for model in (functional, mine):
        model.compile(sgd(), loss=LOSS)
        fit(model)
        assert steps(model) == 3 and isinstance(model, tfdp.DPModel)

    class Wrong(tfdp.DPModel):
        pass

    with pytest.raises(TypeError, match="DPFunctional"):
        Wrong(inputs=x, outputs=layers.Dense(3)(x))


def test_the_statement_names_both_guarantees():
    model = private()
    fit(model)
    text = model.privacy_statement(DELTA)
    assert "proven" in text.lower() and "claimed" in text.lower()
    assert set(model.privacy_diagnostics()) >= {"fraction_clipped", "median_gradient_norm"}
    assert model.privacy_spent(DELTA).epsilon == proven(model.current_run, DELTA).epsilon
