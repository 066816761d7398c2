"""Correlated noise in training: its covariance, its sensitivity and the secrecy of past noise."""

import math
import shutil

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from helpers import LOSS, SAVES, arrays_in, data, fit, plain, private, sgd, weights

import tfdp
from tfdp.accounting import BudgetExhausted, PrivacyBudget, Run, Strategy, proven
from tfdp.accounting.strategies import inverse, prefix_noise
from tfdp.data import make_lots
from tfdp.optimizers import dp_keras_optimizer, make_matrix_optimizer_class

DELTA, L, STEPS = 1e-5, 8, 12
BANDED = Strategy(name="banded_toeplitz", coefficients=(1.0, 0.5, 0.25, -0.125))
PLANS = {
    "identity": Strategy(name="identity"),
    "prefix_sum": Strategy(name="prefix_sum"),
    "sqrt_toeplitz": Strategy(name="sqrt_toeplitz", bands=STEPS),
    "banded_toeplitz": BANDED,
}


def matrix(noise=1.0, clip=1.0, rate=0.5, strategy=BANDED, base=keras.optimizers.SGD, **kwargs):
    return make_matrix_optimizer_class(base)(
        l2_norm_clip=clip,
        noise_multiplier=noise,
        learning_rate=rate,
        strategy=strategy,
        **kwargs,
    )


def toeplitz(column, steps):
    c = np.zeros(steps)
    c[: len(column)] = column[:steps]
    return np.array([[c[t - s] if t >= s else 0.0 for s in range(steps)] for t in range(steps)])


# -- the noise -----------------------------------------------------------------------------------

SIGNIFICANCE = 1e-9  # there are many tests, and the noise is secret
Z, TINY = 3e6, 1e-6  # noise with standard deviation 3 around sums with norms of at most 8e-6


class Watch(keras.callbacks.Callback):
    """Records the change of the weights in every step."""

    def __init__(self):
        super().__init__()
        self.moves, self._last = [], None

    def on_train_begin(self, logs=None):
        self._last = weights(self.model)

    def on_train_batch_end(self, batch, logs=None):
        now = weights(self.model)
        self.moves.append(self._last - now)
        self._last = now


def noisy(strategy, compiled=None, **kwargs):
    """A model that only noise moves: y_t with standard deviation 3 in z, at learning rate L."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(120), keras.layers.Dense(3, use_bias=False)]
    )
    return private(matrix(Z, TINY, float(L), strategy), model, compiled, **kwargs)


def one_lot():
    return make_lots("cyclic", *data(L), lot_size=L)


def noise_of(model, steps=STEPS, lots=None):
    watch = Watch()
    lots = one_lot() if lots is None else lots
    model.fit(lots, steps_per_epoch=steps, verbose=0, callbacks=[watch])
    return np.array(watch.moves)


def accepts(noise, strategy, stddev):
    """Tests whether C y is white noise: its variance, its shape, its correlation between steps."""
    steps, weights_ = noise.shape
    z = toeplitz(strategy.first(steps), steps) @ noise / stddev
    tail, square = scipy.stats.chi2(z.size), (z**2).sum()
    correlation = np.corrcoef(z)[np.triu_indices(steps, 1)]
    largest = np.abs(correlation).max() * math.sqrt(weights_)
    values = [tail.cdf(square), tail.sf(square), scipy.stats.kstest(z.ravel(), "norm").pvalue]
    values.append(2 * scipy.stats.norm.sf(largest) * len(correlation))
    return min(values) > SIGNIFICANCE


@pytest.mark.parametrize("name", PLANS)
def test_the_noise_has_the_covariance_of_the_strategy_and_no_other(name):
    plan = PLANS[name]
    noise = noise_of(noisy(plan))
    assert accepts(noise, plan, 3.0)
    assert not accepts(noise, plan, 2.0)
    assert not accepts(noise, plan, 4.5)
    for other in PLANS:
        if other != name:
            assert not accepts(noise, PLANS[other], 3.0), other
    # The noise on the sum of the first t steps has the predicted error.
    squares = (np.cumsum(noise, axis=0) ** 2).sum(axis=1)
    predicted = 3.0 * prefix_noise(plan.first(STEPS), STEPS)
    tail = scipy.stats.chi2(noise.shape[1])
    for factor, good in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        statistic = squares / (factor * predicted) ** 2
        p_values = np.minimum(tail.cdf(statistic), tail.sf(statistic))
        found = p_values > SIGNIFICANCE
        assert np.all(found) if good else not np.any(found)


@pytest.mark.parametrize(
    ("compiled", "options"),
    [
        ({"run_eagerly": True}, {}),
        ({"jit_compile": True}, {}),
        ({"steps_per_execution": 3}, {}),
        ({}, {"physical_batch_size": 3}),
    ],
    ids=["eager", "xla", "several", "physical"],
)
def test_however_the_step_runs(compiled, options):
    model = noisy(BANDED, compiled, **options)
    if "steps_per_execution" not in compiled:
        assert accepts(noise_of(model), BANDED, 3.0)
        return
    before = weights(model)  # only every third step is visible
    lots = make_lots("cyclic", *data(L), lot_size=L)
    model.fit(lots, steps_per_epoch=STEPS, verbose=0)
    predicted = 3.0 * prefix_noise(BANDED.first(STEPS), STEPS)[-1]
    square = ((weights(model) - before) ** 2).sum() / predicted**2
    tail = scipy.stats.chi2(before.size)
    assert min(tail.cdf(square), tail.sf(square)) > SIGNIFICANCE


def test_fits_of_one_run_share_one_stream_of_noise():
    model = noisy(BANDED)
    lots = one_lot()
    noise = np.concatenate([noise_of(model, 5, lots), noise_of(model, 7, lots)])
    assert accepts(noise, BANDED, 3.0)
    assert [run.steps for run in model.privacy.ledger.runs] == [12]


def test_a_change_of_the_run_starts_afresh():
    model = noisy(BANDED)
    first, second = noise_of(model, 6), noise_of(model, 6)  # new lots may have another order
    assert [run.steps for run in model.privacy.ledger.runs] == [6, 6]
    assert accepts(first, BANDED, 3.0) and accepts(second, BANDED, 3.0)
    assert not accepts(np.concatenate([first, second]), BANDED, 3.0)


def test_a_step_that_was_counted_and_not_finished_ends_the_run(monkeypatch):
    model = private(matrix(), compiled={"run_eagerly": True})
    fit(model)
    with monkeypatch.context() as patch:
        patch.setattr(dp_keras_optimizer, "mean_of", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.fit(model._session.plan.lots, verbose=0)
    assert model._session.spent == 4
    noise = model.optimizer._correlated
    noise._steps.assign(3)  # as if the step had failed before its noise was made
    assert not model.optimizer.continues(model._session)
    noise._steps.assign(4)
    assert model.optimizer.continues(model._session)


# -- the update ----------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [keras.optimizers.SGD, keras.optimizers.Adam])
def test_without_noise_it_is_the_update_rule(base):
    options = {"momentum": 0.9, "nesterov": True} if base is keras.optimizers.SGD else {}
    model = private(matrix(0.0, 0.3, base=base, **options))
    twin = private(
        tfdp.make_dp_optimizer_class(base)(
            l2_norm_clip=0.3, noise_multiplier=0.0, learning_rate=0.5, **options
        )
    )
    for each in (model, twin):
        fit(each, epochs=3)
    np.testing.assert_allclose(weights(model), weights(twin), atol=1e-6)
    assert isinstance(model.optimizer, base)


def test_the_learning_rate_is_post_processing():
    model = private(matrix())
    fit(model)
    model.optimizer.learning_rate = 0.1
    fit(model, rows=24)
    assert {run.described_steps for run in model.privacy.ledger.runs} == {None}


# -- sensitivity ---------------------------------------------------------------------------------

N, EPOCHS = 24, 4  # an example participates in every third step


def released_sums(x, present, clip, order="cyclic"):
    """Returns the clipped sums of a run without noise, in which the gradients are x."""
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    made = private(matrix(0.0, clip, float(L)), model, {"loss": lambda y, p: p, "metrics": None})
    watch = Watch()
    lots = make_lots(order, x, np.zeros(N), lot_size=L, sample_weight=present)
    made.fit(lots, epochs=EPOCHS, verbose=0, callbacks=[watch])
    return np.array(watch.moves), made.privacy.ledger.runs[0]


@pytest.mark.parametrize("seed", range(3))
def test_no_neighbour_moves_more_than_is_accounted(seed):
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(N, 3)) * rng.choice([0.1, 1.0, 100.0], (N, 1))).astype("float32")
    victim = int(rng.integers(N))
    x[victim] *= 1000.0  # clipped
    present = np.ones(N)
    absent = present.copy()
    absent[victim] = 0.0
    sums, run = released_sums(x, present, clip=0.7)
    others, _ = released_sums(x, absent, clip=0.7)
    difference = (sums - others) / 0.7
    assert np.count_nonzero(np.abs(difference).max(axis=1) > 1e-6) == EPOCHS
    for plan in PLANS.values():
        moved = np.linalg.norm(toeplitz(plan.first(STEPS), STEPS) @ difference)
        accounted = run.with_(strategy=plan, noise_multiplier=1.0)
        bound = proven(accounted, DELTA).mu
        assert moved <= bound * (1 + 1e-5)
        if victim < L and plan is not BANDED:  # the worst place, with one direction in all lots
            assert moved == pytest.approx(bound, rel=1e-4)
        # The test detects accounting for only one participation, and gradients without clipping.
        once = proven(accounted.with_(num_examples=L * STEPS), DELTA).mu
        assert moved > 1.3 * once
    free, _ = released_sums(x, present, clip=1e6)
    less, _ = released_sums(x, absent, clip=1e6)
    moved = np.linalg.norm(toeplitz(BANDED.first(STEPS), STEPS) @ (free - less)) / 0.7
    assert moved > 10 * proven(run.with_(noise_multiplier=1.0), DELTA).mu


def test_adaptive_gradients_move_no_more():
    """The direction changes from lot to lot, as an adversary may choose after each release."""
    rng = np.random.default_rng(0)
    run = Run(
        mechanism="matrix", num_examples=N, lot_size=L, steps=STEPS, sampling="cyclic",
        noise_multiplier=1.0, strategy=BANDED,
    )  # fmt: skip
    bound = proven(run, DELTA).mu
    c = toeplitz(BANDED.first(STEPS), STEPS)
    largest = 0.0
    for _ in range(2000):
        steps = np.arange(int(rng.integers(3)), STEPS, 3)
        g = np.zeros((STEPS, 2))
        angle = rng.choice([0.0, np.pi, rng.uniform(0, 2 * np.pi)], len(steps))
        g[steps] = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        largest = max(largest, np.linalg.norm(c @ g))
    assert 0.97 * bound < largest <= bound * (1 + 1e-12)


def test_groups_that_take_turns_are_amplified():
    lots = make_lots("cyclic_poisson", *data(80), lot_size=4, groups=4)
    model = private(matrix(4.0))
    model.fit(lots, epochs=2, verbose=0)
    model.fit(lots, steps_per_epoch=3, verbose=0)
    (run,) = model.privacy.ledger.runs
    assert (run.strategy, run.groups, run.sampling_probability, run.participations) == (
        BANDED,
        4,
        0.2,
        11,
    )
    amplified = model.privacy.spent(DELTA)
    assert amplified.details["amplification"] == "secrecy of the sample"
    # The twin has a Poisson-subsampled Gaussian per turn of the group, at the norm of a column.
    twin = Run(
        mechanism="dpsgd", num_examples=20, lot_size=4, steps=11, sampling="poisson",
        noise_multiplier=4.0 / np.linalg.norm(BANDED.coefficients),
    )  # fmt: skip
    assert amplified.epsilon == pytest.approx(proven(twin, DELTA).epsilon)


def test_nothing_is_amplified_where_an_example_may_come_back_too_soon():
    few = make_lots("cyclic_poisson", *data(80), lot_size=4, groups=3)  # fewer groups than bands
    foreign = tf.data.Dataset.from_tensor_slices(data(80)).batch(4, drop_remainder=True)
    spent = {}
    for name, lots in {
        "cyclic": make_lots("cyclic", *data(80), lot_size=4),
        "shuffle": make_lots("shuffle", *data(80), lot_size=4),
        "few": few,
        "foreign": foreign,
    }.items():
        model = private(matrix(4.0))
        model.fit(lots, epochs=2, verbose=0)
        guarantee = model.privacy.spent(DELTA)
        assert guarantee.mu is not None and "amplification" not in guarantee.details
        spent[name] = guarantee.epsilon
    # Shuffled epochs have no minimum separation; foreign data may repeat an example every step.
    assert spent["cyclic"] < spent["shuffle"] < spent["few"] < spent["foreign"]
    every_step = np.linalg.norm(toeplitz(np.abs(BANDED.first(40)), 40).sum(axis=1)) / 4.0
    assert guarantee.mu == pytest.approx(every_step)


# -- more steps than planned ---------------------------------------------------------------------


def test_more_steps_than_planned_are_accounted_or_refused():
    def optimizer():
        return matrix(4.0, strategy="sqrt_toeplitz", steps=6)

    planned = Run(
        mechanism="matrix", num_examples=24, lot_size=8, steps=6, sampling="cyclic",
        noise_multiplier=4.0, strategy=Strategy(name="sqrt_toeplitz", bands=6),
    )  # fmt: skip
    budget = PrivacyBudget(proven(planned, DELTA).epsilon * 1.0001, DELTA)
    limited = private(optimizer(), budget=budget)
    with pytest.raises(BudgetExhausted):
        fit(limited, epochs=3)
    assert limited.privacy.ledger.runs[0].steps == 6
    free = private(optimizer())
    fit(free, epochs=3)
    spent, run = free.privacy.spent(DELTA), planned.with_(steps=9)
    assert spent.epsilon == proven(run, DELTA).epsilon > budget.epsilon


# -- the state is a secret, and has one future ---------------------------------------------------


@pytest.mark.parametrize("way", SAVES)
def test_no_file_holds_past_noise(way, tmp_path):
    model = private(matrix())
    fit(model)
    SAVES[way](model, tmp_path)
    past = [a for n, a in model.optimizer._correlated.state().items() if n != "steps"]
    assert all(np.any(a != 0) for a in past)
    written = list(arrays_in(tmp_path))
    for array in past:
        for secret in (array, *array):
            assert not any(secret.tobytes() in content for content in written)
    known = [v.numpy().ravel() for v in (*model.variables, *model.optimizer.variables)]
    assert not any(np.array_equal(row, v) for array in past for row in array for v in known)


def loaded(path):
    model = keras.models.load_model(path)
    return tfdp.make_private(model)


def test_a_model_that_was_saved_and_loaded_starts_a_new_segment(tmp_path):
    model = noisy(BANDED)
    first = noise_of(model, 6)
    model.save(tmp_path / "a.keras")
    futures = [loaded(tmp_path / "a.keras") for _ in range(2)]
    assert futures[0].optimizer.strategy == BANDED
    rest = [noise_of(each, 6) for each in futures]
    for each, noise in zip(futures, rest, strict=True):
        assert [run.steps for run in each.privacy.ledger.runs] == [6, 6]
        assert accepts(noise, BANDED, 3.0)  # with fresh noise
        assert not accepts(np.concatenate([first, noise]), BANDED, 3.0)
    both = np.concatenate([toeplitz(BANDED.first(6), 6) @ noise for noise in rest])
    assert np.abs(np.corrcoef(both) - np.eye(12)).max() < 0.25  # and independent of each other
    # By chance, three pairs in ten million are as close.
    assert np.mean(np.isclose(rest[0], rest[1], rtol=1e-6)) < 1e-2


@pytest.fixture
def interrupted(tmp_path):
    """A run of six steps, its lots, its noise, and a folder with the saved model and state."""
    model = noisy(BANDED)
    lots = make_lots("cyclic", *data(2 * L), lot_size=L)
    watch = Watch()
    model.fit(lots, epochs=3, verbose=0, callbacks=[watch])
    model.optimizer.save_noise_state(tmp_path / "state")
    model.save(tmp_path / "a.keras")
    return model, lots, np.array(watch.moves), tmp_path


def go_on(model, lots, epochs=3):
    watch = Watch()
    model.fit(lots, epochs=epochs, verbose=0, callbacks=[watch])
    return np.array(watch.moves)


def same_lots():
    return make_lots("cyclic", *data(2 * L), lot_size=L)


def test_a_saved_state_goes_on_as_one_run(interrupted):
    _, _, first, folder = interrupted
    model = loaded(folder / "a.keras")
    model.optimizer.load_noise_state(folder / "state")
    assert not (folder / "state").exists()
    second = go_on(model, same_lots())
    assert accepts(np.concatenate([first, second]), BANDED, 3.0)
    (run,) = model.privacy.ledger.runs
    assert run.steps == 12
    assert model.privacy.spent(DELTA).mu == proven(run, DELTA).mu
    assert model.privacy.steps_taken == 12


def test_the_state_moves_and_is_used_once(interrupted):
    model, lots, first, folder = interrupted
    shutil.copy(folder / "state", folder / "copy")
    # Saving moved the state away, so this fit is another segment with noise of its own.
    rest = go_on(model, lots)
    assert [run.steps for run in model.privacy.ledger.runs] == [6, 6]
    assert not accepts(np.concatenate([first, rest]), BANDED, 3.0)
    with pytest.raises(ValueError, match=r"used already.*at iteration 6"):
        model.optimizer.load_noise_state(folder / "state")
    other = loaded(folder / "a.keras")
    other.optimizer.load_noise_state(folder / "state")
    with pytest.raises(FileNotFoundError):
        loaded(folder / "a.keras").optimizer.load_noise_state(folder / "state")
    go_on(other, same_lots(), epochs=1)
    other.save(folder / "b.keras")
    with pytest.raises(ValueError, match=r"used already.*has 6 steps. Found 8"):
        loaded(folder / "b.keras").optimizer.load_noise_state(folder / "copy")
    assert (folder / "copy").exists()


@pytest.mark.parametrize(
    ("lots", "words"),
    [
        (lambda: make_lots("cyclic", *data(2 * L, seed=1), lot_size=L), "same examples"),
        (lambda: make_lots("shuffle", *data(2 * L), lot_size=L), "'sampling': 'cyclic'"),
        (lambda: make_lots("cyclic", *data(2 * L), lot_size=4), "'lot_size': 8"),
        (lambda: make_lots("cyclic", *data(3 * L), lot_size=L), "'num_examples': 16"),
    ],
    ids=["data", "order", "lot", "number"],
)
def test_another_run_does_not_take_it_up(interrupted, lots, words):
    _, _, first, folder = interrupted
    model = loaded(folder / "a.keras")
    model.optimizer.load_noise_state(folder / "state")
    before = weights(model)
    with pytest.raises(ValueError, match=words):
        model.fit(lots(), verbose=0)
    np.testing.assert_array_equal(weights(model), before)
    assert accepts(np.concatenate([first, go_on(model, same_lots())]), BANDED, 3.0)


def test_an_optimizer_with_other_noise_does_not_load_it(interrupted):
    *_, folder = interrupted
    model = noisy(BANDED)
    with pytest.raises(ValueError, match="no such run"):
        model.optimizer.load_noise_state(folder / "state")
    model = loaded(folder / "a.keras")
    vars(model.optimizer)["_accounted_noise_multiplier"] = 1.0
    with pytest.raises(ValueError, match="noise_multiplier"):
        model.optimizer.load_noise_state(folder / "state")
    (folder / "rubbish").write_text("rubbish")
    with pytest.raises(ValueError, match="saved arrays"):
        model.optimizer.load_noise_state(folder / "rubbish")
    np.savez(folder / "arrays.npz", a=1)
    with pytest.raises(ValueError, match="save_noise_state"):
        model.optimizer.load_noise_state(folder / "arrays.npz")


def test_groups_go_on_taking_turns_in_another_process(tmp_path):
    def lots():
        return make_lots("cyclic_poisson", *data(24), lot_size=8, groups=3)

    model = private(matrix())
    model.fit(lots(), epochs=1, steps_per_epoch=4, verbose=0)
    model.optimizer.save_noise_state(tmp_path / "state")
    model.save(tmp_path / "a.keras")
    resumed = loaded(tmp_path / "a.keras")
    resumed.optimizer.load_noise_state(tmp_path / "state")
    resumed.fit(lots(), steps_per_epoch=4, verbose=0)
    assert resumed._session.plan.turn == 1
    assert [run.steps for run in resumed.privacy.ledger.runs] == [8]
    assert resumed._session.next_turn % 3 == 8 % 3


def test_what_cannot_go_on_is_not_saved(tmp_path):
    model = private(matrix())
    with pytest.raises(RuntimeError, match="has begun"):
        model.optimizer.save_noise_state(tmp_path / "state")
    fit(model, steps_per_epoch=2)
    with pytest.raises(RuntimeError, match="multiple of 3 steps"):
        model.optimizer.save_noise_state(tmp_path / "state")
    fit(model)
    (tmp_path / "state").write_text("something else")
    with pytest.raises(FileExistsError):
        model.optimizer.save_noise_state(tmp_path / "state")
    model.optimizer.save_noise_state(tmp_path / "state2")  # the refused save lost nothing
    with pytest.raises(RuntimeError, match="has begun"):
        model.optimizer.save_noise_state(tmp_path / "state3")


def test_no_step_runs_on_noise_that_was_given_away(tmp_path):
    class GivesAway(keras.callbacks.Callback):
        weights = None

        def on_train_batch_end(self, batch, logs=None):
            if self.weights is None:
                self.weights = weights(self.model)
                self.model.optimizer.save_noise_state(tmp_path / "state")

    model, given = private(matrix()), GivesAway()
    with pytest.raises(RuntimeError, match="is closed"):
        model.fit(make_lots("poisson", *data(24), lot_size=8), callbacks=[given], verbose=0)
    np.testing.assert_array_equal(weights(model), given.weights)


# -- construction --------------------------------------------------------------------------------


def test_a_strategy_by_name_is_made_for_the_planned_steps():
    made = matrix(strategy="banded_toeplitz", bands=4, steps=50)
    assert made.strategy.bands == 4
    column = np.array(made.strategy.coefficients)
    np.testing.assert_array_equal(column, column.astype(np.float32))
    assert inverse(column, 50).shape == (50,)
    assert matrix(strategy="sqrt_toeplitz", steps=9).strategy.bands == 9
    assert matrix(strategy="sqrt_toeplitz", bands=3, steps=9).strategy.bands == 3
    assert matrix(strategy="prefix_sum", steps=9).strategy == Strategy(name="prefix_sum")


def test_the_configuration_keeps_the_strategy():
    for plan in PLANS.values():
        made = matrix(strategy=plan)
        again = type(made).from_config(made.get_config())
        assert again.strategy == plan and again.get_config() == made.get_config()
    made = matrix(strategy="banded_toeplitz", bands=3, steps=20)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(made))
    assert again.strategy == made.strategy


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "surprise"},
        {"strategy": "banded_toeplitz"},
        {"strategy": "banded_toeplitz", "bands": 4},
        {"strategy": "banded_toeplitz", "bands": 9, "steps": 8},
        {"strategy": "sqrt_toeplitz"},
        {"strategy": "sqrt_toeplitz", "steps": 8, "objective": "max"},
        {"strategy": BANDED, "bands": 4},
    ],
)
def test_bad_arguments(options):
    with pytest.raises(ValueError, match="Expected"):
        matrix(**options)


def test_bad_bases():
    for bad in (type(sgd()), keras.optimizers.LossScaleOptimizer, int):
        with pytest.raises(TypeError):
            make_matrix_optimizer_class(bad)
    model = plain()
    model.compile(matrix(), loss=LOSS)
    with pytest.raises(RuntimeError, match="make_private"):
        model.fit(*data(), verbose=0)
